// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
)

// What the controller says of pools.
func TestPoolStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(3)
	w.kubelet()
	w.scheduler(schedulerOptions{})
	w.controller()
	// In the order of their age, which decides where they overlap; times of
	// objects are in seconds, so names decide too.
	w.pool("a", "10.0.70.2-10.0.70.20", func(p *v1alpha1.IPPool) { p.Spec.Exclude = []string{"10.0.70.10"} })
	w.pool("b-overlap", "10.0.70.15-10.0.70.24")
	w.pool("c-full", "10.0.70.30")
	w.pool("d-disabled", "10.0.70.40-10.0.70.49", func(p *v1alpha1.IPPool) { p.Spec.Disabled = true })
	w.pool("e-backwards", "10.0.70.50", func(p *v1alpha1.IPPool) {
		p.Spec = v1alpha1.IPPoolSpec{Subnet: "2001:db8::/64", Ranges: []string{"2001:db8::20-2001:db8::10"}}
	})
	w.pool("f-huge", "10.0.70.50", func(p *v1alpha1.IPPool) {
		p.Spec = v1alpha1.IPPoolSpec{Subnet: "2001:db8:1::/64", Ranges: []string{"2001:db8:1::/64"}}
	})
	w.create(newPods("a", 2, fromPools("a"))...)
	w.create(newPod("a-kept", fromPools("a"), policy(v1alpha1.ReleaseNever)), newPod("full", fromPools("c-full")))
	w.bound("a-0", "a-1", "a-kept", "full")
	w.delete("a-kept")
	w.reserve("10.0.70.19")

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
		{"b-overlap", numbers{Capacity: 4, Free: 4}, condition{"True", "Overlap"}, condition{"False", "AddressesFree"}, `10.0.70.15-10.0.70.20 (pool "a")`},
		{"c-full", numbers{Capacity: 1, Allocated: 1}, condition{"True", "Valid"}, condition{"True", "NoAddressFree"}, ""},
		{"d-disabled", numbers{Capacity: 10}, condition{"False", "Disabled"}, condition{"False", "Disabled"}, "spec.disabled is true"},
		{"e-backwards", numbers{}, condition{"False", "Invalid"}, condition{"True", "NoAddressFree"}, "is backwards: write 2001:db8::10-2001:db8::20"},
		{"f-huge", numbers{Capacity: huge, Free: huge}, condition{"True", "Valid"}, condition{"False", "AddressesFree"}, ""},
	}
	check := func(w *world, name string, want numbers, ready, exhausted condition, message string) {
		w.t.Helper()
		w.eventually("wait for the status of "+name, func() error {
			pool, err := w.berth.IPPools.Get(w.ctx, name, metav1.GetOptions{})
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
				return diffError(diff)
			}
			if text := meta.FindStatusCondition(s.Conditions, "Ready").Message; !strings.Contains(text, message) {
				w.t.Errorf("%s says %q, want %q in it", name, text, message)
			}
			return nil
		})
	}
	for _, tc := range tests {
		t.Run(tc.pool, func(t *testing.T) {
			check(w.on(t), tc.pool, tc.numbers, tc.ready, tc.exhausted, tc.message)
		})
	}
	t.Run("ranges are taken away under addresses in use", func(t *testing.T) {
		w.on(t).patchPool("c-full", `{"spec":{"ranges":["10.0.70.31-10.0.70.32"]}}`)
		check(w.on(t), "c-full", numbers{Capacity: 2, Free: 2, Outside: 1}, condition{"True", "Valid"}, condition{"False", "AddressesFree"}, "")
	})
	t.Run("the older of two pools goes", func(t *testing.T) {
		w := w.on(t)
		if err := w.berth.IPPools.Delete(w.ctx, "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		check(w, "b-overlap", numbers{Capacity: 10, Reserved: 1, Free: 9}, condition{"True", "Valid"}, condition{"False", "AddressesFree"}, "")
	})
}
