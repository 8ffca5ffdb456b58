// SPDX-License-Identifier: Apache-2.0

package iprange

import (
	"iter"
	"math"
	"math/bits"
	"net/netip"
	"slices"
)

// Set is a set of addresses as ascending, disjoint ranges.
type Set []Range

// SetOf returns the set of the addresses of ranges in any order. Overlapping and adjacent
// ranges become one.
func SetOf(ranges ...Range) Set {
	ranges = slices.Clone(ranges)
	slices.SortFunc(ranges, func(a, b Range) int { return a.First.Compare(b.First) })
	var set Set
	for _, r := range ranges {
		if n := len(set); n > 0 && set[n-1].First.BitLen() == r.First.BitLen() &&
			(!set[n-1].Last.Less(r.First) || set[n-1].Last.Next() == r.First) {
			if set[n-1].Last.Less(r.Last) {
				set[n-1].Last = r.Last
			}
			continue
		}
		set = append(set, r)
	}
	return set
}

// search returns the position of the first range that ends at or after addr.
func (s Set) search(addr netip.Addr) int {
	at, _ := slices.BinarySearchFunc(s, addr, func(r Range, addr netip.Addr) int { return r.Last.Compare(addr) })
	return at
}

// Contains reports whether addr is in the set.
func (s Set) Contains(addr netip.Addr) bool {
	at := s.search(addr)
	return at < len(s) && s[at].Contains(addr)
}

// Size returns the number of addresses, or math.MaxUint64 if it does not fit.
func (s Set) Size() uint64 {
	var total, overflow uint64
	for _, r := range s {
		if total, overflow = bits.Add64(total, r.Size(), 0); overflow != 0 {
			return math.MaxUint64
		}
	}
	return total
}

// Common yields the intersections of r with the set's ranges, ascending, each with the
// position of the set's range.
func (s Set) Common(r Range) iter.Seq2[int, Range] {
	return func(yield func(int, Range) bool) {
		for at := s.search(r.First); at < len(s); at++ {
			both, overlap := s[at].common(r)
			if !overlap || !yield(at, both) {
				return
			}
		}
	}
}

// Overlaps reports whether the set has an address of any of the ranges.
func (s Set) Overlaps(ranges []Range) bool {
	return slices.ContainsFunc(ranges, func(r Range) bool {
		at := s.search(r.First)
		return at < len(s) && !r.Last.Less(s[at].First)
	})
}

// Without returns the addresses of the set that are not in the other set.
func (s Set) Without(other Set) Set {
	var rest Set
	for _, r := range s {
		whole := true
		for _, both := range other.Common(r) {
			if r.First.Less(both.First) {
				rest = append(rest, Range{First: r.First, Last: both.First.Prev()})
			}
			if both.Last == r.Last {
				whole = false
				break
			}
			r.First = both.Last.Next()
		}
		if whole {
			rest = append(rest, r)
		}
	}
	return rest
}
