// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/seedtest"
)

// from returns a want of a free address from pools by name. It skips names of no pool.
func from(book *Allocator, names ...string) Want {
	want := Want{View: book.view}
	for _, name := range names {
		if position := slices.Index(book.view.names, name); position >= 0 {
			want.Pools = append(want.Pools, position)
		}
	}
	return want
}

// in limits a want to ranges.
func (w Want) in(ranges []iprange.Range) Want {
	w.Ranges = ranges
	return w
}

// reserveFree reserves one free address of some pools.
func reserveFree(book *Allocator, pools []string, pod string) (netip.Addr, string, error) {
	taken, err := book.Reserve(Claimant{PodUID: pod}, []Want{from(book, pools...)})
	if err != nil {
		return netip.Addr{}, "", err
	}
	return taken[0].Addr, taken[0].Pool, nil
}

// reserveHeld reserves an address that is stored for an owner.
func reserveHeld(book *Allocator, addr netip.Addr, owner Owner, pod string) (Record, error) {
	taken, err := book.Reserve(Claimant{Owner: owner, PodUID: pod}, []Want{{Held: []netip.Addr{addr}}})
	if err != nil {
		return Record{}, err
	}
	return *taken[0].Stored, nil
}

func addrs(texts ...string) []netip.Addr {
	var result []netip.Addr
	for _, text := range texts {
		result = append(result, netip.MustParseAddr(text))
	}
	return result
}

func exactly(texts ...string) []iprange.Range {
	var result []iprange.Range
	for _, text := range texts {
		result = append(result, ranges(text, text)...)
	}
	return result
}

// A greedy choice would take 10.0.0.1 for the first want and leave none for the
// second.
func TestReserveSeveral(t *testing.T) {
	book := New(nil)
	book.SetPools([]Pool{testPool("a", "10.0.0.1", "10.0.0.3"), testPool("six", "2001:db8::1", "2001:db8::2")})
	wants := []Want{
		from(book, "a").in(ranges("10.0.0.1", "10.0.0.2")),
		from(book, "a").in(exactly("10.0.0.1")),
		from(book, "a"),
		from(book, "six"),
	}
	taken, err := book.Reserve(Claimant{PodUID: "pod"}, wants)
	if err != nil {
		t.Fatal(err)
	}
	var got []netip.Addr
	for _, one := range taken {
		got = append(got, one.Addr)
	}
	if want := addrs("10.0.0.2", "10.0.0.1", "10.0.0.3", "2001:db8::1"); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	var unmet *UnmetError
	_, err = book.Reserve(Claimant{PodUID: "next"}, []Want{from(book, "six"), from(book, "a")})
	if !errors.As(err, &unmet) || unmet.Want != 1 || !errors.Is(err, ErrExhausted) {
		t.Errorf("Reserve() from a pool that is used up = %v, want the second want unmet", err)
	}
	if free := book.Counts("six").Free; free != 1 {
		t.Errorf("pool six has %d free addresses after a reservation that failed, want 1", free)
	}
}

// A position in an old view means the pool that had it when the view was made.
func TestReserveByOldView(t *testing.T) {
	book := New(nil)
	a, b := testPool("a", "10.0.0.1", "10.0.0.9"), testPool("b", "10.0.1.1", "10.0.1.2")
	old := book.SetPools([]Pool{a, b, testPool("gone", "10.0.2.1", "10.0.2.99")})
	book.SetPools([]Pool{b, a})
	taken, err := book.Reserve(Claimant{PodUID: "x"}, []Want{{View: old, Pools: []int{2, 1}}})
	if err != nil || taken[0].Pool != "b" {
		t.Errorf("got %v, %v; want an address of b", taken, err)
	}

	// The free counts of an old view may be out of date.
	if _, err := book.Reserve(Claimant{PodUID: "y"}, []Want{from(book, "b")}); err != nil {
		t.Fatal(err)
	}
	full := book.view
	book.SetPools([]Pool{b, a})
	book.Release(taken[0].Addr, "x")
	if taken, err := book.Reserve(Claimant{PodUID: "z"}, []Want{{View: full, Pools: []int{0}}}); err != nil || taken[0].Pool != "b" {
		t.Errorf("got %v, %v; want the address of b that came free", taken, err)
	}
}

