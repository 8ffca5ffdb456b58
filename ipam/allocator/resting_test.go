// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
)

// restingFor is the record of an address that rests, and that meanwhile pods of a namespace may
// have.
func restingFor(addr, namespaceUID string) Record {
	return Record{Addr: netip.MustParseAddr(addr), Cooling: true, NamespaceUID: namespaceUID, UID: addr, Version: 1}
}

func restingAddrs(book *Allocator, namespaceUID string) []netip.Addr {
	var got []netip.Addr
	for _, record := range book.Resting(namespaceUID) {
		got = append(got, record.Addr)
	}
	return got
}

// The book lists the addresses that rest for a namespace, until a pod has one or the rest ends.
func TestResting(t *testing.T) {
	book := New(nil)
	book.SetPools([]Pool{testPool("a", "10.0.0.1", "10.0.0.9")})
	want := func(what, namespaceUID string, texts ...string) {
		t.Helper()
		if got, want := restingAddrs(book, namespaceUID), addrs(texts...); !slices.Equal(got, want) {
			t.Errorf("%s: %v rest for %q, want %v", what, got, namespaceUID, want)
		}
	}
	want("nothing rests", "shop")
	for _, record := range []Record{restingFor("10.0.0.3", "shop"), restingFor("10.0.0.1", "shop"), restingFor("10.0.0.2", "bank"), restingFor("10.0.0.4", "")} {
		book.Observe(record)
	}
	want("in their order", "shop", "10.0.0.1", "10.0.0.3")
	want("another namespace", "bank", "10.0.0.2")
	want("no namespace", "")

	first := netip.MustParseAddr("10.0.0.1")
	claimant := Claimant{Owner: Owner{Kind: "Pod", Namespace: "shop", Name: "x"}, PodUID: "pod"}
	if _, err := book.Reserve(claimant, []Want{{View: book.view, Resting: []netip.Addr{first}, RestsFor: "shop"}}); err != nil {
		t.Fatal(err)
	}
	want("one is promised", "shop", "10.0.0.3")
	if counts := book.Counts("a"); counts.Allocated != 1 || counts.Cooling != 3 {
		t.Errorf("one is promised, and the pool counts %+v", counts)
	}
	if book.IsIdle(first) || book.InNamespace("shop") != 1 {
		t.Errorf("one is promised, idle: %t, and the namespace has %d", book.IsIdle(first), book.InNamespace("shop"))
	}
	book.Release(first, "pod")
	want("the promise ends", "shop", "10.0.0.1", "10.0.0.3")
	if !book.IsIdle(first) || book.InNamespace("shop") != 0 {
		t.Errorf("the promise has ended, idle: %t, and the namespace has %d", book.IsIdle(first), book.InNamespace("shop"))
	}
	if book.IsIdle(netip.MustParseAddr("10.0.0.4")) {
		t.Error("an address that rests for nobody is idle")
	}

	moved := restingFor("10.0.0.3", "bank")
	moved.Version = 2
	book.Observe(moved)
	want("one rests for another namespace", "shop", "10.0.0.1")
	want("which has it now", "bank", "10.0.0.2", "10.0.0.3")
	book.Forget(first, first.String(), false)
	want("the rest is over", "shop")
	with := restingFor("10.0.0.2", "bank")
	with.Cooling, with.PodUID, with.Version = false, "pod", 2
	book.Observe(with)
	want("one has a pod", "bank", "10.0.0.3")
	book.Forget(netip.MustParseAddr("10.0.0.3"), "10.0.0.3", false)
	if len(book.rests) > 0 {
		t.Errorf("the book keeps %v of namespaces for which nothing rests", book.rests)
	}
}

