// SPDX-License-Identifier: Apache-2.0

package poolstatus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-base/metrics"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/seedtest"
	"github.com/berth-dev/berth/ipam/view"
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
	case "resting":
		object.Spec.LastNode = &v1alpha1.NodeReference{Name: "node1", UID: "1"}
		fallthrough
	case "cooling":
		object.Spec.Owner, object.Spec.ReleasedAt = nil, &metav1.Time{Time: time.Unix(1, 0)}
	}
	return object
}

// oneNode are the nodes of a cluster with one.
var oneNode = []*v1.Node{{
	ObjectMeta: metav1.ObjectMeta{Name: "node1"},
	Status:     v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "10.0.1.1"}}},
}}

func TestCompute(t *testing.T) {
	disabled := pool("disabled", 5, "10.0.0.200-10.0.0.203")
	disabled.Spec.Disabled = true
	drained := pool("drained", 6, "10.0.0.210")
	drained.Spec.Disabled = true
	far := pool("far", 7, "10.0.0.220-10.0.0.221")
	far.Spec.NodeSubnets = []string{"10.9.0.0/16"}
	objects := []*v1alpha1.IPPool{
		pool("web", 1, "10.0.0.10-10.0.0.15"),
		pool("full", 2, "10.0.0.20-10.0.0.22"),
		pool("late", 3, "10.0.0.15-10.0.0.17"),
		pool("bad", 4, "2001:db8::2-2001:db8::1"),
		disabled, drained, far,
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
	for _, i := range []int{0, 1, 2, 3, 5} { // held, retained, reserved, cooling, held
		ips[i].Status.Conditions = []metav1.Condition{{Type: v1alpha1.FloatingIPConflict, Status: metav1.ConditionTrue}}
	}
	snapshot := pools.Compile(objects)
	tally := count(objects, snapshot, slices.Values(ips))
	if web, full := tally.pools["web"].conflicts, tally.pools["full"].conflicts; web != 1 || full != 1 {
		t.Errorf("%d and %d addresses with pods are in conflict, want 1 and 1", web, full)
	}
	if web, full := tally.pools["web"].avoided, tally.pools["full"].avoided; web != 1 || full != 0 {
		t.Errorf("%d and %d addresses cool down because of a conflict, want 1 and 0", web, full)
	}
	got := map[string]string{}
	for i, status := range compute(objects, make([]v1alpha1.IPPoolStatus, len(objects)), snapshot, snapshot.Reached(slices.Values(oneNode)), tally, metav1.Unix(9, 0)) {
		ready := meta.FindStatusCondition(status.Conditions, v1alpha1.PoolReady)
		exhausted := meta.FindStatusCondition(status.Conditions, v1alpha1.PoolExhausted)
		got[objects[i].Name] = fmt.Sprintf("%d = %d+%d+%d+%d+%d, outside %d, ready %s %s, exhausted %s %s, generation %d",
			status.Capacity, status.Allocated, status.Retained, status.Reserved, status.Cooling, status.Free, status.Outside,
			ready.Status, ready.Reason, exhausted.Status, exhausted.Reason, status.ObservedGeneration)
	}
	want := map[string]string{
		"web":      "6 = 2+1+1+1+1, outside 1, ready True Valid, exhausted False AddressesFree, generation 3",
		"full":     "3 = 2+0+0+1+0, outside 0, ready True Valid, exhausted True NoAddressFree, generation 3",
		"late":     "2 = 0+0+0+0+2, outside 0, ready False Overlap, exhausted False AddressesFree, generation 3",
		"bad":      "0 = 0+0+0+0+0, outside 1, ready False Invalid, exhausted True NoAddressFree, generation 3",
		"disabled": "4 = 1+0+0+0+0, outside 1, ready False Disabled, exhausted False Disabled, generation 3",
		"far":      "2 = 0+0+0+0+2, outside 0, ready False NoNode, exhausted False AddressesFree, generation 3",
		"drained":  "1 = 1+0+0+0+0, outside 0, ready False Disabled, exhausted True NoAddressFree, generation 3",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]int64{"gone": 2}, tally.gone); diff != "" {
		t.Error(diff)
	}
	if len(tally.orphans) != 1 || tally.orphans["10.0.0.96"] == nil {
		t.Errorf("orphans are %v", tally.orphans)
	}
}