func TestRoomiest(t *testing.T) {
	book := New(nil)
	book.SetPools([]Pool{
		testPool("five", "10.0.0.1", "10.0.0.5"), testPool("two", "10.0.1.1", "10.0.1.2"), testPool("nine", "10.0.2.1", "10.0.2.9"),
		testPool("other five", "10.0.3.1", "10.0.3.5"), testPool("seven", "10.0.4.1", "10.0.4.7"), testPool("none"),
	})
	want := from(book, "five", "two", "nine", "other five", "seven", "none")
	for most, names := range [][]string{1: {"nine"}, 2: {"nine", "seven"}, 4: {"nine", "seven", "five", "other five"}, 6: {"nine", "seven", "five", "other five", "two"}} {
		if names == nil {
			continue
		}
		var got []string
		for _, space := range book.roomiest(want, most, &budget{preemption: &Preemption{}}) {
			got = append(got, space.Name)
		}
		if !slices.Equal(got, names) {
			t.Errorf("the %d roomiest are %v, want %v", most, got, names)
		}
	}
}

// Two parts of a pod that may both have either of two addresses get one each.
func TestReserveHeldTwice(t *testing.T) {
	owner := Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "n", Name: "web", UID: "1", PodName: "web-0"}
	held := addrs("10.0.0.1", "10.0.0.2", "10.0.0.3")
	for _, stored := range [][]netip.Addr{held, held[1:]} {
		book := New(nil)
		for _, addr := range stored {
			book.Observe(Record{Addr: addr, UID: "object", Version: 1, Owner: owner, Policy: Retain})
		}
		for name, want := range map[string]Want{"held": {Held: held}, "preferred": {View: book.SetPools(nil), Preferred: held}} {
			taken, err := book.Reserve(Claimant{Owner: owner, PodUID: "pod"}, []Want{want, want})
			if err != nil {
				t.Fatalf("%s, %v are stored: %v", name, stored, err)
			}
			if got := []netip.Addr{taken[0].Addr, taken[1].Addr}; !slices.Equal(got, stored[:2]) && !slices.Equal(got, []netip.Addr{stored[1], stored[0]}) {
				t.Errorf("%s, %v are stored: got %v", name, stored, got)
			}
		}
	}
}

func TestLimit(t *testing.T) {
	book := New(nil)
	book.SetPools([]Pool{testPool("a", "10.0.0.1", "10.0.0.9"), testPool("six", "2001:db8::1", "2001:db8::9")})
	owner := Owner{APIVersion: "berth.dev/v1alpha1", Kind: "IPClaim", Namespace: "n", Name: "c", UID: "1"}
	claimant := func(pod string) Claimant { return Claimant{Owner: owner, PodUID: pod, Limited: true, Limit: 2} }
	four, six := from(book, "a"), from(book, "six")
	if _, err := book.Reserve(claimant("x"), []Want{four, six}); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		want       Want
		preemption Preemption
	}{{four, Preemption{Owned4: 1}}, {six, Preemption{Owned6: 1}}} {
		wants := []Want{test.want, test.want}
		var unmet *UnmetError
		if _, err := book.Reserve(claimant("y"), wants); !errors.Is(err, ErrLimit) || !errors.As(err, &unmet) || unmet.Want != 1 {
			t.Errorf("three of a family where two may be = %v, want ErrLimit for the second", err)
		}
		if err := book.Feasible(claimant("y"), wants, &test.preemption); err != nil {
			t.Errorf("Feasible() after a preemption of one = %v", err)
		}
	}
	if _, err := book.Reserve(claimant("y"), []Want{four, six}); err != nil {
		t.Errorf("two of a family where two may be: %v", err)
	}
	if v4, v6 := book.Owned(owner); v4 != 2 || v6 != 2 {
		t.Errorf("the owner has %d and %d addresses, want 2 and 2", v4, v6)
	}
	book.Release(netip.MustParseAddr("10.0.0.1"), "x")
	if v4, _ := book.Owned(owner); v4 != 1 {
		t.Errorf("the owner has %d addresses after a release, want 1", v4)
	}
}

