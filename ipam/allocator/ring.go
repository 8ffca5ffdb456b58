// SPDX-License-Identifier: Apache-2.0

package allocator

import "iter"

// ring is a queue of entries, linked by prev and next of the entries: an entry is in
// one ring at most. The zero value is empty.
type ring struct{ first *entry }

func (r *ring) push(e *entry) {
	if r.first == nil {
		r.first, e.prev, e.next = e, e, e
		return
	}
	e.prev, e.next = r.first.prev, r.first
	e.prev.next, e.next.prev = e, e
}

// remove takes out an entry that is in the ring.
func (r *ring) remove(e *entry) {
	if e.next == e {
		r.first = nil
	} else {
		e.prev.next, e.next.prev = e.next, e.prev
		if r.first == e {
			r.first = e.next
		}
	}
	e.prev, e.next = nil, nil
}

// all yields the entries in order. The ring must not change during the iteration.
func (r *ring) all() iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for e := r.first; e != nil; {
			if !yield(e) {
				return
			}
			if e = e.next; e == r.first {
				return
			}
		}
	}
}
