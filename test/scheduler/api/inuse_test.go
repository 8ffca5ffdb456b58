// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// Whatever tool deletes them, and though it runs no hooks: agents, kinds and pools stay while
// anybody has an address. An administrator who means it deletes the bindings.
func TestAgentsAndKindsStayWhileInUse(t *testing.T) {
	t.Parallel()
	w := simulation.Start(t, lab.ControlPlaneOptions{}, 1)
	w.Pool("web", "10.0.70.2")
	daemonSet(w, "berth-agent")
	daemonSet(w, "berth-speaker")
	daemons := w.Kube.AppsV1().DaemonSets(w.System)
	dry := metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
	all := metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=berth"}
	crds := w.Dynamic.Resource(apiextensions.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	const lost, stuck = "pods, Services or nodes have 1 addresses of IPPool web and would lose them", "pods, workloads, Services or nodes have 1 addresses of IPPool web, and without it would not get them again"
	deletions := []struct {
		what, refusal string
		try           func() error
	}{
		{"the agents", lost, func() error { return daemons.Delete(w.Ctx, "berth-agent", dry) }},
		{"all DaemonSets", lost, func() error { return daemons.DeleteCollection(w.Ctx, dry, all) }},
		{"FloatingIPs", lost, func() error { return crds.Delete(w.Ctx, "floatingips.berth.dev", dry) }},
		{"a kind by choice", lost, func() error { return crds.Delete(w.Ctx, "networkprofiles.berth.dev", dry) }},
		{"the pool", stuck, func() error { return w.Berth.IPPools.Delete(w.Ctx, "web", dry) }},
		{"all pools", stuck, func() error { return w.Berth.IPPools.DeleteCollection(w.Ctx, dry, metav1.ListOptions{}) }},
	}
	are := func(refused bool) {
		t.Helper()
		for _, deletion := range deletions {
			w.Eventually("delete "+deletion.what, func() error {
				err := deletion.try()
				switch {
				case !refused:
					return err
				case apierrors.IsForbidden(err) && strings.Contains(err.Error(), deletion.refusal):
					return nil
				}
				return fmt.Errorf("the answer is %w", err)
			})
		}
		if err := daemons.Delete(w.Ctx, "berth-speaker", dry); err != nil {
			t.Errorf("delete the speaker: %v", err)
		}
	}
	are(false)
	w.Create(simulation.NewPod("web-0"))
	w.Bound("web-0")
	are(true)
	w.Delete("web-0")
	are(false)
	w.Create(simulation.NewPod("web-1"))
	w.Bound("web-1")
	are(true)
	w.Unbind("in-use.berth.dev")
	w.Unbind("ippools.berth.dev")
	are(false)
}

// A pool stays while a workload keeps an address of it, and while an administrator has reserved
// some it may go.
func TestPoolStaysForItsWorkloads(t *testing.T) {
	t.Parallel()
	w := simulation.Start(t, lab.ControlPlaneOptions{}, 1)
	w.Pool("web", "10.0.70.2")
	w.Pool("reserved", "10.0.71.2", func(pool *v1alpha1.IPPool) { pool.Spec.Subnet, pool.Spec.Gateway = "10.0.71.0/24", "" })
	w.Reserve("10.0.71.2")
	w.Create(simulation.NewPod("web-0", simulation.FromPools("web"), simulation.Policy(v1alpha1.ReleaseNever)))
	w.Bound("web-0")
	w.Delete("web-0")
	w.Eventually("wait until the address is retained", func() error {
		pool, err := w.Berth.IPPools.Get(w.Ctx, "web", metav1.GetOptions{})
		if err == nil && (pool.Status.Retained != 1 || pool.Status.Allocated != 0) {
			err = fmt.Errorf("the status is %+v", pool.Status)
		}
		return err
	})
	remove := func(pool string) error { return w.Berth.IPPools.Delete(w.Ctx, pool, metav1.DeleteOptions{}) }
	if err := remove("web"); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "kubectl get floatingips --field-selector spec.pool=web shows them") {
		t.Errorf("delete a pool of which a workload keeps an address: %v", err)
	}
	if err := remove("reserved"); err != nil {
		t.Errorf("delete a pool of which an address is reserved: %v", err)
	}
	if err := w.Berth.FloatingIPs.Delete(w.Ctx, "10.0.70.2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.Eventually("delete the pool", func() error { return remove("web") })
}

// Argo CD deletes what an Application has, but for objects with Delete=false, in an order of its
// own, and runs no hook before it. The worst one is that policies go first. Agents and kinds are
// left while anybody has an address.
func TestApplicationIsDeleted(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	objects, err := deploy.ChartObjects(w.Ctx, t.Output(), w.System, "")
	if err == nil {
		err = deploy.Apply(w.Ctx, w.Config, objects)
	}
	if err != nil {
		t.Fatal(err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(w.Kube.Discovery()))
	w.Pool("web", "10.0.70.2")
	allocated := func(n int) {
		counts := fmt.Appendf(nil, `{"status":{"capacity":1,"allocated":%d,"retained":0,"reserved":0,"cooling":0,"free":0,"outside":0,"namespacesAtCap":0}}`, n)
		if _, err := w.Berth.IPPools.Patch(w.Ctx, "web", types.MergePatchType, counts, metav1.PatchOptions{}, "status"); err != nil {
			t.Fatal(err)
		}
	}
	allocated(1)
	daemons := w.Kube.AppsV1().DaemonSets(w.System)
	w.Eventually("wait for the policy to be enforced", func() error {
		if err := daemons.Delete(w.Ctx, "berth-agent", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); !apierrors.IsForbidden(err) {
			return fmt.Errorf("the agents can be deleted: %w", err)
		}
		return nil
	})
	isPolicy := func(o *unstructured.Unstructured) bool {
		return strings.HasPrefix(o.GetKind(), "ValidatingAdmissionPolicy")
	}
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int {
		switch {
		case isPolicy(a) == isPolicy(b):
			return 0
		case isPolicy(a):
			return -1
		}
		return 1
	})
	if err := w.Berth.IPPools.Delete(w.Ctx, "web", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the pool can be deleted: %v", err)
	}
	for _, o := range objects {
		if o.GetAnnotations()["argocd.argoproj.io/sync-options"] == "Delete=false" {
			continue
		}
		to, _ := whereOf(w, mapper, o)
		err := to.Delete(w.Ctx, o.GetName(), metav1.DeleteOptions{})
		if stays := o.GetKind() == "CustomResourceDefinition" || o.GetKind() == "DaemonSet" && o.GetName() == "berth-agent"; stays != apierrors.IsForbidden(err) || !stays && err != nil {
			t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
	admission := w.Kube.AdmissionregistrationV1()
	_, err = admission.ValidatingAdmissionPolicies().Get(w.Ctx, "in-use.berth.dev", metav1.GetOptions{})
	_, bound := admission.ValidatingAdmissionPolicyBindings().Get(w.Ctx, "in-use.berth.dev", metav1.GetOptions{})
	if err := errors.Join(err, bound); err != nil {
		t.Errorf("what keeps the agents goes with the Application: %v", err)
	}
	allocated(0)
	w.Eventually("delete the agents", func() error { return daemons.Delete(w.Ctx, "berth-agent", metav1.DeleteOptions{}) })
}

// daemonSet makes one of Berth's.
func daemonSet(w *simulation.World, name string) *appsv1.DaemonSet {
	w.T.Helper()
	labels := map[string]string{"app.kubernetes.io/part-of": "berth"}
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "x", Image: "x"}}}},
	}}
	set, err := w.Kube.AppsV1().DaemonSets(w.System).Create(w.Ctx, set, metav1.CreateOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	return set
}

