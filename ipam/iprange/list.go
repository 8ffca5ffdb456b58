// SPDX-License-Identifier: Apache-2.0

package iprange

import (
	"math"
	"net/netip"
	"slices"
)

// List is ranges in an order of preference, each address once. It is immutable; the zero value has
// no range.
type List struct {
	ranges []Range
	set    Set
}

// ListOf returns the list of the addresses of ranges, in their order. Adjacent ranges that follow
// each other become one.
func ListOf(ranges ...Range) List {
	list, _ := NewList(ranges, math.MaxInt)
	return list
}

// NewList is ListOf. ok is false if more than most ranges remain.
func NewList(ranges []Range, most int) (list List, ok bool) {
	for _, r := range ranges {
		for _, r := range (Set{r}).Without(list.set) {
			at := list.set.search(r.First)
			list.set = slices.Insert(list.set, at, r)
			if n := len(list.ranges); n > 0 && list.ranges[n-1].Last.Next() == r.First {
				list.ranges[n-1].Last = r.Last
				list.set[at-1].Last = r.Last
				list.set = slices.Delete(list.set, at, at+1)
			} else {
				list.ranges = append(list.ranges, r)
			}
		}
		if len(list.ranges) > most {
			return List{}, false
		}
	}
	return list, true
}

// Ranges returns the ranges in order. The caller must not modify them.
func (l List) Ranges() []Range { return l.ranges }

// IsEmpty reports whether the list has no range.
func (l List) IsEmpty() bool { return len(l.ranges) == 0 }

// Contains reports whether an address is in the list.
func (l List) Contains(addr netip.Addr) bool { return l.set.Contains(addr) }

// Equal reports whether the lists have the same ranges in the same order.
func (l List) Equal(other List) bool { return slices.Equal(l.ranges, other.ranges) }
