// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/docs"
	"github.com/berth-dev/berth/test/simulation"
)

// Output of the commands that read, for users with different rights: an administrator, a viewer
// with the ClusterRole of the example, a tenant with Kubernetes' role view in a namespace, and
// nobody.
func TestReading(t *testing.T) {
	t.Parallel()
	w := simulation.NewWith(t, simulation.Options{Patience: time.Minute})
	newUser(w, "").session(w, "empty.txt")
	fill(w)
	permit(w)
	w.Eventually("wait until the users may read", func() error {
		for user, args := range map[string][]string{"viewer": {"top", "nodes"}, "tenant": {"where", "web-0", "-n", "shop"}} {
			if printed, code, err := newUser(w, user).run(w.Ctx, args...); err != nil || code != 0 {
				return fmt.Errorf("%s: %w: %s", user, err, printed)
			}
		}
		return nil
	})
	checkCompletion(w)
	checkColumns(w)
	if _, err := w.Berth.IPClaims("ads").Create(w.Ctx, &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Name: "spare"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	newUser(w, "").session(w, "admin.txt")
	if err := w.Berth.IPClaims("ads").Delete(w.Ctx, "spare", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"viewer", "tenant", "nobody"} {
		newUser(w, user).session(w, user+".txt")
	}
	// These change what the others read.
	for _, path := range docs.OnAPIServer {
		readPage(w, path)
	}
}

// readPage does what a page tells an administrator, and sees what the page shows.
func readPage(w *simulation.World, path string) {
	w.T.Helper()
	root, err := deploy.Root()
	if err != nil {
		w.T.Fatal(err)
	}
	page, err := docs.Read(root, path)
	if err == nil {
		err = docs.Run(w.Ctx, page, w.T.TempDir(), newUser(w, "").env)
	}
	if err != nil {
		w.T.Error(err)
	}
}

// checkColumns wants kubectl get to say of each address why no pod has it, and since when.
func checkColumns(w *simulation.World) {
	w.T.Helper()
	admin := newUser(w, "")
	command := exec.CommandContext(w.Ctx, admin.bin, "get", "floatingips")
	command.Env = admin.env
	out, err := command.CombinedOutput()
	if err != nil {
		w.T.Fatalf("%v: %s", err, out)
	}
	for _, row := range []string{
		`NAME .* SINCE +COOLING +RESERVED`, `10.0.70.8 +web +shop +web-0 +node1 +StatefulSet +web +Retain +3d`, `10.0.70.10 +web +shop +node2 +StatefulSet +web +Retain +3d`,
		`10.0.70.13 +web +Retain +10d`, `10.0.70.14 +Retain +true`,
	} {
		if !regexp.MustCompile(`(?m)^` + row + ` *$`).Match(out) {
			w.T.Errorf("kubectl get floatingips has no row like %q:\n%s", row, out)
		}
	}
}

// checkCompletion asks a real kubectl to complete words, with the script of the plugin.
func checkCompletion(w *simulation.World) {
	w.T.Helper()
	root, err := deploy.Root()
	if err != nil {
		w.T.Fatal(err)
	}
	// The claim is for completion alone: others see an address whose claim is gone.
	claims := w.Berth.IPClaims("ads")
	if _, err := claims.Create(w.Ctx, &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Name: "front"}}, metav1.CreateOptions{}); err != nil {
		w.T.Fatal(err)
	}
	defer func() {
		if err := claims.Delete(w.Ctx, "front", metav1.DeleteOptions{}); err != nil {
			w.T.Error(err)
		}
	}()
	viewer := newUser(w, "")
	viewer.env[0] += string(os.PathListSeparator) + filepath.Join(root, "cmd", "kubectl-berth")
	for line, want := range map[string]string{
		"pool w":                      "web",
		"free ":                       "old six web",
		"who 10.0.70.1":               "10.0.70.10 10.0.70.11 10.0.70.12 10.0.70.13 10.0.70.14",
		"where -n shop web":           "web-0 web-1",
		"why --namespace=ads b":       "banner-5d8f9-x2x4z",
		"free web ":                   "",
		"top n":                       "nodes namespaces",
		"top owners --sort r":         "retained",
		"trace 10.0.70.14":            "10.0.70.14",
		"trace 10.0.70.14 ":           "",
		"release 10.0.70.8 10.0.70.1": "10.0.70.10 10.0.70.11 10.0.70.12 10.0.70.13 10.0.70.14",
		"unreserve 2001:":             "2001:db8:70::1:8",
		"export --pool s":             "six",
		"export -o n":                 "netbox netbox-json",
		"move-claim -n ads f":         "front",
		"where -n ads claim/f":        "claim/front",
		"where -n ad":                 "ads",
		"who 10.0.70.8 -o js":         "json jsonpath= jsonpath-file=",
		"backup ":                     "",
	} {
		command := exec.CommandContext(w.Ctx, viewer.bin, append([]string{"__complete", "berth"}, strings.Split(line, " ")...)...)
		command.Env = viewer.env
		out, err := command.Output()
		if err != nil {
			w.T.Fatal(err)
		}
		words := strings.Fields(strings.Split("\n"+string(out), "\n:")[0])
		if got := strings.Join(words, " "); got != want {
			w.T.Errorf("%q is completed by %q, want %q", line, got, want)
		}
	}
}