// The condition lists the ranges that older pools keep, up to 16.
func TestOverlaps(t *testing.T) {
	for n, want := range map[int]string{
		1:  `10.0.0.1 (pool "old")`,
		16: `10.0.0.29 (pool "old"), 10.0.0.31 (pool "old")`,
		18: `10.0.0.31 (pool "old"), and 2 more ranges`,
	} {
		var ranges []string
		for i := range n {
			ranges = append(ranges, fmt.Sprintf("10.0.0.%d", 2*i+1))
		}
		objects := []*v1alpha1.IPPool{pool("old", 1, "10.0.0.0/24"), pool("new", 2, ranges...)}
		snapshot := pools.Compile(objects)
		statuses := compute(objects, make([]v1alpha1.IPPoolStatus, 2), snapshot, snapshot.Reached(slices.Values(oneNode)), count(objects, snapshot, slices.Values([]*v1alpha1.FloatingIP{})), metav1.Unix(9, 0))
		ready := meta.FindStatusCondition(statuses[1].Conditions, v1alpha1.PoolReady)
		if got := strings.Count(ready.Message, `(pool "old")`); got != min(n, 16) || !strings.HasSuffix(ready.Message, want+": remove them from one of the two.") {
			t.Errorf("%d ranges: %q lists %d, and ends otherwise than %q", n, ready.Message, got, want)
		}
	}
}

// Where a pool has a cap, its status names the namespaces with most addresses, and
// counts the ones at the cap; without one it says nothing.
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
	statuses := compute(objects, make([]v1alpha1.IPPoolStatus, 2), snapshot, snapshot.Reached(slices.Values(oneNode)), count(objects, snapshot, slices.Values(ips)), metav1.Unix(9, 0))
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

// A lifted cap removes its fields from the status: by a merge patch, which leaves
// fields that it does not name.
func TestNamespacesAreTakenBack(t *testing.T) {
	simulate(t, func(w *fixture) {
		capped := pool("a", 1, "10.0.0.1-10.0.0.5")
		capped.Spec.MaxPerNamespace = 1
		w.Put(capped, ip("10.0.0.1", "a", "held"))
		w.pass(2 * Interval)
		now := w.Pool("a")
		if len(now.Status.Namespaces) != 1 || now.Status.NamespacesAtCap != 1 {
			t.Fatalf("the status is %+v", now.Status)
		}
		now.Spec.MaxPerNamespace = 0
		w.Put(now)
		w.pass(2 * Interval)
		if now = w.Pool("a"); len(now.Status.Namespaces) != 0 || now.Status.NamespacesAtCap != 0 {
			t.Errorf("without a cap the status is %+v", now.Status)
		}
	})
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
		{"the same overlap", status(ReasonOverlap, "a", "False", 0, 9), status(ReasonOverlap, "a", "False", 0, 9), nil},
		{"no node", usual, status(ReasonNoNode, "a", "False", 0, 9), []string{"Warning NoNode"}},
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

// fixture is a Writer on an API server in memory, and the events it writes. Time is the
// test's own.
type fixture struct {
	*ipamtest.Server
	t        *testing.T
	kube     *fake.Clientset
	view     *view.View
	registry metrics.KubeRegistry

	mu     sync.Mutex
	events []string
	told   []time.Time // of each event
}

// simulate runs a test with a Writer, as long as the test lasts.
func simulate(t *testing.T, test func(w *fixture)) {
	t.Helper()
	simulateFrom(t, func(*fixture, *Writer) {}, test)
}

// simulateFrom is simulate with a test of the Writer before its Run.
func simulateFrom(t *testing.T, standby func(w *fixture, writer *Writer), test func(w *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &fixture{t: t, Server: ipamtest.NewServer(), registry: metrics.NewKubeRegistry()}
		var err error
		if w.view, err = view.New(w.Client(), 0); err != nil {
			t.Fatal(err)
		}
		numbers := NewMetrics()
		w.registry.CustomMustRegister(numbers)
		w.kube = fake.NewClientset(oneNode[0])
		factory := informers.NewSharedInformerFactory(w.kube, 0)
		writer, err := New(w.Client().IPPools, w.view, factory.Core().V1().Nodes(), w, numbers)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		factory.Start(ctx.Done())
		group.Go(func() { w.view.Run(ctx) })
		w.wantMetrics("before the first round", "")
		standby(w, writer)
		group.Go(func() { writer.Run(ctx) })
		w.pass(2 * Interval)
		test(w)
		cancel()
		factory.Shutdown()
		group.Wait()
	})
}

func nodesOf(kube *fake.Clientset) coreinformers.NodeInformer {
	return informers.NewSharedInformerFactory(kube, 0).Core().V1().Nodes()
}