// A pod gets an address at rest only if it rests for the pod's namespace, the pod may have it by
// the cap and by the limit of its owner, and no other pod has it.
func TestReserveResting(t *testing.T) {
	owner := Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web", UID: "1"}
	capped := testPool("a", "10.0.0.1", "10.0.0.2")
	capped.MaxPerNamespace = 1
	pools := []Pool{testPool("a", "10.0.0.1", "10.0.0.2"), testPool("six", "2001:db8::1", "2001:db8::1")}
	kept := Record{Addr: netip.MustParseAddr("10.0.0.2"), Owner: owner, Policy: Retain, UID: "kept", Version: 1}
	with := kept
	with.PodUID = "other"
	for _, test := range []struct {
		name    string
		pools   []Pool
		records []Record
		resting string
		claim   Claimant
		want    error // nil: the pod gets the address
	}{
		{"it rests for the namespace", pools, []Record{restingFor("10.0.0.1", "shop")}, "10.0.0.1", Claimant{}, nil},
		{"it rests for another", pools, []Record{restingFor("10.0.0.1", "bank")}, "10.0.0.1", Claimant{}, ErrExhausted},
		{"it rests for nobody", pools, []Record{restingFor("10.0.0.1", "")}, "10.0.0.1", Claimant{}, ErrExhausted},
		{"it is of no pool", nil, []Record{restingFor("10.0.0.1", "shop")}, "10.0.0.1", Claimant{}, ErrExhausted},
		{"it does not rest any more", pools, nil, "10.0.0.1", Claimant{}, ErrExhausted},
		{"the namespace is at its cap", []Pool{capped}, []Record{restingFor("10.0.0.1", "shop"), kept}, "10.0.0.1", Claimant{}, ErrExhausted},
		{"the namespace is below its cap", []Pool{capped}, []Record{restingFor("10.0.0.1", "shop")}, "10.0.0.1", Claimant{}, nil},
		{"the owner is at its limit", pools, []Record{restingFor("10.0.0.1", "shop"), kept}, "10.0.0.1", Claimant{Limited: true, Limit: 1}, ErrLimit},
		{"the owner is at its limit of the other family", pools, []Record{restingFor("2001:db8::1", "shop"), kept}, "2001:db8::1", Claimant{Limited: true, Limit: 1}, nil},
		{"the owner may have none of the family", pools, []Record{restingFor("2001:db8::1", "shop")}, "2001:db8::1", Claimant{Limited: true}, ErrLimit},
		{"the fixed set has no room", pools, []Record{restingFor("10.0.0.1", "shop"), with}, "10.0.0.1", Claimant{FixedSet: true, MaxPods: 1}, ErrSetInUse},
		{"the fixed set has room", pools, []Record{restingFor("10.0.0.1", "shop"), with}, "10.0.0.1", Claimant{FixedSet: true, MaxPods: 2}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			book := New(nil)
			book.SetPools(test.pools)
			for _, record := range test.records {
				book.Observe(record)
			}
			test.claim.Owner, test.claim.PodUID = owner, "pod"
			addr := netip.MustParseAddr(test.resting)
			wants := []Want{{View: book.view, Resting: []netip.Addr{addr}, RestsFor: "shop"}}
			taken, err := book.Reserve(test.claim, wants)
			if !errors.Is(err, test.want) {
				t.Fatalf("Reserve() = %v, %v, want %v", taken, err, test.want)
			}
			if err != nil {
				return
			}
			if taken[0].Addr != addr || taken[0].Stored == nil || !taken[0].Stored.Cooling {
				t.Errorf("the pod got %+v, want %s and the record of its rest", taken[0], addr)
			}
			another := test.claim
			another.PodUID = "another"
			if _, err := book.Reserve(another, wants); err == nil {
				t.Error("another pod got it, too")
			}
		})
	}
}

// An address at rest that is promised to a pod counts for the fixed set of the pod's owner.
func TestFixedSetCountsPromisesFromRest(t *testing.T) {
	owner := Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web", UID: "1"}
	testFixedSet(t, "promised", func(t *testing.T, many int) {
		book := New(nil)
		book.many = many
		book.SetPools([]Pool{testPool("a", "10.0.0.1", "10.0.0.9")})
		book.Observe(restingFor("10.0.0.1", "shop"))
		c := Claimant{Owner: owner, PodUID: "pod", FixedSet: true, MaxPods: 1}
		if _, err := book.Reserve(c, []Want{{View: book.view, Resting: addrs("10.0.0.1"), RestsFor: "shop"}}); err != nil {
			t.Fatal(err)
		}
		c.PodUID = "another"
		if book.SetHasRoom(c) {
			t.Error("the set for one pod has room for another")
		}
		book.Release(netip.MustParseAddr("10.0.0.1"), "pod")
		if !book.SetHasRoom(c) {
			t.Error("the set has no room after the promise ended")
		}
	})
}

