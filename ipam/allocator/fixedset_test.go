// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"testing"

	"github.com/berth-dev/berth/ipam/iprange"
)

// testFixedSet runs a test without holdings, and with one for each owner.
func testFixedSet(t *testing.T, name string, test func(t *testing.T, many int)) {
	t.Run(name, func(t *testing.T) { test(t, largeOwner) })
	t.Run(name+", with a holding", func(t *testing.T) { test(t, 1) })
}

// A pod gets a free address while fewer other pods have addresses of its owner than the
// fixed set is for.
func TestFixedSet(t *testing.T) {
	web := Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "n", Name: "web", UID: "1"}
	before := web
	before.UID = "0"
	other := web
	other.Name = "other"
	of := func(last byte, owner Owner, pod string) Record {
		return Record{Addr: netip.AddrFrom4([4]byte{10, 0, 0, last}), UID: "object", Version: 1, Owner: owner, PodUID: pod, Policy: Retain}
	}
	deleted, attached, kept := of(3, web, "c"), of(3, web, ""), of(3, before, "c")
	deleted.Policy, attached.Attached, attached.LastPod, kept.Policy = PodDeleted, true, "c", Never
	for _, test := range []struct {
		name    string
		records []Record
		full    bool // with room for two pods
	}{
		{"nobody has any", nil, false},
		{"one pod", []Record{of(2, web, "a")}, false},
		{"two pods", []Record{of(2, web, "a"), of(3, web, "b")}, true},
		{"one pod with two addresses", []Record{of(2, web, "a"), of(3, web, "a")}, false},
		{"the pod itself", []Record{of(2, web, "a"), of(3, web, "new")}, false},
		{"one of them is gone", []Record{of(2, web, "a"), of(3, web, "gone")}, false},
		{"one of them is lost with its node", []Record{of(2, web, "a"), of(3, web, "lost")}, false},
		{"one of another workload", []Record{of(2, web, "a"), of(3, other, "b")}, false},
		{"one of the workload that had the name before", []Record{of(2, web, "a"), of(3, before, "c")}, false},
		{"the same with Never", []Record{of(2, web, "a"), kept}, false},
		{"one whose address is not kept", []Record{of(2, web, "a"), deleted}, false},
		{"one that has to be detached first", []Record{of(2, web, "a"), attached}, true},
		{"one with two addresses, and one that is gone", []Record{of(2, web, "a"), of(3, web, "a"), of(4, web, "gone"), of(5, web, "gone")}, false},
	} {
		testFixedSet(t, test.name, func(t *testing.T, many int) {
			book := New(podsAre{gone: []string{"gone"}, lost: []string{"lost"}})
			book.many = many
			view := book.SetPools([]Pool{testPool("a", "10.0.0.1", "10.0.0.20")})
			for _, record := range test.records {
				book.Observe(record)
			}
			c := Claimant{Owner: web, PodUID: "new", FixedSet: true, MaxPods: 2}
			if got := book.SetHasRoom(c); got == test.full {
				t.Errorf("SetHasRoom = %v", got)
			}
			want := []Want{{Pools: []int{0}, View: view}}
			taken, err := book.Reserve(c, want)
			if errors.Is(err, ErrSetInUse) != test.full || (err == nil) == test.full {
				t.Errorf("Reserve: %v, %v", taken, err)
			}
		})
	}
	t.Run("a pool as large as the set", func(t *testing.T) {
		book := New(nil)
		view := book.SetPools([]Pool{testPool("a", "10.0.0.2", "10.0.0.3")})
		book.Observe(of(2, web, "a"))
		book.Observe(of(3, web, "b"))
		for pods, want := range map[int]error{2: ErrSetInUse, 3: ErrExhausted} {
			c := Claimant{Owner: web, PodUID: "new", FixedSet: true, MaxPods: pods}
			if err := book.Feasible(c, []Want{{Pools: []int{0}, View: view}}, nil); !errors.Is(err, want) {
				t.Errorf("with a set for %d pods: %v, want %v", pods, err, want)
			}
		}
	})
	testFixedSet(t, "promised addresses count", func(t *testing.T, many int) {
		book := New(nil)
		book.many = many
		view := book.SetPools([]Pool{testPool("a", "10.0.0.1", "10.0.0.20")})
		for i, pod := range []string{"a", "b", "c"} {
			_, err := book.Reserve(Claimant{Owner: web, PodUID: pod, FixedSet: true, MaxPods: 2}, []Want{{Pools: []int{0}, View: view}})
			if errors.Is(err, ErrSetInUse) != (i == 2) {
				t.Errorf("pod %s: %v", pod, err)
			}
		}
	})
	testFixedSet(t, "an address of the set that has no pod", func(t *testing.T, many int) {
		book := New(nil)
		book.many = many
		book.SetPools([]Pool{testPool("a", "10.0.0.1", "10.0.0.20")})
		idle := of(4, web, "")
		for _, record := range []Record{of(2, web, "a"), of(3, web, "b"), idle} {
			book.Observe(record)
		}
		c := Claimant{Owner: web, PodUID: "new", FixedSet: true, MaxPods: 2}
		if _, err := book.Reserve(c, []Want{{Held: []netip.Addr{idle.Addr}}}); err != nil {
			t.Errorf("an address that the owner has already is refused: %v", err)
		}
	})
}