// pass lets time pass until nothing happens any more.
func (w *fixture) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (w *fixture) Eventf(regarding, _ runtime.Object, kind, reason, _, note string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, time.Now())
	w.events = append(w.events, fmt.Sprintf("%s %s %s", regarding.(metav1.Object).GetName(), kind, reason))
	if text := fmt.Sprintf(note, args...); strings.Contains(text, "%!") {
		w.events = append(w.events, "malformed: "+text)
	}
}

// want lets time pass, and compares the pools whose status was written and the events
// since its last call, sorted.
func (w *fixture) want(what string, d time.Duration, want ...string) {
	w.t.Helper()
	w.pass(d)
	w.mu.Lock()
	defer w.mu.Unlock()
	got := w.events
	w.events = nil
	for _, write := range w.Writes() {
		got = append(got, strings.TrimPrefix(write, "update "))
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		w.t.Errorf("%s: %s", what, diff)
	}
}

// A pool that no node is in is not Ready, until one is.
func TestNoNode(t *testing.T) {
	simulate(t, func(w *fixture) {
		far := pool("far", 1, "10.0.0.1-10.0.0.5")
		far.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "9"}}
		w.Put(far)
		w.want("no node has the label", 2*Interval, "far", "far Warning NoNode")
		node := oneNode[0].DeepCopy()
		node.Labels = map[string]string{"rack": "9"}
		if err := w.kube.Tracker().Update(v1.SchemeGroupVersion.WithResource("nodes"), node, ""); err != nil {
			t.Fatal(err)
		}
		w.want("a node has it", 2*Late, "far")
		if ready := meta.FindStatusCondition(w.Pool("far").Status.Conditions, v1alpha1.PoolReady); ready.Reason != ReasonValid {
			t.Errorf("it is %+v", ready)
		}
	})
}

// A standby, which has no rounds, remembers no names, and counts all addresses when it leads.
func TestStandby(t *testing.T) {
	simulateFrom(t, func(w *fixture, writer *Writer) {
		w.Put(pool("a", 1, "10.0.0.1"), ip("10.0.0.1", "a", "held"))
		w.pass(time.Hour)
		if len(writer.changed) > 0 {
			t.Errorf("it remembers %v", writer.changed)
		}
	}, func(w *fixture) { w.want("it leads", Interval, "a", "a Warning Exhausted") })
}

func TestRun(t *testing.T) {
	simulate(t, func(w *fixture) {
		w.Put(pool("a", 1, "10.0.0.1-10.0.0.2"), pool("b", 2, "10.0.0.11"))
		w.want("two pools", Interval, "a", "b")
		w.want("nothing changed", time.Hour)
		w.Put(ip("10.0.0.11", "b", "held"))
		w.want("b is full", Interval, "b", "b Warning Exhausted")
		w.Remove(w.IP("10.0.0.11"))
		w.want("b has room", Interval, "b", "b Normal AddressesFree")

		w.Put(ip("10.0.0.1", "a", "held"), ip("10.0.0.11", "b", "reserved"))
		w.want("both have some", 5*Interval, "a", "b", "b Warning Exhausted")
		w.Remove(w.Pool("a"))
		w.want("a is gone: once may be a slow watch", Interval/2)
		w.want("a is gone", Interval, "10.0.0.1 Warning PoolGone")
		w.want("it was told", time.Hour)
		w.Put(pool("c", 3, "10.0.0.1"))
		w.want("another pool contains it", Interval, "c", "c Warning Exhausted")
	})
}

// The first address that is in use and the last one are told at once, however the pool changed
// before: the policies in-use.berth.dev and ippools.berth.dev ask the status.
func TestRunWithTheFirstAndTheLast(t *testing.T) {
	simulate(t, func(w *fixture) {
		large := pool("a", 1, "10.0.0.1-10.0.0.99")
		w.Put(large)
		w.want("a pool", 20*Late, "a")
		for n := range 10 {
			w.Put(ip(fmt.Sprintf("10.0.0.%d", n+1), "a", "reserved"))
			w.pass(Interval)
		}
		w.Writes()
		w.Put(ip("10.0.0.20", "a", "held"))
		w.want("the first is in use", Interval, "a")
		w.Put(ip("10.0.0.21", "a", "held"))
		w.want("one more can wait", Interval)
		w.Remove(w.IP("10.0.0.20"))
		w.Remove(w.IP("10.0.0.21"))
		w.want("none is in use", Interval, "a")
	})
}

