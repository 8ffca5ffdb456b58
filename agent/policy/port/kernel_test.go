// SPDX-License-Identifier: Apache-2.0

package port

import (
	"net/netip"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy/place"
)

// Guard writes the ports that changed, puts back what another program changed, and removes the
// table with the last port.
func TestGuard(t *testing.T) {
	netnstest.Need(t)
	node := netnstest.New(t)
	ports := []place.Port{
		{Name: "veth0", Addresses: []netip.Addr{netip.MustParseAddr("10.244.0.11"), netip.MustParseAddr("fe80::11")}},
		{Name: "veth1", Addresses: []netip.Addr{netip.MustParseAddr("10.244.0.12")}},
	}
	expect := func(ports []place.Port, want bool) {
		t.Helper()
		node.Run(func() error {
			changed, err := tableOf(ports).Sync()
			if changed != want {
				t.Errorf("the table changed: %t, want %t", changed, want)
			}
			return err
		})
	}
	expect(ports, true)
	expect(ports, false)
	expect(ports[:1], true)
	expect(ports[:1], false)
	for _, command := range []string{"flush chain bridge berth-policy to_pods", "add element bridge berth-policy addresses4 { veth0 . 10.244.0.99 }"} {
		if out, err := node.Command("nft", command); err != nil {
			t.Fatal(err, out)
		}
		expect(ports[:1], true)
	}
	node.Run(func() error { return Guard(nil) })
	if out, err := node.Command("nft", "list", "tables"); err != nil || out != "" {
		t.Errorf("left: %s %v", out, err)
	}
}
