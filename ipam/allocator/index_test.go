// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/seedtest"
)

// after returns the n-th address after another.
func after(addr netip.Addr, n int) netip.Addr {
	at := placeOf(addr)
	at.lo += uint64(n)
	if at.lo < uint64(n) {
		at.hi++
	}
	return at.addr(addr)
}

// The index behaves like a set of addresses, also at the boundaries of words, of summaries
// and of the address space.
func TestIndex(t *testing.T) {
	const span = 5000 // more than the 4096 addresses of a word of the first summary
	for _, base := range []string{"10.0.0.0", "10.0.3.37", "255.255.236.120", "2001:db8::fff0", "2001:db8::ffff:ffff:ffff:f000", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ec78"} {
		t.Run(base, func(t *testing.T) {
			first := netip.MustParseAddr(base)
			last := after(first, span-1)
			random := rand.New(rand.NewPCG(seedtest.Seed(t), 5))
			var x index
			used, entries := [span]bool{}, [span]*entry{}
			toggle := func(i int) {
				switch {
				case used[i]:
					rests := random.IntN(4) == 0
					x.vacate(entries[i], rests)
					if used[i] = false; !rests {
						entries[i] = nil
					}
				case entries[i] == nil:
					entries[i] = &entry{addr: after(first, i)}
					fallthrough
				default:
					x.occupy(entries[i])
					used[i] = true
				}
			}
			check := func() {
				t.Helper()
				from := random.IntN(span)
				to := from + random.IntN(span-from)
				want := from
				for want <= to && used[want] {
					want++
				}
				addr, ok := x.free(after(first, from), after(first, to))
				if ok != (want <= to) || ok && addr != after(first, want) {
					t.Fatalf("the first free address of %s-%s is %s, %v; want number %d", after(first, from), after(first, to), addr, ok, want)
				}
				i := random.IntN(span)
				if x.entry(after(first, i)) != entries[i] {
					t.Fatalf("the entry of %s is not what was listed", after(first, i))
				}
			}
			// Nearly empty, nearly full, then full, and empty again.
			for _, density := range []float64{0.1, 0.5, 0.99, 0.9995, 1, 0.999, 0.2, 0} {
				for i := range span {
					if used[i] != (random.Float64() < density) {
						toggle(i)
					}
				}
				for range 500 {
					check()
					if density > 0 && density < 1 {
						toggle(random.IntN(span))
					}
				}
				var listed, found []netip.Addr
				for _, e := range entries {
					if e != nil {
						listed = append(listed, e.addr)
					}
				}
				for e := range x.within(iprange.Range{First: first, Last: last}) {
					found = append(found, e.addr)
				}
				if !slices.Equal(found, listed) {
					t.Fatalf("at density %v, within() yields %d entries, want %d", density, len(found), len(listed))
				}
			}
			for _, e := range entries {
				if e != nil {
					x.vacate(e, false)
				}
			}
			if left := size(&x); left != 0 {
				t.Errorf("an empty index keeps %d words", left)
			}
		})
	}
}

func size(x *index) int {
	words := len(x.pages)
	for _, level := range x.full {
		words += len(level)
	}
	return words
}

func TestWords64(t *testing.T) {
	for _, test := range []struct {
		first, last string
		want        uint64
	}{
		{"10.0.0.0", "10.0.0.63", 1},
		{"10.0.0.63", "10.0.0.64", 2},
		{"0.0.0.0", "255.255.255.255", 1 << 26},
		{"2001:db8::", "2001:db8::ffff:ffff:ffff:ffff", 1<<32 - 1},
		{"::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 1<<32 - 1},
	} {
		r := ranges(test.first, test.last)[0]
		if got := words64(r); got != test.want {
			t.Errorf("%s-%s is in %d words, want %d", r.First, r.Last, got, test.want)
		}
	}
}

func TestRing(t *testing.T) {
	random := rand.New(rand.NewPCG(seedtest.Seed(t), 6))
	var r ring
	var want []*entry
	for range 10_000 {
		if len(want) > 0 && random.IntN(2) == 0 {
			i := random.IntN(len(want))
			r.remove(want[i])
			want = slices.Delete(want, i, i+1)
		} else {
			e := &entry{}
			r.push(e)
			want = append(want, e)
		}
		if got := slices.Collect(r.all()); !slices.Equal(got, want) {
			t.Fatalf("the ring has %d entries, not in the order of %d", len(got), len(want))
		}
	}
}

// SetPools counts the addresses in use, both when many pools change and when few do.
func TestSetPoolsCounts(t *testing.T) {
	book := New(nil)
	fill(book, 0, 1000)
	var pools []Pool
	for i := range 10 {
		pools = append(pools, Pool{Name: fmt.Sprint(i), Ranges: iprange.Set{{First: v4(100*i + 10), Last: v4(100*i + 99)}}, Capacity: 90})
	}
	pools = append(pools, Pool{Name: "six", Ranges: ranges("2001:db8::", "2001:db8::ffff:ffff:ffff:ffff"), Capacity: Unlimited})
	check := func(name string, want Counts) {
		t.Helper()
		if got := book.Counts(name); got != want {
			t.Errorf("pool %s: %+v, want %+v", name, got, want)
		}
	}
	book.SetPools(pools)
	check("3", Counts{Capacity: 90, Allocated: 90})
	check("six", Counts{Capacity: Unlimited, Free: Unlimited})
	pools[3].Ranges, pools[3].Capacity = iprange.Set{{First: v4(305), Last: v4(399)}, {First: v4(1200), Last: v4(1204)}}, 100
	book.SetPools(pools)
	check("3", Counts{Capacity: 100, Allocated: 95, Free: 5})
	check("4", Counts{Capacity: 90, Allocated: 90})
}
