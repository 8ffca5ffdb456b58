// SPDX-License-Identifier: Apache-2.0

package fixedset

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/virtual"
)

// ahead has the addresses of a pod's workload taken before any pod asks.
func ahead() func(*v1.Pod) { return simulation.Annotated(v1alpha1.AnnotationPreallocate, "true") }

// scale changes a Deployment's replicas and waits until it is rolled out.
func scale(w *simulation.World, name string, replicas int32) {
	w.T.Helper()
	w.PatchDeployment(name, fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
	w.RolledOut(name, replicas)
}

// has waits until a workload has so many addresses, and returns them.
func has(w *simulation.World, name string, n int) []string {
	w.T.Helper()
	var now []string
	w.Eventually(fmt.Sprintf("wait for %d addresses of %s", n, name), func() error {
		if now = w.AddressesOf(name); len(now) != n {
			return fmt.Errorf("it has %v", now)
		}
		return nil
	})
	return now
}

// grows waits until a workload has so many addresses, those before among them, and
// returns them.
func grows(w *simulation.World, name string, before []string, n int) []string {
	w.T.Helper()
	now := has(w, name, n)
	for _, address := range before {
		if !slices.Contains(now, address) {
			w.T.Errorf("%s lost %s: it has %v", name, address, now)
		}
	}
	return now
}

// The addresses for all replicas are there before any pod asks, the first update adds the
// spare one, and the pods stay on them.
func TestFixedSetAhead(t *testing.T) {
	t.Parallel()
	for _, policy := range []v1alpha1.ReleasePolicy{v1alpha1.ReleaseRetain, v1alpha1.ReleaseNever} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			virtual.Test(t, func(t *testing.T) {
				w := virtual.New(t, virtual.Options{Controllers: true})
				w.Nodes(3)
				w.LateKubelet()
				w.Controller()
				w.Pool("web", "10.0.70.2-10.0.70.60")
				// Before there is a scheduler no pod gets any.
				create3(w, "web", ahead(), simulation.Annotated(v1alpha1.AnnotationReleasePolicy, string(policy)))
				set := has(w, "web", 3)
				w.Eventually("wait for the event", func() error { return w.EventOf("web", "Preallocated", "All 3 addresses of the replicas") })
				w.Scheduler(simulation.SchedulerOptions{})
				w.RolledOut("web", 3)
				for i := range 3 {
					onThe(w, "web", set, fmt.Sprintf("%d updates", i))
					if now := w.AddressesOf("web"); !slices.Equal(now, set) {
						t.Fatalf("after %d updates it has %v, it had %v", i, now, set)
					}
					restart(w, "web", 3)
					set = grows(w, "web", set, 4)
				}
				scale(w, "web", 5)
				grows(w, "web", set, 5)
				w.Invariants()
				if policy == v1alpha1.ReleaseNever {
					return
				}
				scale(w, "web", 2)
				three := has(w, "web", 3)
				onThe(w, "web", three, "scaling down")
				w.Invariants()
			})
		})
	}
}

// create3 makes a Deployment of three with maxUnavailable 0, which has one spare
// address.
func create3(w *simulation.World, name string, options ...func(*v1.Pod)) {
	w.T.Helper()
	w.CreateDeployment(name, 3, strategy("1", "0"), options...)
}

// The scheduler and the controller take addresses for one Deployment at once, and in
// the end it has one for each replica, and after an update as many as its set, whatever
// keeps addresses otherwise.
func TestFixedSetAheadRaces(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := newDeploymentWorld(t, "10.0.70.2-10.0.70.250")
		const n = 8
		options := func(i int) []func(*v1.Pod) {
			switch i % 4 {
			case 0:
				return []func(*v1.Pod){simulation.Policy(v1alpha1.ReleaseNever), ahead()}
			case 1:
				return []func(*v1.Pod){simulation.Policy(v1alpha1.ReleaseRetain), ahead(), simulation.Annotated(v1alpha1.AnnotationKeepOnScaleDown, "true")}
			case 2:
				return []func(*v1.Pod){simulation.Policy(v1alpha1.ReleaseRetain), ahead(), simulation.Annotated(v1alpha1.AnnotationRetainFor, "1s")}
			}
			return []func(*v1.Pod){simulation.Policy(v1alpha1.ReleaseRetain), ahead(), simulation.Asking("2")}
		}
		for i := range n {
			create3(w, fmt.Sprintf("web%d", i), options(i)...)
		}
		for i := range n {
			name := fmt.Sprintf("web%d", i)
			w.RolledOut(name, 3)
			each := 1
			if i%4 == 3 {
				each = 2
			}
			set := has(w, name, 3*each)
			onThe(w, name, set, "the first roll-out")
			restart(w, name, 3)
			set = grows(w, name, set, 4*each)
			restart(w, name, 3)
			has(w, name, 4*each)
			if i%4 == 2 {
				onThe(w, name, set, "an update")
			}
		}
		w.Invariants()
	})
}

