// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/proxy"
	"github.com/berth-dev/berth/test/simulation/virtual"
)

// A pod that asks gets an address, and all that a node needs to wire it is in
// the FloatingIP.
func TestPodGetsAddress(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.WithNodes(t, virtual.Options{}, 3)
		w.Scheduler(simulation.SchedulerOptions{})
		w.Pool("web", "10.0.70.2-10.0.70.9", func(pool *v1alpha1.IPPool) { pool.Spec.VLAN = 70 })
		pods := simulation.NewPods("web", 8)
		w.Create(pods...)

		seen := map[string]bool{}
		in, err := w.Kube.CoreV1().Namespaces().Get(w.Ctx, simulation.Namespace, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, pod := range w.Bound(simulation.NamesOf(pods)...) {
			name := pod.Annotations[v1alpha1.AnnotationFloatingIPs]
			ip, err := w.Berth.FloatingIPs.Get(w.Ctx, name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			want := v1alpha1.FloatingIPSpec{
				Address: name, Pool: "web", Node: pod.Spec.NodeName, ReleasePolicy: v1alpha1.ReleasePodDeleted,
				Network: &v1alpha1.Network{Subnet: "10.0.70.0/24", Gateway: "10.0.70.1", VLAN: 70},
				Owner:   &v1alpha1.Owner{APIVersion: "v1", Kind: "Pod", Namespace: simulation.Namespace, NamespaceUID: in.UID, Name: pod.Name, UID: pod.UID, PodName: pod.Name},
				Pod:     &v1alpha1.PodReference{Name: pod.Name, UID: pod.UID},
			}
			if diff := cmp.Diff(want, ip.Spec, cmpopts.IgnoreFields(v1alpha1.FloatingIPSpec{}, "Since")); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
			if ip.Spec.Since == nil {
				t.Errorf("%s does not say since when", name)
			}
			seen[name] = true
		}
		if len(seen) != len(pods) {
			t.Errorf("%d pods have %d addresses: %v", len(pods), len(seen), seen)
		}
		w.Invariants()
	})
}

// The profiles of one scheduler share one book: none gives an address that
// another has given, so that no claim is refused.
func TestTwoProfiles(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.WithNodes(t, virtual.Options{}, 3)
		scheduler := w.Scheduler(simulation.SchedulerOptions{Profiles: []string{"other"}})
		w.Pool("web", "10.0.70.2-10.0.70.61")
		other := func(pod *v1.Pod) { pod.Spec.SchedulerName = "other" }
		for i := range 30 {
			w.Create(simulation.NewPod(fmt.Sprintf("web-%d", i)), simulation.NewPod(fmt.Sprintf("other-%d", i), other))
		}
		w.Eventually("wait for all pods to be bound", func() error { return w.CountBound(60) })
		w.Invariants()
		if refused := scheduler.Seen(func(c proxy.Call) bool { return c.Path == proxy.FloatingIPs && c.Code == http.StatusConflict }); len(refused) > 0 {
			t.Errorf("%d claims were refused", len(refused))
		}
	})
}

// A pod that finds no address says so where its author looks, and starts the
// moment an address is free.
func TestExhaustedPool(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.Start(t, virtual.Options{}, 3)
		w.Pool("web", "10.0.70.2-10.0.70.9")
		pods := simulation.NewPods("web", 8)
		w.Create(pods...)
		w.Bound(simulation.NamesOf(pods)...)

		w.Create(simulation.NewPod("late"))
		const want = `0/3 nodes are available: 3 node(s) without an address for the pod: pool "web" (10.0.70.2-10.0.70.9) has no free address (8 in use, 0 retained)`
		w.Refused("late", want)
		w.Eventually("wait for the event", func() error {
			return w.EventOf("late", "FailedScheduling", want)
		})

		freed := w.Get("web-3").Annotations[v1alpha1.AnnotationFloatingIPs]
		w.Delete("web-3")
		if got := w.Address("late"); got != freed {
			t.Errorf("the pod got %s, the only free address was %s", got, freed)
		}
		w.Invariants()
	})
}

// An address comes free by other ways than a pod's deletion; each starts the pod
// that waits.
func TestWaitingPodStarts(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.Start(t, virtual.Options{}, 3)
		tests := []struct {
			name string
			// before makes pod "late" of the case's pool wait; help ends that.
			before, help func(w *simulation.World, pool string)
		}{
			{
				name:   "the pool is made later",
				before: func(*simulation.World, string) {},
				help:   func(w *simulation.World, pool string) { w.Pool(pool, "10.0.70.20") },
			},
			{
				name:   "ranges are added",
				before: func(w *simulation.World, pool string) { w.Pool(pool, "10.0.70.30"); w.Occupy(pool) },
				help: func(w *simulation.World, pool string) {
					w.PatchPool(pool, `{"spec":{"ranges":["10.0.70.30","10.0.70.31"]}}`)
				},
			},
			{
				name: "the pool is enabled",
				before: func(w *simulation.World, pool string) {
					w.Pool(pool, "10.0.70.40", func(p *v1alpha1.IPPool) { p.Spec.Disabled = true })
				},
				help: func(w *simulation.World, pool string) { w.PatchPool(pool, `{"spec":{"disabled":false}}`) },
			},
			{
				name:   "the holder finishes",
				before: func(w *simulation.World, pool string) { w.Pool(pool, "10.0.70.50"); w.Occupy(pool) },
				help: func(w *simulation.World, pool string) {
					if err := w.SetPhase(w.Get(pool+"-first"), v1.PodSucceeded); err != nil {
						w.T.Fatal(err)
					}
				},
			},
			{
				name:   "an administrator frees it",
				before: func(w *simulation.World, pool string) { w.Pool(pool, "10.0.70.60"); w.Reserve("10.0.70.60") },
				help: func(w *simulation.World, _ string) {
					if err := w.Berth.FloatingIPs.Delete(w.Ctx, "10.0.70.60", metav1.DeleteOptions{}); err != nil {
						w.T.Fatal(err)
					}
				},
			},
			{
				name: "a node that the pool serves joins",
				before: func(w *simulation.World, pool string) {
					w.Pool(pool, "10.0.70.70", func(p *v1alpha1.IPPool) {
						p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "7"}}
					})
				},
				help: func(w *simulation.World, _ string) { w.Label("node2", "rack", "7") },
			},
			{
				name: "the namespace is admitted",
				before: func(w *simulation.World, pool string) {
					w.Pool(pool, "10.0.70.80", func(p *v1alpha1.IPPool) {
						p.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "web"}}
					})
				},
				help: func(w *simulation.World, _ string) { w.LabelNamespace("team", "web") },
			},
		}
		for i, tc := range tests {
			pool := string(rune('a' + i))
			w.Case(tc.name, func(w *simulation.World) {
				tc.before(w, pool)
				w.Create(simulation.NewPod(pool+"-late", simulation.FromPools(pool)))
				w.T.Logf("waiting: %s", w.Refused(pool+"-late"))
				tc.help(w, pool)
				w.Bound(pool + "-late")
			})
		}
		w.Invariants()
	})
}
