// SPDX-License-Identifier: Apache-2.0

package iprange

import (
	"net/netip"
	"slices"
	"testing"
)

// A list keeps addresses, and their order, and knows which it has.
func TestList(t *testing.T) {
	random := newRandom(t)
	flat := func(ranges []Range) (all []netip.Addr) {
		for _, r := range ranges {
			for addr := r.First; !r.Last.Less(addr); addr = addr.Next() {
				if !slices.Contains(all, addr) {
					all = append(all, addr)
				}
			}
		}
		return all
	}
	for range 2000 {
		var ranges []Range
		for range random.IntN(9) {
			first := random.IntN(30)
			ranges = append(ranges, Range{host(first), host(first + random.IntN(6))})
		}
		list, ok := NewList(ranges, 100)
		joined := list.Ranges()
		if !ok || !slices.Equal(flat(joined), flat(ranges)) {
			t.Fatalf("NewList(%v) = %v", ranges, joined)
		}
		if exact, ok := NewList(ranges, len(joined)); !ok || !exact.Equal(list) {
			t.Fatalf("NewList(%v) gives up at %d, want %v", ranges, len(joined), joined)
		}
		for i := range 40 {
			if got, want := list.Contains(host(i)), slices.Contains(flat(ranges), host(i)); got != want {
				t.Fatalf("NewList(%v) has %s: %v, want %v", ranges, host(i), got, want)
			}
		}
		for i, r := range joined {
			if i > 0 && joined[i-1].Last.Next() == r.First {
				t.Fatalf("NewList(%v) = %v: %v goes on", ranges, joined, joined[i-1])
			}
			for _, other := range joined[:i] {
				if other.Contains(r.First) || r.Contains(other.First) {
					t.Fatalf("NewList(%v) = %v: %v and %v overlap", ranges, joined, other, r)
				}
			}
		}
		if _, ok := NewList(ranges, len(joined)-1); ok && len(joined) > 0 {
			t.Fatalf("NewList(%v) does not give up at %d", ranges, len(joined)-1)
		}
	}
}