// A pod of a large set costs as much as one of a small set: when the set is full, when pods of it
// have ended, when all have, and when caches that were behind have them again.
func TestFixedSetSteps(t *testing.T) {
	const n = 5000
	web := Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "n", Name: "web", UID: "1"}
	pods := &countedPods{gone: map[string]bool{}}
	book := New(pods)
	book.SetPools([]Pool{{Name: "a", Ranges: iprange.Set{{First: v4(1), Last: v4(2 * n)}}, Capacity: 2 * n}})
	pod := func(i int) string { return fmt.Sprint("pod-", i) }
	for i := range n {
		book.Observe(Record{Addr: v4(1 + i), UID: "object", Version: 1, Owner: web, PodName: pod(i), PodUID: pod(i), Policy: Retain})
	}
	asks := func(what string, most int, room bool) {
		t.Helper()
		pods.asked = 0
		if got := book.SetHasRoom(Claimant{Owner: web, PodUID: "new", FixedSet: true, MaxPods: n}); got != room {
			t.Errorf("%s: the set has room: %v", what, got)
		}
		if pods.asked > most {
			t.Errorf("%s: %d questions about pods, want at most %d", what, pods.asked, most)
		}
	}
	asks("the first pod", math.MaxInt, false) // It makes the lists.
	asks("a full set", 0, false)
	ends := func(i int, gone bool) {
		pods.gone[pod(i)] = gone
		book.Ended("n", pod(i))
	}
	ends(0, true)
	asks("a pod has ended", 1, true)
	for i := range n {
		ends(i, true)
	}
	asks("all pods have ended", 1, true)
	clear(pods.gone)
	asks("the caches were behind", math.MaxInt, false)
	asks("the caches were behind, the next pod", 0, false)
	pods.asked = 0
	for i := range 100 {
		ends(i, true)
		addr := v4(1 + i)
		claimant := Claimant{Owner: web, PodUID: fmt.Sprint("next-", i), FixedSet: true, MaxPods: n}
		if _, err := book.Reserve(claimant, []Want{{Held: []netip.Addr{addr}}}); err != nil {
			t.Fatal(err)
		}
		book.Confirm(Record{Addr: addr, UID: "object", Version: 2, Owner: web, PodName: claimant.PodUID, PodUID: claimant.PodUID, Policy: Retain}, claimant.PodUID)
		if book.SetHasRoom(Claimant{Owner: web, PodUID: "new", FixedSet: true, MaxPods: n}) {
			t.Fatal("the set has room while its pods are replaced")
		}
	}
	if most := 100 * 10; pods.asked > most {
		t.Errorf("%d questions about pods while 100 are replaced, want at most %d", pods.asked, most)
	}
}
