// SPDX-License-Identifier: Apache-2.0

package iprange

import (
	"iter"
	"net/netip"
	"slices"
)

// Table gives values to ranges of addresses, one to an address. The zero table is
// empty.
type Table[V any] struct {
	ranges Set
	values []V // of the ranges
}

// Add gives a value to the addresses of a set that have none, and returns these.
func (t *Table[V]) Add(set Set, value V) Set {
	added := set.Without(t.ranges)
	for _, r := range added {
		at := t.ranges.search(r.First)
		t.ranges = slices.Insert(t.ranges, at, r)
		t.values = slices.Insert(t.values, at, value)
	}
	return added
}

// Lookup returns the value of an address, if it has one.
func (t *Table[V]) Lookup(addr netip.Addr) (value V, ok bool) {
	if at := t.ranges.search(addr); at < len(t.ranges) && t.ranges[at].Contains(addr) {
		return t.values[at], true
	}
	return value, false
}

// Common yields what of a range has values, ascending.
func (t *Table[V]) Common(r Range) iter.Seq2[Range, V] {
	return func(yield func(Range, V) bool) {
		for at, both := range t.ranges.Common(r) {
			if !yield(both, t.values[at]) {
				return
			}
		}
	}
}
