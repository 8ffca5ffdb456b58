// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"errors"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/virtual"
)

// capped limits what a namespace may have of a pool.
func capped(n int32) func(*v1alpha1.IPPool) {
	return func(pool *v1alpha1.IPPool) { pool.Spec.MaxPerNamespace = n }
}

// makeNamespace makes one, with labels.
func makeNamespace(w *simulation.World, name string, labels map[string]string) *v1.Namespace {
	w.T.Helper()
	made, err := w.Kube.CoreV1().Namespaces().Create(w.Ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	return made
}

// addressIn waits until a pod of a namespace is bound and returns its address.
func addressIn(w *simulation.World, namespace, name string) (address string) {
	w.T.Helper()
	w.Eventually("wait for pod "+name+" to be bound", func() error {
		pod, err := w.Kube.CoreV1().Pods(namespace).Get(w.Ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pod.Spec.NodeName == "" {
			return fmt.Errorf("not bound; conditions: %v", simulation.ConditionTexts(pod))
		}
		address = pod.Annotations[v1alpha1.AnnotationFloatingIPs]
		return nil
	})
	return address
}

// createIn makes pods in a namespace.
func createIn(w *simulation.World, namespace string, pods ...*v1.Pod) {
	w.T.Helper()
	for _, pod := range pods {
		pod.Namespace = namespace
		if _, err := w.Kube.CoreV1().Pods(namespace).Create(w.Ctx, pod, metav1.CreateOptions{}); err != nil {
			w.T.Fatal(err)
		}
	}
}

// shares waits until a pool's status says so of namespaces: "at cap: name
// allocated+retained …".
func shares(w *simulation.World, pool, want string) {
	w.T.Helper()
	w.Eventually("wait for the namespaces in the status of pool "+pool, func() error {
		now, err := w.Berth.IPPools.Get(w.Ctx, pool, metav1.GetOptions{})
		if err != nil {
			return err
		}
		got := fmt.Sprintf("%d:", now.Status.NamespacesAtCap)
		for _, share := range now.Status.Namespaces {
			got += fmt.Sprintf(" %s %d+%d", share.Name, share.Allocated, share.Retained)
		}
		if got != want {
			return fmt.Errorf("they are %q, want %q", got, want)
		}
		return nil
	})
}

// A pool's cap for a namespace: once its pods have that many addresses, neither pods nor claims
// get more. An address that it gives back, and a higher cap, wake waiting pods.
func TestMaxPerNamespace(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.Start(t, virtual.Options{}, 2)
		w.Pool("web", "10.0.70.2-10.0.70.99", capped(3))
		makeNamespace(w, "bank", nil)

		// A ResourceQuota sees none of these: the pods are gone.
		left := map[string]string{}
		for _, name := range []string{"a", "b", "c"} {
			w.Create(simulation.NewPod(name, simulation.And(simulation.FromPools("web"), simulation.Policy(v1alpha1.ReleaseNever))))
			left[name] = w.Address(name)
			w.Delete(name)
		}
		shares(w, "web", "1: default 0+3")
		w.Create(simulation.NewPod("d", simulation.And(simulation.FromPools("web"), simulation.Policy(v1alpha1.ReleaseNever))))
		w.Refused("d", `pool "web" (10.0.70.2-10.0.70.99) gives namespace "default" at most 3 addresses, and it has 3 (0 in use, 3 retained)`)
		createIn(w, "bank", simulation.NewPod("a", simulation.FromPools("web")))
		addressIn(w, "bank", "a")
		w.Create(simulation.NewPod("a", simulation.And(simulation.FromPools("web"), simulation.Policy(v1alpha1.ReleaseNever))))
		if got := w.Address("a"); got != left["a"] {
			t.Errorf("at the cap the pod has %s, want the %s that was kept for it", got, left["a"])
		}
		if err := w.Berth.FloatingIPs.Delete(w.Ctx, left["b"], metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.Address("d")
		shares(w, "web", "1: default 2+1 bank 1+0")

		w.Claim("ahead", v1alpha1.IPClaimSpec{Size: 2, Preallocate: true, Pools: []string{"web"}})
		w.ClaimBecomes("ahead", "0=0+0 NamespaceAtCap", `gives namespace "default" at most 3 addresses, and it has 3 (2 in use, 1 retained)`)
		w.PatchPool("web", `{"spec":{"maxPerNamespace":5}}`)
		w.ClaimBecomes("ahead", "2=0+2 Preallocated")
		shares(w, "web", "1: default 2+3 bank 1+0")

		// A lower cap takes nothing away, and none gives to whoever waits.
		w.Create(simulation.NewPod("e", simulation.FromPools("web")))
		w.Refused("e")
		w.PatchPool("web", `{"spec":{"maxPerNamespace":1,"cooldown":"1h"}}`)
		shares(w, "web", "2: default 2+3 bank 1+0")
		w.PatchPool("web", `{"spec":{"maxPerNamespace":null}}`)
		w.Address("e")
		shares(w, "web", "0:")

		// Whoever waits is woken by an address that rests.
		w.PatchPool("web", `{"spec":{"maxPerNamespace":6}}`)
		shares(w, "web", "1: default 3+3 bank 1+0")
		w.Create(simulation.NewPod("f", simulation.FromPools("web")))
		w.Refused("f")
		w.Delete("e")
		w.Address("f")
		shares(w, "web", "1: default 3+3 bank 1+0")
	})
}

// A pod whose namespace is at its cap evicts one of its own namespace, not one of
// another.
func TestPreemptionAtCap(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.Start(t, virtual.Options{}, 2)
		high := makePriority(w, "high", 1000, v1.PreemptLowerPriority)
		w.Pool("web", "10.0.70.2-10.0.70.99", capped(1))
		makeNamespace(w, "bank", nil)
		createIn(w, "bank", simulation.NewPod("other", simulation.FromPools("web")))
		addressIn(w, "bank", "other")
		w.Create(simulation.NewPod("victim", simulation.FromPools("web")))
		w.Bound("victim")
		w.Create(simulation.NewPod("urgent", simulation.And(simulation.FromPools("web"), high)))
		w.Bound("urgent")
		if _, err := w.Kube.CoreV1().Pods(simulation.Namespace).Get(w.Ctx, "victim", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the victim is still there: %v", err)
		}
		if pod, err := w.Kube.CoreV1().Pods("bank").Get(w.Ctx, "other", metav1.GetOptions{}); err != nil || pod.DeletionTimestamp != nil {
			t.Errorf("the pod of another namespace was evicted: %v", err)
		}
	})
}