// A pool that goes on changing is written at once, then ever more rarely, and once more when it
// no longer changes.
func TestRunWithChangesThatGoOn(t *testing.T) {
	simulate(t, func(w *fixture) {
		large, other := pool("a", 1, "10.0.0.0/20"), pool("b", 2, "10.1.0.0/24")
		large.Spec.Subnet, other.Spec.Subnet = "10.0.0.0/20", "10.1.0.0/24"
		w.Put(large, other)
		w.want("two pools", 20*Late, "a", "b")
		n := 0
		change := func() {
			n++
			w.Put(ip(fmt.Sprintf("10.0.%d.%d", n/256, n%256), "a", "held"))
		}

		const busy = 10 * time.Minute
		var writes []time.Duration
		for began := time.Now(); time.Since(began) < busy+Late; {
			if time.Since(began) < busy {
				change()
			}
			w.pass(Interval)
			for range w.Writes() {
				writes = append(writes, time.Since(began)-Interval)
			}
		}
		want := []time.Duration{0, 1 * time.Second, 3 * time.Second, 7 * time.Second, 15 * time.Second}
		for at := 31 * time.Second; at < busy+Late; at += Late {
			want = append(want, at)
		}
		if diff := cmp.Diff(want, writes); diff != "" {
			t.Errorf("writes while addresses were taken: %s", diff)
		}
		if got := w.Pool("a").Status.Allocated; got != int64(n) {
			t.Errorf("the status counts %d of %d addresses", got, n)
		}
		w.want("nothing is left to write", time.Hour)

		change()
		w.want("it was quiet for long", Interval, "a")
		for range 8 {
			change()
			w.pass(Interval)
		}
		w.Writes()
		change()
		w.want("its pause is not over", Interval)
		w.Put(ip("10.1.0.1", "b", "held"))
		w.want("another pool need not wait", Interval, "b")
		large = w.Pool("a")
		large.Spec.Disabled = true
		large.Generation++
		w.Put(large)
		w.want("nor who edits the pool", Interval, "a")
	})
}

// The last address that is taken, and the first that comes free, are written at once.
func TestRunAtZero(t *testing.T) {
	simulate(t, func(w *fixture) {
		w.Put(pool("a", 1, "10.0.0.1-10.0.0.9"))
		for n := range 8 {
			w.Put(ip(fmt.Sprintf("10.0.0.%d", n+1), "a", "held"))
			w.pass(Interval)
		}
		w.Writes()
		w.Remove(w.IP("10.0.0.1"))
		w.want("it has a pause", Interval)
		w.Put(ip("10.0.0.1", "a", "held"), ip("10.0.0.9", "a", "held"))
		w.want("it is full", Interval, "a", "a Warning Exhausted")
		w.Remove(w.IP("10.0.0.9"))
		w.want("it has room", Interval, "a", "a Normal AddressesFree")
		for n := range 8 {
			w.Remove(w.IP(fmt.Sprintf("10.0.0.%d", n+1)))
		}
		w.want("nothing is in use", Interval, "a")
	})
}

// A watch that is behind does not make it write, or tell, the same again.
func TestRunWithAWatchBehind(t *testing.T) {
	simulate(t, func(w *fixture) {
		w.Fail(ipamtest.Fault{Verb: "update", Before: func() { w.Late("ippools") }})
		w.Put(pool("a", 1, "10.0.0.1-10.0.0.2"), pool("b", 2, "10.0.0.11"))
		w.want("two pools", 2*Interval, "a", "b")
		other := ip("10.0.0.99", "", "reserved")
		w.Put(other)
		w.want("nothing changed", 2*Interval)
		w.Put(ip("10.0.0.11", "b", "held"))
		w.want("b is full", 2*Interval, "b", "b Warning Exhausted")
		w.Remove(other)
		w.want("nothing changed again", 2*Interval)
		w.Remove(w.IP("10.0.0.11"))
		w.want("b has room", 2*Interval, "b", "b Normal AddressesFree")
	})
}

// Of a deleted pool with many addresses it tells in portions.
func TestRunWithManyOrphans(t *testing.T) {
	simulate(t, func(w *fixture) {
		for i := range 2*orphansAtOnce + 5 {
			w.Put(ip(fmt.Sprintf("10.0.0.%d", i+1), "gone", "held"))
		}
		w.pass(5 * Interval)
		portions := map[time.Time]int{}
		for _, at := range w.told {
			portions[at]++
		}
		sizes := slices.Collect(maps.Values(portions))
		if len(w.told) != 2*orphansAtOnce+5 || slices.Max(sizes) != orphansAtOnce {
			t.Errorf("it tells of %d in portions of %d", len(w.told), sizes)
		}
	})
}

