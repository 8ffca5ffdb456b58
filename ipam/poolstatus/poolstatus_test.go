// SPDX-License-Identifier: Apache-2.0

package poolstatus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

func pool(name string, age int64, ranges ...string) *v1alpha1.IPPool {
	return &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 3, ResourceVersion: "1", CreationTimestamp: metav1.Unix(age, 0)},
		Spec:       v1alpha1.IPPoolSpec{Subnet: "10.0.0.0/24", Ranges: ranges},
	}
}

// ip returns an address that is "held", "retained", "reserved" or "cooling".
func ip(address, pool, state string) *v1alpha1.FloatingIP {
	object := &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: address, UID: types.UID(address)},
		Spec:       v1alpha1.FloatingIPSpec{Address: address, Pool: pool, Owner: &v1alpha1.Owner{Kind: "Deployment", Namespace: "shop", Name: "d"}},
	}
	switch state {
	case "held":
		object.Spec.Pod = &v1alpha1.PodReference{Name: "p", UID: "u"}
	case "reserved":
		object.Spec.Owner, object.Spec.Reserved = nil, true
	case "cooling":
		object.Spec.Owner, object.Spec.ReleasedAt = nil, &metav1.Time{}
	}
	return object
}

func TestCompute(t *testing.T) {
	disabled := pool("disabled", 5, "10.0.0.200-10.0.0.203")
	disabled.Spec.Disabled = true
	drained := pool("drained", 6, "10.0.0.210")
	drained.Spec.Disabled = true
	objects := []*v1alpha1.IPPool{
		pool("web", 1, "10.0.0.10-10.0.0.15"),
		pool("full", 2, "10.0.0.20-10.0.0.22"),
		pool("late", 3, "10.0.0.15-10.0.0.17"),
		pool("bad", 4, "2001:db8::2-2001:db8::1"),
		disabled, drained,
	}
	ips := []*v1alpha1.FloatingIP{
		ip("10.0.0.10", "web", "held"), ip("10.0.0.11", "web", "retained"), ip("10.0.0.12", "web", "reserved"), ip("10.0.0.13", "web", "cooling"),
		ip("10.0.0.99", "web", "held"),
		ip("10.0.0.20", "full", "held"), ip("10.0.0.21", "full", "held"), ip("10.0.0.22", "full", "cooling"),
		// Given by "late" before "web" was created again: counted where it is at home.
		ip("10.0.0.15", "late", "held"),
		ip("10.0.0.98", "bad", "held"),
		ip("10.0.0.200", "disabled", "held"), ip("10.0.0.97", "disabled", "retained"),
		ip("10.0.0.210", "drained", "held"),
		ip("10.0.0.96", "gone", "held"), ip("10.0.0.95", "gone", "cooling"), ip("10.0.0.94", "", "reserved"),
	}
	snapshot := pools.Compile(objects)
	tally := count(objects, snapshot, ips)
	got := map[string]string{}
	for i, status := range compute(objects, make([]v1alpha1.IPPoolStatus, len(objects)), snapshot, tally, metav1.Unix(9, 0)) {
		ready := meta.FindStatusCondition(status.Conditions, v1alpha1.PoolReady)
		exhausted := meta.FindStatusCondition(status.Conditions, v1alpha1.PoolExhausted)
		got[objects[i].Name] = fmt.Sprintf("%d = %d+%d+%d+%d+%d, outside %d, ready %s %s, exhausted %s %s, generation %d",
			status.Capacity, status.Allocated, status.Retained, status.Reserved, status.Cooling, status.Free, status.Outside,
			ready.Status, ready.Reason, exhausted.Status, exhausted.Reason, status.ObservedGeneration)
	}
	want := map[string]string{
		"web":      "6 = 2+1+1+1+1, outside 1, ready True Valid, exhausted False AddressesFree, generation 3",
		"full":     "3 = 2+0+0+1+0, outside 0, ready True Valid, exhausted True NoAddressFree, generation 3",
		"late":     "2 = 0+0+0+0+2, outside 0, ready True Overlap, exhausted False AddressesFree, generation 3",
		"bad":      "0 = 0+0+0+0+0, outside 1, ready False Invalid, exhausted True NoAddressFree, generation 3",
		"disabled": "4 = 1+0+0+0+0, outside 1, ready False Disabled, exhausted False Disabled, generation 3",
		"drained":  "1 = 1+0+0+0+0, outside 0, ready False Disabled, exhausted True NoAddressFree, generation 3",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]int64{"gone": 2}, tally.gone); diff != "" {
		t.Error(diff)
	}
	if len(tally.orphans) != 1 || tally.orphans[0].Name != "10.0.0.96" {
		t.Errorf("orphans are %v", tally.orphans)
	}
}

