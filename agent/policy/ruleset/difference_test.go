// SPDX-License-Identifier: Apache-2.0

package ruleset_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/berth-dev/berth/agent/policy/ruleset"
)

func TestDifference(t *testing.T) {
	set := func(numbers ...byte) *ruleset.Set {
		s := &ruleset.Set{Kind: ruleset.Addresses, Family: ruleset.IPv4}
		for _, n := range numbers {
			s.Addresses = append(s.Addresses, netip.AddrFrom4([4]byte{10, 0, 0, n}))
		}
		return s
	}
	for _, tc := range []struct{ old, s, gone, came []byte }{
		{},
		{old: []byte{1}, gone: []byte{1}},
		{s: []byte{1}, came: []byte{1}},
		{old: []byte{1, 2, 3}, s: []byte{1, 2, 3}},
		{old: []byte{1, 3}, s: []byte{1, 2, 3}, came: []byte{2}},
		{old: []byte{1, 2, 3}, s: []byte{2, 3}, gone: []byte{1}},
		{old: []byte{1, 2, 3}, s: []byte{1, 2}, gone: []byte{3}},
		{old: []byte{1, 2, 4, 5, 9}, s: []byte{1, 3, 4, 6, 9}, gone: []byte{2, 5}, came: []byte{3, 6}},
	} {
		gone, came := ruleset.Difference(set(tc.old...), set(tc.s...))
		if !slices.Equal(gone.Addresses, set(tc.gone...).Addresses) || !slices.Equal(came.Addresses, set(tc.came...).Addresses) {
			t.Errorf("Difference(%v, %v) = %v, %v", tc.old, tc.s, gone.Addresses, came.Addresses)
		}
	}
}