// endNamespace deletes a namespace and what this test made in it, as the namespace
// controller does, and waits until it is gone.
func endNamespace(w *simulation.World, name string) {
	w.T.Helper()
	now := metav1.NewDeleteOptions(0)
	if err := w.Kube.CoreV1().Pods(name).DeleteCollection(w.Ctx, *now, metav1.ListOptions{}); err != nil {
		w.T.Fatal(err)
	}
	claims, err := w.Berth.IPClaims(name).List(w.Ctx, metav1.ListOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	for i := range claims.Items {
		if err := w.Berth.IPClaims(name).Delete(w.Ctx, claims.Items[i].Name, *now); err != nil {
			w.T.Fatal(err)
		}
	}
	namespaces := w.Kube.CoreV1().Namespaces()
	if err := namespaces.Delete(w.Ctx, name, *now); err != nil {
		w.T.Fatal(err)
	}
	w.Eventually("wait for namespace "+name+" to be gone", func() error {
		namespace, err := namespaces.Get(w.Ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		namespace.Spec.Finalizers = nil
		if _, err := namespaces.Finalize(w.Ctx, namespace, metav1.UpdateOptions{}); err != nil {
			return err
		}
		return fmt.Errorf("it is there, %s", namespace.Status.Phase)
	})
}

// isOf waits until an address is "free", "resting", "retained" or "held", and of
// the namespace with that UID.
func isOf(w *simulation.World, address, state string, of types.UID) {
	w.T.Helper()
	w.Eventually("wait for "+address+" to be "+state, func() error {
		ip, err := w.Berth.FloatingIPs.Get(w.Ctx, address, metav1.GetOptions{})
		is := "retained"
		switch {
		case apierrors.IsNotFound(err):
			is = "free"
		case err != nil:
			return err
		case ip.Spec.ReleasedAt != nil:
			is = "resting"
		case ip.Spec.Pod != nil:
			is = "held"
		}
		if is != state {
			return fmt.Errorf("it is %s", is)
		}
		if ip != nil && ip.Spec.Owner != nil && ip.Spec.Owner.NamespaceUID != of {
			return fmt.Errorf("it is of namespace %q, want %q", ip.Spec.Owner.NamespaceUID, of)
		}
		return nil
	})
}

// A namespace that is deleted and made again belongs perhaps to somebody else: it
// inherits no address, not even under Never, and what the first one had is freed.
func TestNamespaceMadeAgain(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.WithNodes(t, virtual.Options{}, 2)
		w.Scheduler(simulation.SchedulerOptions{})
		w.Pool("web", "10.0.70.2-10.0.70.49")
		w.Pool("calm", "10.0.70.50-10.0.70.99", func(pool *v1alpha1.IPPool) { pool.Spec.Cooldown = &metav1.Duration{Duration: time.Hour} })
		never := func(name, pool string) *v1.Pod {
			return simulation.NewPod(name, simulation.And(simulation.FromPools(pool), simulation.Policy(v1alpha1.ReleaseNever)))
		}

		// The scheduler, with no controller that frees anything.
		first := makeNamespace(w, "shop", nil)
		createIn(w, "shop", never("a", "web"), never("b", "calm"))
		a, b := addressIn(w, "shop", "a"), addressIn(w, "shop", "b")
		isOf(w, a, "held", first.UID)
		endNamespace(w, "shop")
		second := makeNamespace(w, "shop", nil)
		createIn(w, "shop", never("a", "web"), never("b", "calm"))
		if got := addressIn(w, "shop", "a"); got == a {
			t.Errorf("the pod of the second namespace has %s, which the first one's was to keep", got)
		}
		if got := addressIn(w, "shop", "b"); got == b {
			t.Errorf("the pod of the second namespace has %s, which the first one's was to keep", got)
		}

		// The controller.
		w.Controller()
		isOf(w, a, "free", "")
		isOf(w, b, "resting", "")
		kept := addressIn(w, "shop", "a")
		if err := w.Kube.CoreV1().Pods("shop").Delete(w.Ctx, "a", *metav1.NewDeleteOptions(0)); err != nil {
			t.Fatal(err)
		}
		isOf(w, kept, "retained", second.UID)
		claim := &v1alpha1.IPClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "blue"},
			Spec:       v1alpha1.IPClaimSpec{Size: 1, Preallocate: true, Pools: []string{"web"}, ReleasePolicy: v1alpha1.ReleaseNever},
		}
		if _, err := w.Berth.IPClaims("shop").Create(w.Ctx, claim, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		claimed := ""
		w.Eventually("wait for the claim's address", func() error {
			ips, err := w.IPs()
			for _, ip := range ips {
				if ip.Spec.Owner != nil && ip.Spec.Owner.Name == "blue" {
					claimed = ip.Name
					return nil
				}
			}
			return errors.Join(err, errors.New("there is none"))
		})
		isOf(w, claimed, "retained", second.UID)
		// A claim that is deleted leaves its addresses under Never to the next one of its
		// name, but not to one of another tenant.
		endNamespace(w, "shop")
		isOf(w, kept, "free", "")
		isOf(w, claimed, "free", "")
	})
}