// A pool created or deleted since the snapshot was compiled must not confuse.
func TestRunBetweenTwoSnapshots(t *testing.T) {
	simulate(t, func(w *fixture) {
		w.Put(pool("a", 1, "10.0.0.1"))
		w.want("one pool", 5*Interval, "a")
		w.Put(ip("10.0.0.1", "a", "held"))
		w.want("it is full", 5*Interval, "a", "a Warning Exhausted")
		// The cache has the changes, but did not yet tell of them.
		w.Late("ippools")
		w.Put(pool("b", 2, "10.0.0.2-10.0.0.4"))
		cached := w.view.IPPools.GetStore()
		if err := errors.Join(cached.Delete(w.Pool("a")), cached.Add(w.Pool("b"))); err != nil {
			t.Fatal(err)
		}
		w.Put(ip("10.0.0.2", "b", "held"))
		w.want("a is gone, and b is new", Interval/2)
	})
}

// After some failures in a round it waits for the next.
func TestRunFails(t *testing.T) {
	simulate(t, func(w *fixture) {
		for range mostErrors {
			w.Fail(ipamtest.Fault{Err: errors.New("not now")})
		}
		w.Put(ip("10.0.0.99", "", "reserved"))
		w.pass(Interval / 2) // There was a round just now, so the next one sees all pools.
		for i := range 2 * mostErrors {
			w.Put(pool(fmt.Sprintf("p%d", i), 1, "10.0.0.1"))
		}
		w.pass(Interval)
		if n := len(w.Writes()); n != mostErrors {
			t.Errorf("it tried %d pools, want %d", n, mostErrors)
		}
		w.pass(2 * Interval)
		if n := len(w.Writes()); n != 2*mostErrors {
			t.Errorf("afterwards it wrote %d pools", n)
		}
	})
}

func (w *fixture) wantMetrics(what, want string) {
	w.t.Helper()
	gathered, err := w.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
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
		w.t.Errorf("%s: %s", what, diff)
	}
}

func TestMetrics(t *testing.T) {
	simulate(t, func(w *fixture) {
		full := pool("a", 1, "10.0.0.1-10.0.0.5")
		full.Spec.MaxPerNamespace = 2
		w.Put(full)
		for address, state := range map[string]string{"10.0.0.1": "held", "10.0.0.2": "retained", "10.0.0.3": "reserved", "10.0.0.4": "resting", "10.0.0.9": "held"} {
			w.Put(ip(address, "a", state))
		}
		w.Put(ip("10.0.0.77", "gone", "held"), pool("b", 2, "10.0.0.20"))
		w.pass(2 * Interval)
		w.wantMetrics("one pool", `
berth_pool_addresses{a,allocated} 1
berth_pool_addresses{a,cooling} 1
berth_pool_addresses{a,free} 1
berth_pool_addresses{a,reserved} 1
berth_pool_addresses{a,retained} 1
berth_pool_addresses{b,allocated} 0
berth_pool_addresses{b,cooling} 0
berth_pool_addresses{b,free} 1
berth_pool_addresses{b,reserved} 0
berth_pool_addresses{b,retained} 0
berth_pool_capacity{a} 5
berth_pool_capacity{b} 1
berth_pool_conflicts{a,allocated} 0
berth_pool_conflicts{a,cooling} 0
berth_pool_conflicts{b,allocated} 0
berth_pool_conflicts{b,cooling} 0
berth_pool_last_node_addresses{a} 1
berth_pool_last_node_addresses{b} 0
berth_pool_namespace_addresses{shop,a,allocated} 1
berth_pool_namespace_addresses{shop,a,retained} 1
berth_pool_namespace_cap{a} 2
berth_pool_namespaces_at_cap{a} 1
berth_pool_outside_addresses{a} 1
berth_pool_outside_addresses{b} 0
berth_pool_outside_addresses{gone} 1`)
		w.Remove(full)
		w.Remove(w.Pool("b"))
		for _, ip := range w.IPs() {
			w.Remove(ip)
		}
		w.pass(2 * Interval)
		w.wantMetrics("all are gone", "")
	})
}