// The Jobs of an uninstall, with their rights: the first refuses while a Service has an address,
// and then has the policy let the agents go, though no controller runs any more. The second takes
// the address out of the Service's status.
func TestUninstallWithServices(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	chart, err := deploy.Chart()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(chart, "templates/uninstall/rbac.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	rights, err := deploy.Decode([]byte(strings.ReplaceAll(string(text), "{{ .Release.Namespace }}", w.System)))
	if err == nil {
		err = deploy.Apply(w.Ctx, w.Config, rights)
	}
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(w.ControlPlane.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range config.AuthInfos {
		user.Impersonate = "system:serviceaccount:" + w.System + ":berth-uninstall"
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	uninstall := func(args ...string) (string, error) {
		out, err := exec.CommandContext(w.Ctx, simulation.Program("berth-controller"), append([]string{"uninstall", "--kubeconfig=" + kubeconfig}, args...)...).CombinedOutput()
		return string(out), err
	}

	w.Pool("web", "10.0.70.2")
	class := v1alpha1.LoadBalancerClass
	services := w.Kube.CoreV1().Services(v1.NamespaceDefault)
	service, err := services.Create(w.Ctx, &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "front"}, Spec: v1.ServiceSpec{Type: v1.ServiceTypeLoadBalancer, LoadBalancerClass: &class, Ports: []v1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	service.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "10.0.70.2"}}
	if _, err := services.UpdateStatus(w.Ctx, service, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	ip := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: "10.0.70.2"}, Spec: v1alpha1.FloatingIPSpec{
		Address: "10.0.70.2", Pool: "web", Service: &v1alpha1.ServiceReference{Name: "front", UID: service.UID},
		Owner: &v1alpha1.Owner{APIVersion: "v1", Kind: "Service", Namespace: v1.NamespaceDefault, Name: "front", UID: service.UID},
	}}
	if _, err := w.Berth.FloatingIPs.Create(w.Ctx, ip, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	counts := []byte(`{"status":{"capacity":1,"allocated":1,"retained":0,"reserved":0,"cooling":0,"free":0,"outside":0,"namespacesAtCap":0}}`)
	if _, err := w.Berth.IPPools.Patch(w.Ctx, "web", types.MergePatchType, counts, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}

	if out, err := uninstall("check"); err == nil || !strings.Contains(out, "clients would not reach them: default/front. Delete them") {
		t.Errorf("while a Service has an address: %v: %s", err, out)
	}
	if out, err := uninstall("check", "--force"); err != nil {
		t.Errorf("by force: %v: %s", err, out)
	}
	if _, err := w.AsController().FloatingIPs.Patch(w.Ctx, "10.0.70.2", types.MergePatchType, []byte(`{"spec":{"service":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if out, err := uninstall("check"); err != nil {
		t.Errorf("while nobody has an address: %v: %s", err, out)
	}
	if pool, err := w.Berth.IPPools.Get(w.Ctx, "web", metav1.GetOptions{}); err != nil || pool.Status.Allocated != 0 || pool.Status.Capacity != 1 {
		t.Errorf("the status is %+v: %v", pool.Status, err)
	}

	set := daemonSet(w, "berth-cleanup")
	set.Status.ObservedGeneration = set.Generation
	if _, err := w.Kube.AppsV1().DaemonSets(w.System).UpdateStatus(w.Ctx, set, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if out, err := uninstall("wait", "--namespace="+w.System); err != nil || !strings.Contains(out, "0 of 0 nodes are clean") {
		t.Errorf("the second Job: %v: %s", err, out)
	}
	if service, err := services.Get(w.Ctx, "front", metav1.GetOptions{}); err != nil || len(service.Status.LoadBalancer.Ingress) > 0 {
		t.Errorf("clients are told of %v: %v", service.Status.LoadBalancer.Ingress, err)
	}
}