// The Deployment's event says which addresses it cannot have. It gets them once they are free.
func TestFixedSetAheadFails(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.New(t, virtual.Options{Controllers: true})
		w.Start(2)
		w.Pool("small", "10.0.70.2-10.0.70.3")
		retain := simulation.Policy(v1alpha1.ReleaseRetain)
		create3(w, "web", retain, ahead(), simulation.Annotated(v1alpha1.AnnotationPools, "small"))
		w.Eventually("wait for the event", func() error {
			return w.EventOf("web", "PreallocationFailed", "PoolsExhausted: ")
		})
		create3(w, "lost", retain, ahead(), simulation.Annotated(v1alpha1.AnnotationPools, "none"))
		w.Eventually("wait for the event", func() error {
			return w.EventOf("lost", "PreallocationFailed", `NoSuchPool: 0 of 3 IPv4 addresses: there is no IPPool "none"`)
		})
		w.PatchPool("small", `{"spec":{"ranges":["10.0.70.2-10.0.70.9"]}}`)
		has(w, "web", 3)
		w.RolledOut("web", 3)
		w.Eventually("wait for the event", func() error { return w.EventOf("web", "Preallocated", "All 3 addresses") })
		w.Pool("none", "10.0.70.20-10.0.70.29")
		has(w, "lost", 3)
		w.RolledOut("lost", 3)
		w.Invariants()

		// Said wrongly, it is refused, on the pod and on the Deployment.
		create3(w, "bare", ahead())
		w.Eventually("wait for the event", func() error {
			return w.EventOf("bare", "PreallocationFailed", "no effect with release policy PodDeleted")
		})
		w.Create(simulation.NewPod("alone", retain, ahead()))
		if message := w.Refused("alone"); !strings.Contains(message, "is for pods of Deployments and ReplicaSets") {
			t.Errorf("the pod is told %q", message)
		}
	})
}

// Preallocation takes no address without a replica that wants it, and a namespace's quota
// bounds the rest.
func TestFixedSetAheadOfNothing(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		// Without Kubernetes' controllers no Deployment has a pod, as if all were paused.
		w := virtual.New(t, virtual.Options{})
		w.Pool("web", "10.0.70.2-10.0.70.82")
		quotas := w.Kube.CoreV1().ResourceQuotas(simulation.Namespace)
		if _, err := quotas.Create(w.Ctx, &v1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Name: "ips"},
			Spec:       v1.ResourceQuotaSpec{Hard: v1.ResourceList{"requests." + v1alpha1.ResourceIP: simulation.Quantity("1")}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.Controller()
		census := newCensus(w)
		spare := simulation.Annotated(v1alpha1.AnnotationSpareAddresses, "65535")
		for _, policy := range []v1alpha1.ReleasePolicy{v1alpha1.ReleaseRetain, v1alpha1.ReleaseNever} {
			w.CreateDeployment("none-"+strings.ToLower(string(policy)), 0, strategy("100%", "0"), simulation.Policy(policy), ahead(), spare)
		}
		w.CreateDeployment("many", 80, strategy("100%", "0"), simulation.Policy(v1alpha1.ReleaseRetain), ahead(), spare)
		w.Eventually("wait for the event", func() error {
			return w.EventOf("many", "PreallocationFailed", `NamespaceAtQuota: 1 of 80 IPv4 addresses: a ResourceQuota allows namespace "default" 1 addresses, and it has 1`)
		})
		has(w, "many", 1)
		w.Claim("claim", v1alpha1.IPClaimSpec{Size: 5, Preallocate: true})
		w.ClaimBecomes("claim", "0=0+0 NamespaceAtQuota", "0 of 5 IPv4 addresses")

		// A larger quota is used at once, by both, and no further.
		simulation.Patch(w, quotas, "ips", `{"spec":{"hard":{"requests.%s":"7"}}}`, v1alpha1.ResourceIP)
		w.Eventually("wait for the quota to be used", func() error {
			if n := len(w.AddressesOf("many")) + len(w.AddressesOf("claim")); n != 7 {
				return fmt.Errorf("they have %d addresses", n)
			}
			return nil
		})
		// Without the quota there are addresses for replicas, and no others.
		if err := quotas.Delete(w.Ctx, "ips", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.PatchDeployment("many", `{"spec":{"replicas":60}}`)
		has(w, "many", 60)
		w.ClaimBecomes("claim", "5=0+5 Preallocated")
		// Its preallocated addresses are not kept as spare ones.
		w.PatchDeployment("many", `{"spec":{"replicas":2}}`)
		has(w, "many", 2)
		w.PatchDeployment("many", `{"spec":{"replicas":0}}`)
		has(w, "many", 0)
		for _, name := range []string{"none-retain", "none-never"} {
			if most := census.mostOf(name); most > 0 {
				t.Errorf("%s, which wants no replica, had %d addresses", name, most)
			}
		}
		w.Invariants()
	})
}
