// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"net/netip"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/ipam/iprange"
)

// A cluster may have more ranges than one message to the kernel has room for, and any of
// them may change.
func TestManyRanges(t *testing.T) {
	node := netnstest.New(t)
	spec := Spec{Masquerade: true, Tunnel: 8472, Peers: []netip.Addr{netip.MustParseAddr("10.0.60.12")}}
	for _, text := range []string{"10.0.0.1", "2001:db8::1"} {
		addr := netip.MustParseAddr(text)
		for range 4001 {
			spec.Inside = append(spec.Inside, iprange.Range{First: addr, Last: addr})
			addr = addr.Next().Next()
		}
	}
	node.Run(func() error {
		for step, inside := range [][]iprange.Range{spec.Inside, spec.Inside[1:], spec.Inside[:3]} {
			spec.Inside = inside
			for again, want := range []bool{true, false} {
				changed, err := Put(spec)
				if err != nil {
					return err
				}
				if changed != want {
					t.Errorf("step %d: call %d changed something is %t, want %t", step, again+1, changed, want)
				}
			}
		}
		return nil
	})
}
