// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"errors"
	"net/netip"
	"testing"
)

// A namespace at its cap of a pool gets no free address of that pool. Its owners keep the
// addresses that they have, it gets addresses of other pools, and other namespaces get
// addresses of this one.
func TestMaxPerNamespace(t *testing.T) {
	book := New(nil)
	capped := testPool("a", "10.0.0.1", "10.0.0.9")
	capped.MaxPerNamespace = 2
	other := testPool("b", "10.0.1.1", "10.0.1.9")
	book.SetPools([]Pool{capped, other})
	shop := Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "d", UID: "1"}
	kept := netip.MustParseAddr("10.0.0.1")
	book.Observe(Record{Addr: kept, UID: "o1", Version: 1, Owner: shop, Policy: Never, LastPod: "x"})
	book.Observe(Record{Addr: netip.MustParseAddr("10.0.0.8"), UID: "o2", Version: 1, Owner: shop, Cooling: true})
	book.Observe(Record{Addr: netip.MustParseAddr("10.0.0.9"), UID: "o3", Version: 1, Owner: shop, Reserved: true})
	pod := func(uid string) Claimant { return Claimant{Owner: shop, PodUID: uid} }
	stranger := Claimant{Owner: Owner{Kind: "Deployment", Namespace: "bank", Name: "d", UID: "2"}, PodUID: "stranger"}
	a := from(book, "a")
	if _, err := book.Reserve(pod("one"), []Want{a, a}); !errors.Is(err, ErrExhausted) {
		t.Errorf("two more where one may be = %v, want ErrExhausted", err)
	}
	if taken, err := book.Reserve(pod("one"), []Want{a, from(book, "a", "b")}); err != nil || taken[0].Pool != "a" || taken[1].Pool != "b" {
		t.Errorf("one of the capped pool and one of any gave %v, %v", taken, err)
	}
	if got, want := book.Share("a", "shop"), (Share{Allocated: 1, Retained: 1}); got != want {
		t.Errorf("the namespace has %+v, want %+v", got, want)
	}
	if _, err := book.Reserve(pod("two"), []Want{a}); !errors.Is(err, ErrExhausted) {
		t.Errorf("one more at the cap = %v, want ErrExhausted", err)
	}
	if _, err := book.Reserve(pod("two"), []Want{a.in(exactly("10.0.0.5"))}); !errors.Is(err, ErrExhausted) {
		t.Errorf("a certain one more at the cap = %v, want ErrExhausted", err)
	}
	if _, err := book.Reserve(pod("two"), []Want{{Held: []netip.Addr{kept}}}); err != nil {
		t.Errorf("the kept address at the cap: %v", err)
	}
	if _, err := book.Reserve(stranger, []Want{a}); err != nil {
		t.Errorf("another namespace: %v", err)
	}
	for _, test := range []struct {
		name       string
		preemption Preemption
		ok         bool
	}{
		{"a pod of another namespace ends", Preemption{Freed: addrs("10.0.0.3")}, false},
		{"one of this namespace ends, and its address rests", Preemption{Left: addrs("10.0.0.2")}, true},
		{"but a pod of this namespace has precedence", Preemption{Left: addrs("10.0.0.2"), Demand: 1, OwnDemand: 1}, false},
		{"a pod of another namespace has precedence", Preemption{Left: addrs("10.0.0.2"), Demand: 1}, true},
		{"one of this namespace ends in another pool", Preemption{Left: addrs("10.0.1.1")}, false},
	} {
		if err := book.Feasible(pod("three"), []Want{a}, &test.preemption); (err == nil) != test.ok {
			t.Errorf("%s: Feasible() = %v, want success %v", test.name, err, test.ok)
		}
	}

	// A lower cap takes nothing away, a higher one and none give more.
	for _, step := range []struct {
		maximum uint64
		ok      bool
	}{{1, false}, {2, false}, {3, true}, {1, false}, {0, true}, {2, false}} {
		capped.MaxPerNamespace = step.maximum
		book.SetPools([]Pool{capped, other})
		if err := book.Feasible(pod("three"), []Want{from(book, "a")}, nil); (err == nil) != step.ok {
			t.Errorf("with a cap of %d: Feasible() = %v, want success %v", step.maximum, err, step.ok)
		}
		if step.maximum > 0 && book.Share("a", "shop").Total() != 2 {
			t.Errorf("with a cap of %d the namespace has %+v", step.maximum, book.Share("a", "shop"))
		}
	}
}
