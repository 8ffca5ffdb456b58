// SPDX-License-Identifier: Apache-2.0

package fixedset

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
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

// The addresses of a fixed set are there before any pod asks, spare ones included, and
// the pods stay on them.
func TestFixedSetAhead(t *testing.T) {
	t.Parallel()
	for _, policy := range []v1alpha1.ReleasePolicy{v1alpha1.ReleaseRetain, v1alpha1.ReleaseNever} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			w := simulation.New(t, lab.ControlPlaneOptions{Controllers: true})
			w.Nodes(3)
			w.LateKubelet()
			w.Controller()
			w.Pool("web", "10.0.70.2-10.0.70.60")
			// Before there is a scheduler no pod gets any.
			create3(w, "web", ahead(), simulation.Annotated(v1alpha1.AnnotationReleasePolicy, string(policy)))
			set := has(w, "web", 4)
			w.Eventually("wait for the event", func() error { return w.EventOf("web", "Preallocated", "All 4 addresses of the fixed set") })
			w.Scheduler(simulation.SchedulerOptions{})
			w.RolledOut("web", 3)
			for i := range 3 {
				onThe(w, "web", set, fmt.Sprintf("%d updates", i))
				if now := w.AddressesOf("web"); !slices.Equal(now, set) {
					t.Fatalf("after %d updates it has %v, it had %v", i, now, set)
				}
				restart(w, "web", 3)
			}
			scale(w, "web", 5)
			six := has(w, "web", 6)
			for _, address := range set {
				if !slices.Contains(six, address) {
					t.Errorf("scaled up, it lost %s: %v", address, six)
				}
			}
			w.Invariants()
			if policy == v1alpha1.ReleaseNever {
				return
			}
			scale(w, "web", 2)
			three := has(w, "web", 3)
			onThe(w, "web", three, "scaling down")
			w.Invariants()
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
// the end it has as many as its set, whatever keeps addresses otherwise.
func TestFixedSetAheadRaces(t *testing.T) {
	t.Parallel()
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
		size := 4
		if i%4 == 3 {
			size = 8
		}
		set := has(w, name, size)
		onThe(w, name, set, "the first roll-out")
		restart(w, name, 3)
		has(w, name, size)
		if i%4 == 2 {
			onThe(w, name, set, "an update")
		}
	}
	w.Invariants()
}

// What cannot be had is told on the Deployment, and taken when it can be had.
func TestFixedSetAheadFails(t *testing.T) {
	t.Parallel()
	w := simulation.Start(t, lab.ControlPlaneOptions{Controllers: true}, 2)
	w.Pool("small", "10.0.70.2-10.0.70.3")
	retain := simulation.Policy(v1alpha1.ReleaseRetain)
	create3(w, "web", retain, ahead(), simulation.Annotated(v1alpha1.AnnotationPools, "small"))
	w.Eventually("wait for the event", func() error {
		return w.EventOf("web", "PreallocationFailed", "PoolsExhausted: ")
	})
	create3(w, "lost", retain, ahead(), simulation.Annotated(v1alpha1.AnnotationPools, "none"))
	w.Eventually("wait for the event", func() error {
		return w.EventOf("lost", "PreallocationFailed", `NoSuchPool: 0 of 4 IPv4 addresses: there is no IPPool "none"`)
	})
	w.PatchPool("small", `{"spec":{"ranges":["10.0.70.2-10.0.70.9"]}}`)
	has(w, "web", 4)
	w.RolledOut("web", 3)
	w.Eventually("wait for the event", func() error { return w.EventOf("web", "Preallocated", "All 4 addresses") })
	w.Pool("none", "10.0.70.20-10.0.70.29")
	has(w, "lost", 4)
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
}
