// SPDX-License-Identifier: Apache-2.0

package shaping

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLower(t *testing.T) {
	none, slow, fast := Limit{}, Limit{Rate: 10, Burst: 1}, Limit{Rate: 20, Burst: 2}
	for _, c := range [][3]Limit{{none, none, none}, {none, slow, slow}, {slow, none, slow}, {slow, fast, slow}, {fast, slow, slow}} {
		if got := Lower(c[0], c[1]); got != c[2] {
			t.Errorf("Lower(%v, %v) = %v, want %v", c[0], c[1], got, c[2])
		}
	}
}

func TestBurstAndQueue(t *testing.T) {
	for _, c := range []struct {
		limit        Limit
		burst, queue uint32
	}{
		{Limit{Rate: MinRate}, 125 * longestBurst, minQueue},
		{Limit{Rate: 20_000_000}, 125_000, 250_000},
		{Limit{Rate: 20_000_000, Burst: 5000}, 5000, 250_000},
		{Limit{Rate: 8000, Burst: MaxBurst}, 1000 * longestBurst, minQueue},
		{Limit{Rate: 100_000_000_000, Burst: MaxBurst}, MaxBurst, maxQueue},
		{Limit{Rate: MaxRate}, math.MaxUint32, maxQueue},
	} {
		if got := c.limit.burst(); got != c.burst {
			t.Errorf("burst of %+v is %d bytes, want %d", c.limit, got, c.burst)
		}
		if got := c.limit.queue(); got != c.queue {
			t.Errorf("queue of %+v is %d bytes, want %d", c.limit, got, c.queue)
		}
	}
}

func TestPlan(t *testing.T) {
	limit := Limit{Rate: 1000}
	group := &Group{Name: "g", Ingress: limit}
	p := planOf([]Pod{
		{ID: "b", Links: []string{"b1", "b2"}, Group: group, Egress: limit},
		{ID: "a", Links: []string{"a1"}, Group: group, Ingress: limit},
		{ID: "free", Links: []string{"f1"}},
		{ID: "off-node", Ingress: limit, Group: group},
	})
	shared, own := deviceName(ingress, "group", "g"), deviceName(egress, "pod", "b")
	members := map[string][]string{}
	for _, d := range p.devices {
		for _, m := range d.members {
			members[d.name] = append(members[d.name], m.pod)
		}
		if len(d.name) != 15 || !strings.HasPrefix(d.name, DevicePrefix) {
			t.Errorf("name %q", d.name)
		}
	}
	if diff := cmp.Diff(map[string][]string{shared: {"a", "b"}, own: {"b"}}, members); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
	want := map[string][]hook{
		"a":    {{"a1", ingress, shared}, {"a1", egress, ""}},
		"b":    {{"b1", ingress, shared}, {"b2", ingress, shared}, {"b1", egress, own}, {"b2", egress, own}},
		"free": {{"f1", ingress, ""}, {"f1", egress, ""}},
	}
	if diff := cmp.Diff(want, p.hooks, cmp.AllowUnexported(hook{})); diff != "" {
		t.Errorf("hooks (-want +got):\n%s", diff)
	}
}

// A class stays with its link, so that a sync changes nothing under traffic, and no two
// pods share one.
func TestClassesStay(t *testing.T) {
	on := func(id string, links ...string) member { return member{pod: id, links: links} }
	d := device{name: "bth-e", limit: Limit{Rate: 20_000_000}, shared: true, members: []member{on("a", "a1"), on("b", "b1", "b2")}}
	classes, of := d.classes(nil)
	if diff := cmp.Diff(map[string]uint16{"a1": 3, "b1": 4, "b2": 4}, of); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var sum uint64
	for _, c := range classes {
		if c.minor != minorShared {
			sum += c.rate
		}
	}
	if sum > d.limit.Rate {
		t.Errorf("the classes are guaranteed %d of %d bit/s", sum, d.limit.Rate)
	}
	d.members = []member{on("b", "b1", "b2"), on("c", "c1"), on("d", "d1")}
	_, of = d.classes(map[string]uint16{"a1": 3, "b1": 4, "b2": 4, "x": 5, "d1": minorDefault})
	if diff := cmp.Diff(map[string]uint16{"b1": 4, "b2": 4, "c1": 6, "d1": 7}, of); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// Links of two pods that lead to one class are told apart.
	_, of = d.classes(map[string]uint16{"b1": 4, "c1": 4})
	if minors := slices.Sorted(maps.Values(of)); len(slices.Compact(minors)) != 3 {
		t.Errorf("classes %v for three pods", of)
	}
	d.shared = false
	if classes, of = d.classes(nil); len(classes) != 1 || classes[0].minor != minorDefault || len(of) != 0 {
		t.Errorf("a device of one pod has %v, %v", classes, of)
	}
}