// All or none: a reservation that fails half-way keeps nothing, also if a pool has fewer addresses
// than its capacity says.
func TestReserveFailsHalfWay(t *testing.T) {
	book := New(nil)
	pool := testPool("a", "10.0.0.1", "10.0.0.1")
	pool.Capacity = 2
	book.SetPools([]Pool{pool, testPool("b", "10.0.1.1", "10.0.1.1")})
	var unmet *UnmetError
	taken, err := book.Reserve(Claimant{PodUID: "pod"}, []Want{from(book, "b"), from(book, "a"), from(book, "a")})
	if !errors.As(err, &unmet) || unmet.Want != 2 || !errors.Is(err, ErrExhausted) {
		t.Fatalf("Reserve() = %v, %v, want the third want unmet", taken, err)
	}
	if err.Error() != ErrExhausted.Error() {
		t.Errorf("the error says %q", err)
	}
	for _, name := range []string{"a", "b"} {
		if counts := book.Counts(name); counts.Allocated != 0 {
			t.Errorf("pool %s counts %+v", name, counts)
		}
	}
}

// A list of the API server leaves out objects that are gone. The book finds these, but no objects
// that are newer than the list, and no rest without an object.
func TestWithout(t *testing.T) {
	book := New(nil)
	book.SetPools([]Pool{testPool("a", "10.0.0.1", "10.0.0.9")})
	for i, version := range []uint64{4, 5, 6, 3} {
		book.Observe(Record{Addr: v4(i), UID: v4(i).String(), PodUID: "pod", Version: version})
	}
	book.Forget(v4(3), v4(3).String(), true)
	if _, _, err := reserveFree(book, []string{"a"}, "pod"); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		listed map[string]bool
		want   []netip.Addr
	}{
		{nil, []netip.Addr{v4(0), v4(1)}},
		{map[string]bool{v4(0).String(): true}, []netip.Addr{v4(1)}},
		{map[string]bool{v4(0).String(): true, v4(1).String(): true}, nil},
	} {
		var got []netip.Addr
		for _, record := range book.Without(test.listed, 5) {
			got = append(got, record.Addr)
		}
		slices.SortFunc(got, netip.Addr.Compare)
		if !slices.Equal(got, test.want) {
			t.Errorf("Without(%v) = %v, want %v", test.listed, got, test.want)
		}
	}
}

// An API server that was restored from a backup has objects at versions that the book saw replaced
// or deleted.
func TestObserveAt(t *testing.T) {
	owner := Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "n", Name: "web", UID: "1"}
	record := func(version uint64, pod string) Record {
		return Record{Addr: v4(1), UID: "object", Owner: owner, Policy: Retain, PodUID: pod, Version: version}
	}
	for _, test := range []struct {
		name string
		at   uint64
		want string // the pod
	}{
		{"before the book's record was stored", 6, "now"},
		{"at its version", 7, "then"},
		{"later", 9, "then"},
	} {
		book := New(nil)
		book.Observe(record(7, "now"))
		book.ObserveAt(test.at, record(3, "then"))
		if got, _ := book.Stored(v4(1)); got.PodUID != test.want {
			t.Errorf("%s: pod %q has the address, want %q", test.name, got.PodUID, test.want)
		}
	}
	book := New(nil)
	if !book.ObserveAt(9, record(3, "")) {
		t.Error("an address that is newly retained is not told")
	}
	if _, known := book.Stored(v4(2)); known {
		t.Error("the book knows a record of an address without one")
	}
	if counts := book.Counts("none"); counts != (Counts{}) {
		t.Errorf("an unknown pool counts %+v", counts)
	}
}

// Only a Node of the core group has its address itself.
func TestIsNode(t *testing.T) {
	node := Owner{APIVersion: "v1", Kind: "Node", Name: "node1"}
	for name, test := range map[string]struct {
		change func(*Owner)
		want   bool
	}{
		"a node":         {func(*Owner) {}, true},
		"another group":  {func(o *Owner) { o.APIVersion = "metal.example.com/v1" }, false},
		"another kind":   {func(o *Owner) { o.Kind = "Pod" }, false},
		"in a namespace": {func(o *Owner) { o.Namespace = "n" }, false},
	} {
		owner := node
		test.change(&owner)
		if got := owner.IsNode(); got != test.want {
			t.Errorf("%s: IsNode() = %t", name, got)
		}
	}
}
