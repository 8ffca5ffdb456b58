// SPDX-License-Identifier: Apache-2.0

package iprange

import (
	"testing"
)

// A table behaves like a map of single addresses in which the first value stays.
func TestTable(t *testing.T) {
	random := newRandom(t)
	for range 1000 {
		var table Table[int]
		want := map[int]int{}
		for value := range 5 {
			ranges := draw(random)
			added := table.Add(SetOf(ranges...), value)
			for i := range 60 {
				_, has := want[i]
				if added.Contains(host(i)) != (contains(ranges, host(i)) && !has) {
					t.Fatalf("adding %v added %v: wrong at %s", ranges, added, host(i))
				}
				if !has && contains(ranges, host(i)) {
					want[i] = value
				}
			}
		}
		for i := range 60 {
			value, ok := table.Lookup(host(i))
			if wantValue, wantOK := want[i]; value != wantValue || ok != wantOK {
				t.Fatalf("%s has %d, %v; want %d, %v", host(i), value, ok, wantValue, wantOK)
			}
		}
		first := random.IntN(60)
		within := Range{host(first), host(first + random.IntN(60-first))}
		next := first
		for both, value := range table.Common(within) {
			for ; host(next) != both.First; next++ {
				if _, ok := want[next]; ok {
					t.Fatalf("the intersection with %s lacks %s", within, host(next))
				}
			}
			for ; !both.Last.Less(host(next)); next++ {
				if got, ok := want[next]; !ok || got != value || !within.Contains(host(next)) {
					t.Fatalf("%s is common with %s as %d, want %d, %v", host(next), within, value, got, ok)
				}
			}
		}
	}
}
