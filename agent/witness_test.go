// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/containernetworking/plugins/pkg/netlinksafe"

	"github.com/berth-dev/berth/agent/netnstest"
)

// The node's default gateways of both families are controls, and no other routers.
func TestNodeGateways(t *testing.T) {
	netnstest.Need(t)
	w, node := netnstest.NewWire(t), netnstest.New(t)
	w.Plug(node, "eth0", netip.MustParsePrefix("10.0.60.11/24"), netip.MustParsePrefix("2001:db8:60::11/64"))
	gateways := func() (all []netip.Addr) {
		if err := node.Try(func() error {
			link, err := netlinksafe.LinkByName("eth0")
			if err != nil {
				return fmt.Errorf("find eth0: %w", err)
			}
			all = nodeGateways(t.Context(), link)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return all
	}
	node.IP("route", "add", "10.9.0.0/16", "via", "10.0.60.9")
	node.IP("route", "add", "2001:db8:9::/48", "via", "2001:db8:60::9")
	if got := gateways(); len(got) > 0 {
		t.Errorf("without a default route: %v", got)
	}
	node.IP("route", "add", "default", "via", "2001:db8:60::1")
	if got := fmt.Sprint(gateways()); got != "[2001:db8:60::1]" {
		t.Errorf("with a route of IPv6: %s", got)
	}
	node.IP("route", "add", "default", "via", "10.0.60.1")
	if got := fmt.Sprint(gateways()); got != "[10.0.60.1 2001:db8:60::1]" {
		t.Errorf("with both: %s", got)
	}
}