// Where a pool has a cap, its status says who has most, and how many have all that
// they may; without one it says nothing.
func TestNamespaces(t *testing.T) {
	capped, open := pool("capped", 1, "10.0.0.10-10.0.0.99"), pool("open", 2, "10.0.0.100-10.0.0.199")
	capped.Spec.MaxPerNamespace = 3
	objects := []*v1alpha1.IPPool{capped, open}
	var ips []*v1alpha1.FloatingIP
	next := 10
	give := func(namespace string, states ...string) {
		for _, state := range states {
			for pool, first := range map[string]int{"capped": 0, "open": 90} {
				object := ip(fmt.Sprintf("10.0.0.%d", first+next), pool, state)
				if object.Spec.Owner != nil {
					object.Spec.Owner.Namespace = namespace
				}
				ips = append(ips, object)
			}
			next++
		}
	}
	give("full", "held", "retained", "retained")
	give("over", "held", "held", "held", "held")
	give("", "reserved", "cooling")
	for i := range 12 {
		give(fmt.Sprintf("small-%02d", i), "held")
	}
	snapshot := pools.Compile(objects)
	statuses := compute(objects, make([]v1alpha1.IPPoolStatus, 2), snapshot, count(objects, snapshot, ips), metav1.Unix(9, 0))
	want := []v1alpha1.NamespaceShare{{Name: "over", Allocated: 4}, {Name: "full", Allocated: 1, Retained: 2}}
	for i := range mostNamespaces - 2 {
		want = append(want, v1alpha1.NamespaceShare{Name: fmt.Sprintf("small-%02d", i), Allocated: 1})
	}
	if diff := cmp.Diff(want, statuses[0].Namespaces); diff != "" {
		t.Error(diff)
	}
	if n := statuses[0].NamespacesAtCap; n != 2 {
		t.Errorf("%d namespaces are at the cap, want 2", n)
	}
	if statuses[1].Namespaces != nil || statuses[1].NamespacesAtCap != 0 {
		t.Errorf("a pool without a cap shows %v", statuses[1].Namespaces)
	}
}

// A cap that is lifted takes what was shown away: by a merge patch, which leaves
// what it does not name.
func TestNamespacesAreTakenBack(t *testing.T) {
	w := newWorld()
	capped := pool("a", 1, "10.0.0.1-10.0.0.5")
	capped.Spec.MaxPerNamespace = 1
	_ = w.pools.Add(capped)
	held := ip("10.0.0.1", "a", "held")
	held.Spec.Owner.Namespace = "shop"
	_ = w.ips.Add(held)
	patched := func() *v1alpha1.IPPool {
		t.Helper()
		if err := w.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		return w.last
	}
	now := patched()
	if len(now.Status.Namespaces) != 1 || now.Status.NamespacesAtCap != 1 {
		t.Fatalf("the status is %+v", now.Status)
	}
	now = now.DeepCopy()
	now.Spec.MaxPerNamespace = 0
	now.Generation++
	_ = w.pools.Update(now)
	w.Writer.pools.Changed(nil, nil)
	if now = patched(); len(now.Status.Namespaces) != 0 || now.Status.NamespacesAtCap != 0 {
		t.Errorf("without a cap the status is %+v", now.Status)
	}
}