// fill makes a cluster as an administrator finds it. Nothing runs in it.
func fill(w *simulation.World) {
	w.T.Helper()
	must := func(err error) {
		w.T.Helper()
		if err != nil {
			w.T.Fatal(err)
		}
	}
	for _, name := range []string{"shop", "ads"} {
		_, err := w.Kube.CoreV1().Namespaces().Create(w.Ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		must(err)
	}
	web := w.Pool("web", "10.0.70.8-10.0.70.40", func(pool *v1alpha1.IPPool) {
		pool.Spec.Exclude = []string{"10.0.70.15"}
		pool.Spec.Cooldown = &metav1.Duration{Duration: 720 * time.Hour}
	})
	web.Status = v1alpha1.IPPoolStatus{
		Capacity: 32, Allocated: 3, Retained: 2, Reserved: 1, Cooling: 1, Free: 25,
		Conditions: []metav1.Condition{{Type: v1alpha1.PoolReady, Status: metav1.ConditionTrue, Reason: "Valid", LastTransitionTime: metav1.Now()}},
	}
	_, err := w.Berth.IPPools.UpdateStatus(w.Ctx, web, metav1.UpdateOptions{})
	must(err)
	six := simulation.NewPool("six", "2001:db8:70::1:0/112")
	six.Spec.Subnet, six.Spec.Gateway = "2001:db8:70::/64", "2001:db8:70::1"
	six, err = w.Berth.IPPools.Create(w.Ctx, six, metav1.CreateOptions{})
	must(err)
	six.Status = v1alpha1.IPPoolStatus{Capacity: 65536, Allocated: 1, Free: 65535}
	_, err = w.Berth.IPPools.UpdateStatus(w.Ctx, six, metav1.UpdateOptions{})
	must(err)
	w.Pool("old", "10.0.70.60-10.0.70.63", func(pool *v1alpha1.IPPool) { pool.Spec.Disabled = true })

	holds := []struct {
		spec      v1alpha1.FloatingIPSpec
		kind, pod string
	}{
		{v1alpha1.FloatingIPSpec{Address: "10.0.70.8", Pool: "web", Node: "node1"}, "StatefulSet shop/web", "web-0"},
		{v1alpha1.FloatingIPSpec{Address: "2001:db8:70::1:8", Pool: "six", Node: "node1", Index: 1}, "StatefulSet shop/web", "web-0"},
		{v1alpha1.FloatingIPSpec{Address: "10.0.70.9", Pool: "web", Node: "node2"}, "StatefulSet shop/web", "web-1"},
		{v1alpha1.FloatingIPSpec{Address: "10.0.70.10", Pool: "web", Node: "node2", LastPod: "web-2"}, "StatefulSet shop/web", ""},
		{v1alpha1.FloatingIPSpec{Address: "10.0.70.11", Pool: "web", Node: "node1"}, "Deployment ads/banner", "banner-5d8f9-x2x4z"},
		{v1alpha1.FloatingIPSpec{Address: "10.0.70.12", Pool: "web"}, "IPClaim ads/front", ""},
		{v1alpha1.FloatingIPSpec{Address: "10.0.70.13", Pool: "web", LastPod: "gone-0"}, "", ""},
		{v1alpha1.FloatingIPSpec{Address: "10.0.70.14", Reserved: true}, "", ""},
	}
	since := metav1.NewTime(time.Now().Add(-72 * time.Hour))
	released := metav1.NewTime(time.Now().Add(-240 * time.Hour))
	// It ran with what web-1 has now.
	names := map[string]string{"shop/done": "10.0.70.9"}
	for i, hold := range holds {
		ip := &v1alpha1.FloatingIP{Spec: hold.spec}
		ip.Name = v1alpha1.NameOf(netip.MustParseAddr(ip.Spec.Address))
		ip.Spec.ReleasePolicy = v1alpha1.ReleaseRetain
		if ip.Spec.Pool == "web" {
			ip.Spec.Network = &v1alpha1.Network{Subnet: web.Spec.Subnet, Gateway: web.Spec.Gateway}
		}
		switch {
		case hold.kind != "":
			kind, of, _ := strings.Cut(hold.kind, " ")
			namespace, name, _ := strings.Cut(of, "/")
			ip.Spec.Since = &since
			ip.Spec.Owner = &v1alpha1.Owner{APIVersion: "apps/v1", Kind: kind, Namespace: namespace, Name: name, UID: types.UID(fmt.Sprintf("00000000-0000-0000-0000-00000000000%d", i+1))}
			if kind == "StatefulSet" {
				ip.Spec.Owner.PodName = hold.pod
				if hold.pod == "" {
					ip.Spec.Owner.PodName = hold.spec.LastPod
				}
			}
			if hold.pod != "" {
				key := namespace + "/" + hold.pod
				if names[key] != "" {
					names[key] += ","
				}
				names[key] += ip.Name
			}
		case !hold.spec.Reserved:
			ip.Spec.ReleasedAt = &released
		}
		if hold.pod != "" {
			ip.Spec.Pod = &v1alpha1.PodReference{Name: hold.pod, UID: "later"}
		}
		_, err := w.Berth.FloatingIPs.Create(w.Ctx, ip, metav1.CreateOptions{})
		must(err)
	}
	for _, pod := range []struct{ namespace, name, node, kind, workload string }{
		{"shop", "web-0", "node1", "StatefulSet", "web"}, {"shop", "web-1", "node2", "StatefulSet", "web"},
		{"ads", "banner-5d8f9-x2x4z", "node1", "ReplicaSet", "banner-5d8f9"}, {"shop", "waits", "", "", ""},
		{"shop", "done", "node1", "StatefulSet", "web"},
	} {
		made := simulation.NewPod(pod.name)
		made.Namespace, made.Spec.NodeName = pod.namespace, pod.node
		if pod.kind != "" {
			made.Annotations[v1alpha1.AnnotationFloatingIPs] = names[pod.namespace+"/"+pod.name]
			yes := true
			made.OwnerReferences = []metav1.OwnerReference{{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: pod.kind, Name: pod.workload, UID: "workload", Controller: &yes}}
		}
		created, err := w.Kube.CoreV1().Pods(pod.namespace).Create(w.Ctx, made, metav1.CreateOptions{})
		must(err)
		if pod.name == "done" {
			created.Status.Phase = v1.PodSucceeded
			_, err := w.Kube.CoreV1().Pods(pod.namespace).UpdateStatus(w.Ctx, created, metav1.UpdateOptions{})
			must(err)
		}
		for _, hold := range holds {
			if hold.pod != pod.name {
				continue
			}
			name := v1alpha1.NameOf(netip.MustParseAddr(hold.spec.Address))
			patch := fmt.Appendf(nil, `{"spec":{"pod":{"uid":%q}}}`, created.UID)
			_, err := w.Berth.FloatingIPs.Patch(w.Ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
			must(err)
		}
	}
}

// permit gives viewer the role of the example, and tenant what Kubernetes' role view has in
// two namespaces. The role itself is empty without kube-controller-manager.
func permit(w *simulation.World) {
	w.T.Helper()
	w.Grant("viewer-rbac.yaml", "viewer")
	for _, namespace := range []string{"shop", simulation.Namespace} {
		if _, err := w.Kube.RbacV1().RoleBindings(namespace).Create(w.Ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "tenant"}, Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "tenant"}},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:aggregate-to-view"},
		}, metav1.CreateOptions{}); err != nil {
			w.T.Fatal(err)
		}
	}
}