func TestRelief(t *testing.T) {
	book := New(nil)
	book.SetPools([]Pool{testPool("a", "10.0.0.1", "10.0.0.1")})
	owner := Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "n", Name: "d", UID: "1"}
	book.Observe(Record{Addr: netip.MustParseAddr("10.0.0.1"), UID: "o", Version: 1, Owner: owner, PodUID: "victim", Policy: Retain})
	pod := Claimant{PodUID: "pod"}
	free, either := from(book, "a"), from(book, "a")
	either.Preferred = addrs("10.0.0.1")
	for _, test := range []struct {
		name       string
		want       Want
		preemption *Preemption
		ok         bool
	}{
		{"none", either, nil, false},
		{"the victim's address is freed", free, &Preemption{Freed: addrs("10.0.0.1")}, true},
		{"but a pod with precedence needs it", free, &Preemption{Freed: addrs("10.0.0.1"), Demand: 1}, false},
		{"the victim's address stays with the owner of both", either, &Preemption{Held: addrs("10.0.0.1")}, true},
		{"it is one that the pod must have", Want{Held: addrs("10.0.0.1")}, &Preemption{Held: addrs("10.0.0.1")}, true},
		{"the pod cannot have it", free, &Preemption{Held: addrs("10.0.0.1")}, false},
	} {
		if err := book.Feasible(pod, []Want{test.want}, test.preemption); (err == nil) != test.ok {
			t.Errorf("%s: Feasible() = %v, want success %v", test.name, err, test.ok)
		}
	}
	// Of pools with as many free addresses each, one is enough.
	book.SetPools([]Pool{testPool("a", "10.0.0.1", "10.0.0.1"), testPool("b", "10.0.1.1", "10.0.1.1"), testPool("c", "10.0.2.1", "10.0.2.1")})
	if err := book.Feasible(pod, []Want{from(book, "b", "c")}, &Preemption{Freed: addrs("10.0.0.1")}); err != nil {
		t.Errorf("two other pools with a free address each: %v", err)
	}
	exact := []Want{from(book, "a").in(exactly("10.0.0.1"))}
	if err := book.Feasible(pod, exact, &Preemption{Freed: addrs("10.0.0.1")}); err != nil {
		t.Errorf("the very address that would be freed: %v", err)
	}
}

// match serves all wants if and only if an exhaustive search does.
func FuzzMatch(f *testing.F) {
	base := seedtest.Seed(f)
	for i := range seedtest.Draws(f, 1000, 10_000) {
		f.Add(base + i)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 7))
		pools := []*freeSpace{{}, {}, {}}
		room := map[*freeSpace]uint64{}
		for _, pool := range pools {
			room[pool] = 1 + random.Uint64N(2)
		}
		// An address is either the owner's or of one pool.
		var all []option
		for i := range 6 {
			o := option{addr: v4(i)}
			if at := random.IntN(4); at < 3 {
				o.pool = pools[at]
			}
			all = append(all, o)
		}
		for _, pool := range pools {
			all = append(all, option{pool: pool})
		}
		wants := make([][]option, 1+random.IntN(5))
		for i := range wants {
			for _, at := range random.Perm(len(all))[:1+random.IntN(3)] {
				wants[i] = append(wants[i], all[at])
			}
		}
		chosen, unmet := match(wants, func(p *freeSpace) uint64 { return room[p] })
		if possible := exhaustive(wants, nil, room); possible != (unmet == len(wants)) {
			t.Fatalf("seed %d: match found %v for %v, but possible is %v", seed, chosen, wants, possible)
		}
		if unmet == len(wants) && !allowed(chosen, room) {
			t.Fatalf("seed %d: match chose %v for %v", seed, chosen, wants)
		}
	})
}

func exhaustive(wants [][]option, chosen []option, room map[*freeSpace]uint64) bool {
	if !allowed(chosen, room) {
		return false
	}
	if len(chosen) == len(wants) {
		return true
	}
	return slices.ContainsFunc(wants[len(chosen)], func(o option) bool {
		return exhaustive(wants, append(slices.Clone(chosen), o), room)
	})
}

func allowed(chosen []option, room map[*freeSpace]uint64) bool {
	drawn, seen := map[*freeSpace]uint64{}, map[netip.Addr]bool{}
	for _, o := range chosen {
		if o.addr.IsValid() && seen[o.addr] {
			return false
		}
		seen[o.addr] = true
		if drawn[o.pool]++; o.pool != nil && drawn[o.pool] > room[o.pool] {
			return false
		}
	}
	return true
}
