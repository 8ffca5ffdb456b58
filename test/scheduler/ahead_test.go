// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
)

// ahead has the addresses of a pod's workload taken before any pod asks.
func ahead() func(*v1.Pod) { return annotated(v1alpha1.AnnotationPreallocate, "true") }

// scale changes a Deployment's replicas and waits until it is rolled out.
func (w *world) scale(name string, replicas int32) {
	w.t.Helper()
	w.patchDeployment(name, fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
	w.rolledOut(name, replicas)
}

// has waits until a workload has so many addresses, and returns them.
func (w *world) has(name string, n int) []string {
	w.t.Helper()
	var now []string
	w.eventually(fmt.Sprintf("wait for %d addresses of %s", n, name), func() error {
		if now = w.addressesOf(name); len(now) != n {
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
			w := newWorld(t, lab.ControlPlaneOptions{Controllers: true})
			w.nodes(3)
			w.kubelet(w.endLate())
			w.controller()
			w.pool("web", "10.0.70.2-10.0.70.60")
			// Before there is a scheduler no pod gets any.
			w.create3("web", ahead(), annotated(v1alpha1.AnnotationReleasePolicy, string(policy)))
			set := w.has("web", 4)
			w.eventually("wait for the event", func() error { return w.eventOf("web", "Preallocated", "All 4 addresses of the fixed set") })
			w.scheduler(schedulerOptions{})
			w.rolledOut("web", 3)
			for i := range 3 {
				w.onThe("web", set, fmt.Sprintf("%d updates", i))
				if now := w.addressesOf("web"); !slices.Equal(now, set) {
					t.Fatalf("after %d updates it has %v, it had %v", i, now, set)
				}
				w.restart("web", 3)
			}
			w.scale("web", 5)
			six := w.has("web", 6)
			for _, address := range set {
				if !slices.Contains(six, address) {
					t.Errorf("scaled up, it lost %s: %v", address, six)
				}
			}
			w.invariants()
			if policy == v1alpha1.ReleaseNever {
				return
			}
			w.scale("web", 2)
			three := w.has("web", 3)
			w.onThe("web", three, "scaling down")
			w.invariants()
		})
	}
}

// create3 makes a Deployment of three with maxUnavailable 0, which has one spare
// address.
func (w *world) create3(name string, options ...func(*v1.Pod)) {
	w.t.Helper()
	w.createDeployment(name, 3, strategy("1", "0"), options...)
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
			return []func(*v1.Pod){policy(v1alpha1.ReleaseNever), ahead()}
		case 1:
			return []func(*v1.Pod){policy(v1alpha1.ReleaseRetain), ahead(), annotated(v1alpha1.AnnotationKeepOnScaleDown, "true")}
		case 2:
			return []func(*v1.Pod){policy(v1alpha1.ReleaseRetain), ahead(), annotated(v1alpha1.AnnotationRetainFor, "1s")}
		}
		return []func(*v1.Pod){policy(v1alpha1.ReleaseRetain), ahead(), asking("2")}
	}
	for i := range n {
		w.create3(fmt.Sprintf("web%d", i), options(i)...)
	}
	for i := range n {
		name := fmt.Sprintf("web%d", i)
		w.rolledOut(name, 3)
		size := 4
		if i%4 == 3 {
			size = 8
		}
		set := w.has(name, size)
		w.onThe(name, set, "the first roll-out")
		w.restart(name, 3)
		w.has(name, size)
		if i%4 == 2 {
			w.onThe(name, set, "an update")
		}
	}
	w.invariants()
}

// What cannot be had is told on the Deployment, and taken when it can be had.
func TestFixedSetAheadFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{Controllers: true})
	w.nodes(2)
	w.kubelet()
	w.scheduler(schedulerOptions{})
	w.controller()
	w.pool("small", "10.0.70.2-10.0.70.3")
	retain := policy(v1alpha1.ReleaseRetain)
	w.create3("web", retain, ahead(), annotated(v1alpha1.AnnotationPools, "small"))
	w.eventually("wait for the event", func() error {
		return w.eventOf("web", "PreallocationFailed", "PoolsExhausted: ")
	})
	w.create3("lost", retain, ahead(), annotated(v1alpha1.AnnotationPools, "none"))
	w.eventually("wait for the event", func() error {
		return w.eventOf("lost", "PreallocationFailed", `NoSuchPool: 0 of 4 IPv4 addresses: there is no IPPool "none"`)
	})
	w.patchPool("small", `{"spec":{"ranges":["10.0.70.2-10.0.70.9"]}}`)
	w.has("web", 4)
	w.rolledOut("web", 3)
	w.eventually("wait for the event", func() error { return w.eventOf("web", "Preallocated", "All 4 addresses") })
	w.pool("none", "10.0.70.20-10.0.70.29")
	w.has("lost", 4)
	w.rolledOut("lost", 3)
	w.invariants()

	// Said wrongly, it is refused, on the pod and on the Deployment.
	w.create3("bare", ahead())
	w.eventually("wait for the event", func() error {
		return w.eventOf("bare", "PreallocationFailed", "no effect with release policy PodDeleted")
	})
	w.create(newPod("alone", retain, ahead()))
	if message := w.refused("alone"); !strings.Contains(message, "is for pods of Deployments and ReplicaSets") {
		t.Errorf("the pod is told %q", message)
	}
}