// A pool that does not admit a namespace any longer serves it no address that it
// gave it before, until it does again.
func TestKeptAddressOfANamespaceThatIsNotAdmitted(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.Start(t, virtual.Options{}, 2)
		w.Pool("web", "10.0.70.2-10.0.70.49", func(pool *v1alpha1.IPPool) {
			pool.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "web"}}
		})
		w.Pool("other", "10.0.70.50-10.0.70.59")
		w.LabelNamespace("team", "web")
		keeps := simulation.And(simulation.FromPools("web,other"), simulation.Policy(v1alpha1.ReleaseNever))
		w.Create(simulation.NewPod("a", simulation.And(simulation.FromPools("web"), simulation.Policy(v1alpha1.ReleaseNever))), simulation.NewPod("stays", simulation.FromPools("web")))
		kept, stays := w.Address("a"), w.Address("stays")
		w.Delete("a")
		w.Eventually("wait for the address to be retained", func() error {
			ip, err := w.Berth.FloatingIPs.Get(w.Ctx, kept, metav1.GetOptions{})
			if err == nil && ip.Spec.Pod != nil {
				err = errors.New("it is held")
			}
			return err
		})
		w.LabelNamespace("team", "db")
		w.Create(simulation.NewPod("a", keeps))
		w.Refused("a", fmt.Sprintf(`address %s is retained for Pod default/a, but pool "web" (10.0.70.2-10.0.70.49) does not admit namespace "default": its labels do not match spec.namespaceSelector (team=web)`, kept))
		if ip, err := w.Berth.FloatingIPs.Get(w.Ctx, stays, metav1.GetOptions{}); err != nil || ip.Spec.Pod == nil || ip.Spec.Pod.Name != "stays" {
			t.Errorf("the pod that runs has lost its address: %v", err)
		}
		w.LabelNamespace("team", "web")
		if got := w.Address("a"); got != kept {
			t.Errorf("the pod has %s, want the %s that was kept for it", got, kept)
		}
		w.Invariants()
	})
}
