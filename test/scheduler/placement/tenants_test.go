// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/docs"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// tenantPage says how to make a tenant.
const tenantPage = "docs/how-to/tenants.md"

// A tenant that is made as the page says has the pools that admit its namespace, and no others:
// neither by what its pods say, nor by annotations of the namespace, nor by its rights.
func TestTenant(t *testing.T) {
	t.Parallel()
	w := simulation.Start(t, lab.ControlPlaneOptions{}, 2)
	w.Pool("bank", "10.0.70.100-10.0.70.109", func(pool *v1alpha1.IPPool) {
		pool.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"tenant": "bank"}}
	})
	for _, object := range w.Chart(map[string]any{"podDefaults": map[string]any{"enabled": true}}) {
		if object.GetName() == "pod-defaults.berth.dev" {
			if err := deploy.Apply(w.Ctx, w.Config, []*unstructured.Unstructured{object}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := deploy.Apply(w.Ctx, w.Config, tenantOfPage(t)); err != nil {
		t.Fatal(err)
	}
	tenant := newTeam(w, "shop", "shop-team")

	// What the namespace says is enough, and what a pod says goes no further than pools admit the
	// namespace.
	shop, err := w.Berth.IPPools.Get(w.Ctx, "shop", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first, last, _ := strings.Cut(shop.Spec.Ranges[0], "-")
	tenant.create("a")
	got := netip.MustParseAddr(addressIn(w, "shop", "a"))
	if got.Less(netip.MustParseAddr(first)) || netip.MustParseAddr(last).Less(got) {
		t.Errorf("the pod has %s, want an address of pool shop, %s", got, shop.Spec.Ranges)
	}
	const refused = `does not admit namespace "shop"`
	tenant.create("b", simulation.Annotated(v1alpha1.AnnotationPools, "bank"))
	refusedIn(w, "shop", "b", `pool "bank" (10.0.70.100-10.0.70.109) `+refused)
	tenant.create("c", simulation.Annotated(v1alpha1.AnnotationAddresses, "10.0.70.100"))
	refusedIn(w, "shop", "c", refused)

	// Nor does the annotation of a namespace admit it.
	stranger := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "stranger", Annotations: map[string]string{v1alpha1.AnnotationPools: "shop"}}}
	if _, err := w.Kube.CoreV1().Namespaces().Create(w.Ctx, stranger, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := simulation.NewPod("a")
	createIn(w, "stranger", pod)
	refusedIn(w, "stranger", "a", `does not admit namespace "stranger"`)

	for what, err := range tenant.admitsItself() {
		if !apierrors.IsForbidden(err) {
			t.Errorf("the tenant may %s: %v", what, err)
		}
	}
}

// tenantOfPage returns the objects of the page that make a tenant.
func tenantOfPage(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	root, err := deploy.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := docs.Read(root, tenantPage)
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range page.Blocks {
		if strings.Contains(block.Text, "\nkind: IPPool\n") {
			objects, err := deploy.Decode([]byte(block.Text))
			if err != nil {
				t.Fatal(err)
			}
			return objects
		}
	}
	t.Fatalf("%s has no block with an IPPool", tenantPage)
	return nil
}

// team is a user of a group with Kubernetes' role admin in a namespace.
type team struct {
	w         *simulation.World
	namespace string
	kube      *kubernetes.Clientset
	berth     *client.Client
}

// newTeam returns a member of a group that has the role admin in a namespace already. Without
// kube-controller-manager this role has no rules: the group gets those that it would have.
func newTeam(w *simulation.World, namespace, group string) *team {
	w.T.Helper()
	roles, err := w.Kube.RbacV1().ClusterRoles().List(w.Ctx, metav1.ListOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	bound := 0
	for _, role := range roles.Items {
		if role.Labels["rbac.authorization.k8s.io/aggregate-to-admin"] != "true" && role.Labels["rbac.authorization.k8s.io/aggregate-to-edit"] != "true" &&
			role.Labels["rbac.authorization.k8s.io/aggregate-to-view"] != "true" {
			continue
		}
		bound++
		if _, err := w.Kube.RbacV1().RoleBindings(namespace).Create(w.Ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "aggregated-"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}},
		}, metav1.CreateOptions{}); err != nil {
			w.T.Fatal(err)
		}
	}
	if bound < 3 {
		w.T.Fatalf("%d ClusterRoles are part of admin, want 3 at least", bound)
	}
	config := rest.CopyConfig(w.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "roe", Groups: []string{group, "system:authenticated"}}
	u := &team{w: w, namespace: namespace}
	if u.kube, err = kubernetes.NewForConfig(config); err != nil {
		w.T.Fatal(err)
	}
	if u.berth, err = client.NewForConfig(config); err != nil {
		w.T.Fatal(err)
	}
	w.Eventually("the policy works for pods of the team", func() error {
		made, err := u.kube.CoreV1().Pods(namespace).Create(w.Ctx, u.pod("dry"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && made.Spec.SchedulerName != simulation.SchedulerName {
			err = fmt.Errorf("the pod's scheduler is %q", made.Spec.SchedulerName)
		}
		return err
	})
	return u
}

// pod is a pod that names neither scheduler nor pools.
func (u *team) pod(name string, options ...func(*v1.Pod)) *v1.Pod {
	pod := simulation.NewPod(name, options...)
	pod.Namespace, pod.Spec.SchedulerName = u.namespace, ""
	return pod
}

func (u *team) create(name string, options ...func(*v1.Pod)) {
	u.w.T.Helper()
	if _, err := u.kube.CoreV1().Pods(u.namespace).Create(u.w.Ctx, u.pod(name, options...), metav1.CreateOptions{}); err != nil {
		u.w.T.Fatal(err)
	}
}

// admitsItself tries what would give the team more than it was given.
func (u *team) admitsItself() map[string]error {
	ctx, namespace := u.w.Ctx, u.namespace
	merge := func(text string) (types.PatchType, []byte, metav1.PatchOptions) {
		return types.MergePatchType, []byte(text), metav1.PatchOptions{}
	}
	tries := map[string]error{}
	kind, patch, options := merge(`{"metadata":{"labels":{"tenant":"bank"}}}`)
	_, tries["label its namespace"] = u.kube.CoreV1().Namespaces().Patch(ctx, namespace, kind, patch, options)
	_, tries["create namespaces"] = u.kube.CoreV1().Namespaces().Create(ctx, &v1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "more", Labels: map[string]string{"tenant": "bank"}},
	}, metav1.CreateOptions{})
	kind, patch, options = merge(`{"spec":{"namespaceSelector":null,"maxPerNamespace":null}}`)
	_, tries["change a pool"] = u.berth.IPPools.Patch(ctx, "bank", kind, patch, options)
	_, tries["create pools"] = u.berth.IPPools.Create(ctx, simulation.NewPool("more", "10.0.70.110-10.0.70.119"), metav1.CreateOptions{})
	kind, patch, options = merge(`{"spec":{"hard":{"requests.berth.dev/ip":"100"}}}`)
	_, tries["change its quota"] = u.kube.CoreV1().ResourceQuotas(namespace).Patch(ctx, "floating-ips", kind, patch, options)
	_, tries["create FloatingIPs"] = u.berth.FloatingIPs.Create(ctx, &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: "10.0.70.100"}, Spec: v1alpha1.FloatingIPSpec{Address: "10.0.70.100", Pool: "bank"},
	}, metav1.CreateOptions{})
	_, tries["create claims"] = u.berth.IPClaims(namespace).Create(ctx, &v1alpha1.IPClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: v1alpha1.IPClaimSpec{Size: 1},
	}, metav1.CreateOptions{})
	return tries
}

// refusedIn waits until the scheduler says of a pod of a namespace that it cannot be scheduled, and
// why.
func refusedIn(w *simulation.World, namespace, name, text string) {
	w.T.Helper()
	w.Eventually("wait for pod "+namespace+"/"+name+" to be unschedulable", func() error {
		pod, err := w.Kube.CoreV1().Pods(namespace).Get(w.Ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if said := strings.Join(simulation.ConditionTexts(pod), "; "); !strings.Contains(said, text) {
			return fmt.Errorf("on node %q, the scheduler says %q, want %q in it", pod.Spec.NodeName, said, text)
		}
		return nil
	})
}
