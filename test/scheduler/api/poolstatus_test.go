// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// The controller writes the status of pools.
func TestPoolStatus(t *testing.T) {
	t.Parallel()
	w := simulation.Start(t, lab.ControlPlaneOptions{}, 3)
	// In the order of their age, which decides where they overlap; times of
	// objects are in seconds, so names decide too.
	w.Pool("a", "10.0.70.2-10.0.70.20", func(p *v1alpha1.IPPool) { p.Spec.Exclude = []string{"10.0.70.10"} })
	w.Pool("b-overlap", "10.0.70.15-10.0.70.24")
	w.Pool("c-full", "10.0.70.30")
	w.Pool("d-disabled", "10.0.70.40-10.0.70.49", func(p *v1alpha1.IPPool) { p.Spec.Disabled = true })
	w.Pool("e-backwards", "10.0.70.50", func(p *v1alpha1.IPPool) {
		p.Spec = v1alpha1.IPPoolSpec{Subnet: "2001:db8::/64", Ranges: []string{"2001:db8::20-2001:db8::10"}}
	})
	w.Pool("f-huge", "10.0.70.50", func(p *v1alpha1.IPPool) {
		p.Spec = v1alpha1.IPPoolSpec{Subnet: "2001:db8:1::/64", Ranges: []string{"2001:db8:1::/64"}}
	})
	w.Pool("g-far", "10.0.70.60", func(p *v1alpha1.IPPool) { p.Spec.NodeSubnets = []string{"10.9.0.0/16"} })
	w.Create(simulation.NewPods("a", 2, simulation.FromPools("a"))...)
	w.Create(simulation.NewPod("a-kept", simulation.FromPools("a"), simulation.Policy(v1alpha1.ReleaseNever)), simulation.NewPod("full", simulation.FromPools("c-full")))
	w.Bound("a-0", "a-1", "a-kept", "full")
	w.Delete("a-kept")
	w.Reserve("10.0.70.19")

	type numbers struct{ Capacity, Allocated, Retained, Reserved, Free, Outside int64 }
	type condition struct{ Status, Reason string }
	const huge = 1<<63 - 1
	tests := []struct {
		pool             string
		numbers          numbers
		ready, exhausted condition
		message          string // in Ready's
	}{
		{"a", numbers{18, 2, 1, 1, 14, 0}, condition{"True", "Valid"}, condition{"False", "AddressesFree"}, ""},
		{"b-overlap", numbers{Capacity: 4, Free: 4}, condition{"False", "Overlap"}, condition{"False", "AddressesFree"}, `10.0.70.15-10.0.70.20 (pool "a")`},
		{"c-full", numbers{Capacity: 1, Allocated: 1}, condition{"True", "Valid"}, condition{"True", "NoAddressFree"}, ""},
		{"d-disabled", numbers{Capacity: 10}, condition{"False", "Disabled"}, condition{"False", "Disabled"}, "spec.disabled is true"},
		{"e-backwards", numbers{}, condition{"False", "Invalid"}, condition{"True", "NoAddressFree"}, "is backwards: write 2001:db8::10-2001:db8::20"},
		{"g-far", numbers{Capacity: 1, Free: 1}, condition{"False", "NoNode"}, condition{"False", "AddressesFree"}, "No node of the cluster"},
		{"f-huge", numbers{Capacity: huge, Free: huge}, condition{"True", "Valid"}, condition{"False", "AddressesFree"}, ""},
	}
	check := func(w *simulation.World, name string, want numbers, ready, exhausted condition, message string) {
		w.T.Helper()
		w.Eventually("wait for the status of "+name, func() error {
			pool, err := w.Berth.IPPools.Get(w.Ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			s := pool.Status
			got := numbers{s.Capacity, s.Allocated, s.Retained, s.Reserved, s.Free, s.Outside}
			of := func(kind string) condition {
				if c := meta.FindStatusCondition(s.Conditions, kind); c != nil && c.ObservedGeneration == pool.Generation {
					return condition{string(c.Status), c.Reason}
				}
				return condition{}
			}
			type all struct {
				Numbers          numbers
				Ready, Exhausted condition
			}
			if diff := cmp.Diff(all{want, ready, exhausted}, all{got, of("Ready"), of("Exhausted")}); diff != "" {
				return simulation.DiffError(diff)
			}
			if text := meta.FindStatusCondition(s.Conditions, "Ready").Message; !strings.Contains(text, message) {
				w.T.Errorf("%s says %q, want %q in it", name, text, message)
			}
			return nil
		})
	}
	for _, tc := range tests {
		t.Run(tc.pool, func(t *testing.T) {
			check(w.On(t), tc.pool, tc.numbers, tc.ready, tc.exhausted, tc.message)
		})
	}
	t.Run("ranges are taken away under addresses in use", func(t *testing.T) {
		w.On(t).PatchPool("c-full", `{"spec":{"ranges":["10.0.70.31-10.0.70.32"]}}`)
		check(w.On(t), "c-full", numbers{Capacity: 2, Free: 2, Outside: 1}, condition{"True", "Valid"}, condition{"False", "AddressesFree"}, "")
	})
	t.Run("the older of two pools goes", func(t *testing.T) {
		w := w.On(t)
		w.Unbind("ippools.berth.dev")
		w.Eventually("delete a pool in use", func() error { return w.Berth.IPPools.Delete(w.Ctx, "a", metav1.DeleteOptions{}) })
		check(w, "b-overlap", numbers{Capacity: 10, Reserved: 1, Free: 9}, condition{"True", "Valid"}, condition{"False", "AddressesFree"}, "")
	})
}

// A pool that goes on changing is written, and so sent to all that watch pools, ever more rarely.
func TestPoolStatusIsWrittenRarely(t *testing.T) {
	t.Parallel()
	w := simulation.Start(t, lab.ControlPlaneOptions{}, 1)
	w.Pool("busy", "10.0.70.2-10.0.70.250")
	reserved := func() int64 {
		pool, err := w.Berth.IPPools.Get(w.Ctx, "busy", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return pool.Status.Reserved
	}
	watched, err := w.Berth.IPPools.Watch(w.Ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watched.Stop()
	pods := time.NewTicker(100 * time.Millisecond) // of a busy pool
	defer pods.Stop()
	began, n := time.Now(), 0
	for ; n < 200 && time.Since(began) < 20*time.Second; n++ {
		w.Reserve(fmt.Sprintf("10.0.70.%d", n+2))
		<-pods.C
	}
	w.Eventually("wait for the last write", func() error {
		if got := reserved(); got != int64(n) {
			return fmt.Errorf("the status counts %d of %d addresses", got, n)
		}
		return nil
	})
	// The creation, two writes before the first of the pauses of 1, 2, 4, … seconds at most, and one
	// after each.
	most := 3
	for pauses := time.Second; pauses < time.Since(began); pauses = 2*pauses + time.Second {
		most++
	}
	events := 0
	for event := range watched.ResultChan() {
		if events++; event.Object.(*v1alpha1.IPPool).Status.Reserved == int64(n) {
			break
		}
	}
	t.Logf("%d addresses in %s: %d events, at most %d", n, time.Since(began), events, most)
	if events > most {
		t.Errorf("%d events of the pool while %d addresses were taken in %s, want %d at most", events, n, time.Since(began), most)
	}
}
