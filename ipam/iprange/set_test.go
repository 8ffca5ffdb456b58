// SPDX-License-Identifier: Apache-2.0

package iprange

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/berth-dev/berth/ipam/seedtest"
)

func newRandom(t *testing.T) *rand.Rand {
	return rand.New(rand.NewPCG(seedtest.Seed(t), 0))
}

// draw returns up to five random ranges of hosts below 60.
func draw(random *rand.Rand) []Range {
	var ranges []Range
	for range random.IntN(6) {
		first := random.IntN(60)
		last := min(first+random.IntN(8), 59)
		ranges = append(ranges, Range{host(first), host(last)})
	}
	return ranges
}

// Random sets of ranges behave like sets of single addresses.
func TestWithout(t *testing.T) {
	random := newRandom(t)
	for range 5000 {
		from, taken := draw(random), draw(random)
		got := SetOf(from...).Without(SetOf(taken...))
		for i := range 60 {
			want := contains(from, host(i)) && !contains(taken, host(i))
			if contains(got, host(i)) != want || got.Contains(host(i)) != want {
				t.Fatalf("%v less %v is %v: wrong at %s", from, taken, got, host(i))
			}
		}
		if got.Overlaps(taken) {
			t.Fatalf("%v less %v is %v, which overlaps them", from, taken, got)
		}
		for i := 1; i < len(got); i++ {
			if !got[i-1].Last.Less(got[i].First) {
				t.Fatalf("%v less %v is %v: not ascending", from, taken, got)
			}
		}
	}
}

func host(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}) }

func contains(ranges []Range, addr netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r Range) bool { return r.Contains(addr) })
}

func TestSetSize(t *testing.T) {
	for _, test := range []struct {
		name   string
		ranges []string
		want   uint64
	}{
		{"empty", nil, 0},
		{"overlapping ranges", []string{"10.0.0.1-10.0.0.8", "10.0.0.5-10.0.0.10"}, 10},
		{"both families", []string{"10.0.0.0/24", "2001:db8::/120"}, 512},
		{"the largest size that is not cut", []string{"2001:db8::1-2001:db8::ffff:ffff:ffff:fffe", "2001:db8:1::"}, math.MaxUint64},
		{"one range beyond 64 bits", []string{"2001:db8::/48"}, math.MaxUint64},
		{"ranges beyond 64 bits in total", []string{"2001:db8::/65", "2001:db8:1::/65"}, math.MaxUint64},
		{"more ranges after that", []string{"10.0.0.1", "2001:db8::/48", "2001:db8:1::1", "2001:db8:2::1"}, math.MaxUint64},
	} {
		t.Run(test.name, func(t *testing.T) {
			var ranges []Range
			for _, text := range test.ranges {
				r, err := Parse(text)
				if err != nil {
					t.Fatal(err)
				}
				ranges = append(ranges, r)
			}
			if got := SetOf(ranges...).Size(); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}