func TestChanges(t *testing.T) {
	status := func(ready, message, exhausted string, outside, capacity int64) *v1alpha1.IPPoolStatus {
		return &v1alpha1.IPPoolStatus{Outside: outside, Capacity: capacity, Conditions: []metav1.Condition{
			{Type: v1alpha1.PoolReady, Reason: ready, Message: message},
			{Type: v1alpha1.PoolExhausted, Status: metav1.ConditionStatus(exhausted)},
		}}
	}
	usual := status(ReasonValid, "", "False", 0, 9)
	tests := []struct {
		name          string
		before, after *v1alpha1.IPPoolStatus
		want          []string
	}{
		{"new and usable", &v1alpha1.IPPoolStatus{}, usual, nil},
		{"new and full", &v1alpha1.IPPoolStatus{}, status(ReasonValid, "", "True", 0, 9), []string{"Warning Exhausted"}},
		{"new and invalid", &v1alpha1.IPPoolStatus{}, status(ReasonInvalid, "why", "True", 0, 0), []string{"Warning Invalid"}},
		{"nothing", usual, usual, nil},
		{"exhausted", usual, status(ReasonValid, "", "True", 0, 9), []string{"Warning Exhausted"}},
		{"still exhausted", status(ReasonValid, "", "True", 0, 9), status(ReasonValid, "", "True", 0, 9), nil},
		{"no longer exhausted", status(ReasonValid, "", "True", 0, 9), usual, []string{"Normal AddressesFree"}},
		{"overlap", usual, status(ReasonOverlap, "a", "False", 0, 9), []string{"Warning Overlap"}},
		{"another overlap", status(ReasonOverlap, "a", "False", 0, 9), status(ReasonOverlap, "b", "False", 0, 9), []string{"Warning Overlap"}},
		{"overlap ends", status(ReasonOverlap, "a", "False", 0, 9), usual, nil},
		{"shrunk", usual, status(ReasonValid, "", "False", 2, 9), []string{"Warning AddressesOutside"}},
		{"shrunk more", status(ReasonValid, "", "False", 2, 9), status(ReasonValid, "", "False", 3, 9), nil},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, e := range changes(tc.before, tc.after) {
				got = append(got, e.Type+" "+e.Reason)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// world is a Writer with the API server and the events it writes.
type world struct {
	*Writer
	pools, ips cache.Store
	patches    []string
	events     []string
	fail       error
	last       *v1alpha1.IPPool // that was patched
}

func newWorld() *world {
	w := &world{pools: cache.NewStore(cache.MetaNamespaceKeyFunc), ips: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	metrics := NewMetrics()
	w.Writer = &Writer{
		patcher: w, recorder: w, metrics: metrics, ips: w.ips,
		pools: pools.NewSource(func() []*v1alpha1.IPPool {
			var objects []*v1alpha1.IPPool
			for _, object := range w.pools.List() {
				objects = append(objects, object.(*v1alpha1.IPPool))
			}
			return objects
		}),
		dirty: make(chan struct{}, 1), clock: clocktesting.NewFakeClock(metav1.Unix(100, 0).Time),
		written: map[string]written{}, orphans: map[types.UID]bool{},
	}
	return w
}

// Patch is the API server's; the watch brings nothing of it until sync.
func (w *world) Patch(_ context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*v1alpha1.IPPool, error) {
	if w.fail != nil {
		return nil, w.fail
	}
	w.patches = append(w.patches, name)
	object, _, _ := w.pools.GetByKey(name)
	updated := object.(*v1alpha1.IPPool).DeepCopy()
	if err := json.Unmarshal(data, updated); err != nil {
		return nil, err
	}
	version, _ := strconv.Atoi(updated.ResourceVersion)
	updated.ResourceVersion = strconv.Itoa(version + 1)
	w.last = updated
	return updated, nil
}

func (w *world) Eventf(regarding, _ runtime.Object, kind, reason, _, note string, args ...any) {
	w.events = append(w.events, fmt.Sprintf("%s %s %s", regarding.(metav1.Object).GetName(), kind, reason))
	if text := fmt.Sprintf(note, args...); strings.Contains(text, "%!") {
		w.events = append(w.events, "malformed: "+text)
	}
}

// take returns the patches and events since the last call.
func (w *world) take() []string {
	all := slices.Concat(w.patches, w.events)
	w.patches, w.events = nil, nil
	slices.Sort(all)
	return all
}

func TestRound(t *testing.T) {
	w := newWorld()
	check := func(what string, want ...string) {
		t.Helper()
		if err := w.round(t.Context()); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if diff := cmp.Diff(want, w.take()); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	_ = w.pools.Add(pool("a", 1, "10.0.0.1-10.0.0.2"))
	_ = w.pools.Add(pool("b", 2, "10.0.0.11"))
	check("two pools", "a", "b")
	check("nothing changed, and the watch is behind")
	_ = w.ips.Add(ip("10.0.0.11", "b", "held"))
	check("b is full", "b", "b Warning Exhausted")
	check("the watch is still behind")
	_ = w.ips.Delete(ip("10.0.0.11", "b", ""))
	check("b has room", "b", "b Normal AddressesFree")

	_ = w.ips.Add(ip("10.0.0.1", "a", "held"))
	_ = w.ips.Add(ip("10.0.0.11", "b", "reserved"))
	check("both have some", "a", "b", "b Warning Exhausted")
	_ = w.pools.Delete(pool("a", 1))
	w.Writer.pools.Changed(nil, nil)
	check("a is gone: once may be a slow watch")
	check("a is gone", "10.0.0.1 Warning PoolGone")
	check("it was told")
	_ = w.pools.Add(pool("c", 3, "10.0.0.1"))
	w.Writer.pools.Changed(nil, nil)
	check("another pool contains it", "c", "c Warning Exhausted")
}

// A pool deleted since the snapshot was compiled must not confuse.
func TestRoundBetweenTwoSnapshots(t *testing.T) {
	w := newWorld()
	_ = w.pools.Add(pool("a", 1, "10.0.0.1"))
	_ = w.ips.Add(ip("10.0.0.1", "a", "held"))
	if err := w.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.take()
	_ = w.pools.Delete(pool("a", 1))
	if err := w.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := w.take(); got != nil {
		t.Errorf("it wrote %v", got)
	}
}

func TestRoundFails(t *testing.T) {
	w := newWorld()
	w.fail = errors.New("not now")
	for i := range 2 * mostErrors {
		_ = w.pools.Add(pool(fmt.Sprintf("p%d", i), 1, "10.0.0.1"))
	}
	err := w.round(t.Context())
	if n := strings.Count(fmt.Sprint(err), "not now"); n != mostErrors {
		t.Errorf("it tried %d pools, want %d: %v", n, mostErrors, err)
	}
	w.fail = nil
	if err := w.round(t.Context()); err != nil || len(w.patches) != 2*mostErrors {
		t.Errorf("afterwards it wrote %d pools: %v", len(w.patches), err)
	}
}

func TestMetrics(t *testing.T) {
	w := newWorld()
	registry := metrics.NewKubeRegistry()
	registry.CustomMustRegister(w.metrics)
	compare := func(what, want string) {
		t.Helper()
		gathered, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, family := range gathered {
			for _, m := range family.GetMetric() {
				var labels []string
				for _, l := range m.GetLabel() {
					labels = append(labels, l.GetValue())
				}
				got = append(got, fmt.Sprintf("%s{%s} %v", family.GetName(), strings.Join(labels, ","), m.GetGauge().GetValue()))
			}
		}
		if diff := cmp.Diff(strings.Fields(strings.TrimSpace(want)), strings.Fields(strings.Join(got, "\n"))); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	compare("before the first round", "")
	full := pool("a", 1, "10.0.0.1-10.0.0.5")
	full.Spec.MaxPerNamespace = 2
	_ = w.pools.Add(full)
	for address, state := range map[string]string{"10.0.0.1": "held", "10.0.0.2": "retained", "10.0.0.3": "reserved", "10.0.0.4": "cooling", "10.0.0.9": "held"} {
		_ = w.ips.Add(ip(address, "a", state))
	}
	_ = w.ips.Add(ip("10.0.0.77", "gone", "held"))
	if err := w.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	compare("one pool", `
berth_pool_addresses{a,allocated} 1
berth_pool_addresses{a,cooling} 1
berth_pool_addresses{a,free} 1
berth_pool_addresses{a,reserved} 1
berth_pool_addresses{a,retained} 1
berth_pool_capacity{a} 5
berth_pool_namespace_addresses{shop,a,allocated} 1
berth_pool_namespace_addresses{shop,a,retained} 1
berth_pool_namespace_cap{a} 2
berth_pool_namespaces_at_cap{a} 1
berth_pool_outside_addresses{a} 1
berth_pool_outside_addresses{gone} 1`)
	_ = w.pools.Delete(full)
	_ = w.ips.Replace(nil, "")
	w.Writer.pools.Changed(nil, nil)
	if err := w.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	compare("all are gone", "")
}

// The largest cluster that is meant to work.
func BenchmarkRound(b *testing.B) {
	const pools, each = 10_000, 15
	w := newWorld()
	for i := range pools {
		p := pool(fmt.Sprintf("pool-%d", i), int64(i))
		p.Spec.Subnet = fmt.Sprintf("10.%d.%d.0/24", i/256, i%256)
		p.Spec.Ranges = []string{fmt.Sprintf("10.%d.%d.1-10.%d.%d.100", i/256, i%256, i/256, i%256)}
		_ = w.pools.Add(p)
		for j := range each {
			_ = w.ips.Add(ip(fmt.Sprintf("10.%d.%d.%d", i/256, i%256, j+1), p.Name, "held"))
		}
	}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			w.Writer.pools.Changed(nil, nil)
			w.written = map[string]written{}
			if err := w.round(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("unchanged", func(b *testing.B) {
		for b.Loop() {
			if err := w.round(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("scrape", func(b *testing.B) {
		registry := metrics.NewKubeRegistry()
		registry.CustomMustRegister(w.metrics)
		for b.Loop() {
			if _, err := registry.Gather(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