// The tally that goes on with each change is the one of a pass over all addresses.
func TestTallyGoesOn(t *testing.T) {
	random := rand.New(rand.NewPCG(seedtest.Seed(t), 0))
	seen, err := view.New(ipamtest.NewServer().Client(), 0)
	if err != nil {
		t.Fatal(err)
	}
	w, err := New(discard{}, seen, nodesOf(fake.NewClientset()), discard{}, NewMetrics())
	if err != nil {
		t.Fatal(err)
	}
	store, objects := seen.FloatingIPs.GetStore(), seen.IPPools.GetStore()
	change := func() {
		if random.IntN(20) == 0 {
			name := fmt.Sprintf("pool-%d", random.IntN(4))
			if object, exists, _ := objects.GetByKey(name); exists && random.IntN(2) == 0 {
				_ = objects.Delete(object)
				seen.Pools.Changed(object.(*v1alpha1.IPPool), nil)
				return
			}
			first := random.IntN(20)
			object := pool(name, int64(random.IntN(3)), fmt.Sprintf("10.0.0.%d-10.0.0.%d", 1+first, 10+first))
			object.Spec.MaxPerNamespace = int32(random.IntN(2))
			_ = objects.Add(object)
			seen.Pools.Changed(nil, object)
			return
		}
		object := ip(fmt.Sprintf("10.0.0.%d", 1+random.IntN(40)), fmt.Sprintf("pool-%d", random.IntN(5)),
			[]string{"held", "retained", "reserved", "resting", "cooling"}[random.IntN(5)])
		if object.Spec.Owner != nil {
			object.Spec.Owner.Namespace = fmt.Sprint(random.IntN(3))
		}
		if random.IntN(3) == 0 {
			object.Status.Conditions = []metav1.Condition{{Type: v1alpha1.FloatingIPConflict, Status: metav1.ConditionTrue}}
		}
		if random.IntN(3) == 0 {
			_ = store.Delete(object)
		} else {
			_ = store.Add(object)
		}
		w.change(object)
	}
	for round := range 2000 {
		for range random.IntN(10) {
			change()
		}
		if _, err := w.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		pools, snapshot := seen.Pools.Look()
		want := count(pools, snapshot, func(yield func(*v1alpha1.FloatingIP) bool) {
			for _, object := range store.List() {
				if !yield(object.(*v1alpha1.FloatingIP)) {
					return
				}
			}
		})
		if diff := cmp.Diff(want, w.tally, cmp.AllowUnexported(tally{}, uses{}), cmpopts.IgnoreFields(tally{}, "snapshot", "homes")); diff != "" {
			t.Fatalf("in round %d (-counted anew, +went on): %s", round, diff)
		}
	}
}

// discard drops all writes.
type discard struct{}

func (discard) Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*v1alpha1.IPPool, error) {
	return &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "2"}}, nil
}

func (discard) Eventf(_, _ runtime.Object, _, _, _, _ string, _ ...any) {}

// The largest cluster that is meant to work.
func BenchmarkRound(b *testing.B) {
	const pools, each = 10_000, 15
	seen, err := view.New(ipamtest.NewServer().Client(), 0)
	if err != nil {
		b.Fatal(err)
	}
	numbers := NewMetrics()
	w, err := New(discard{}, seen, nodesOf(fake.NewClientset()), discard{}, numbers)
	if err != nil {
		b.Fatal(err)
	}
	for i := range pools {
		p := pool(fmt.Sprintf("pool-%d", i), int64(i))
		p.Spec.Subnet = fmt.Sprintf("10.%d.%d.0/24", i/256, i%256)
		p.Spec.Ranges = []string{fmt.Sprintf("10.%d.%d.1-10.%d.%d.100", i/256, i%256, i/256, i%256)}
		_ = seen.IPPools.GetStore().Add(p)
		for j := range each {
			_ = seen.FloatingIPs.GetStore().Add(ip(fmt.Sprintf("10.%d.%d.%d", i/256, i%256, j+1), p.Name, "held"))
		}
	}
	for _, object := range seen.FloatingIPs.GetStore().List() {
		w.change(object)
	}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			seen.Pools.Changed(nil, nil)
			w.written = map[string]written{}
			if _, err := w.round(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("unchanged", func(b *testing.B) {
		for b.Loop() {
			if _, err := w.round(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("changed", func(b *testing.B) {
		for b.Loop() {
			for i := range 300 {
				w.change(&v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("10.%d.%d.1", i/256, i%256)}})
			}
			if _, err := w.round(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("scrape", func(b *testing.B) {
		registry := metrics.NewKubeRegistry()
		registry.CustomMustRegister(numbers)
		for b.Loop() {
			if _, err := registry.Gather(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
