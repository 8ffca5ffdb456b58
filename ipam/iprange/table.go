// SPDX-License-Identifier: Apache-2.0

package iprange

import (
	"iter"
	"net/netip"
	"slices"
)

// Table maps addresses to values, by range. The zero Table is empty.
type Table[V any] struct {
	ranges Set
	values []V // of the ranges
}

// Add maps the addresses of a set that have no value yet to value. It returns these
// addresses.
func (t *Table[V]) Add(set Set, value V) Set {
	added := set.Without(t.ranges)
	for _, r := range added {
		at := t.ranges.search(r.First)
		t.ranges = slices.Insert(t.ranges, at, r)
		t.values = slices.Insert(t.values, at, value)
	}
	return added
}

// Lookup returns the value of an address; ok is false if it has none.
func (t *Table[V]) Lookup(addr netip.Addr) (value V, ok bool) {
	if at := t.ranges.search(addr); at < len(t.ranges) && t.ranges[at].Contains(addr) {
		return t.values[at], true
	}
	return value, false
}

// Common yields the subranges of r that have a value, ascending.
func (t *Table[V]) Common(r Range) iter.Seq2[Range, V] {
	return func(yield func(Range, V) bool) {
		for at, both := range t.ranges.Common(r) {
			if !yield(both, t.values[at]) {
				return
			}
		}
	}
}
