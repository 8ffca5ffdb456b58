// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/berth-dev/berth/cni/rtnl"
)

// A node may have a route over the overlay to an address that moved to another node before
// the node withdraws it. Such a route is no pod of this node: the node stops answering.
func TestWithdrawWithOverlay(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	p := w.pod("a", "10.0.70.5", "2001:db8:70::5")
	setup(w.nodeA, p)
	w.client.Ping("10.0.70.5")
	w.nodeA.IP("route", "add", "10.0.70.5/32", "via", "10.0.60.12", "dev", "eth0", "onlink", "proto", fmt.Sprint(rtnl.Protocol), "metric", "2048")
	w.nodeA.IP("-6", "route", "add", "2001:db8:70::5/128", "via", "2001:db8:60::12", "dev", "eth0", "onlink", "proto", fmt.Sprint(rtnl.Protocol), "metric", "2048")
	w.nodeA.Run(func() error { return New("").Withdraw(p.spec) })
	if proxies := w.nodeA.IP("neigh", "show", "proxy") + w.nodeA.IP("-6", "neigh", "show", "proxy"); strings.Contains(proxies, "70") {
		t.Errorf("the node still answers for %s", proxies)
	}
	if routes := w.nodeA.IP("route") + w.nodeA.IP("-6", "route"); !strings.Contains(routes, "10.0.70.5 via 10.0.60.12") || !strings.Contains(routes, "2001:db8:70::5 via 2001:db8:60::12") {
		t.Errorf("the overlay's routes are gone: %s", routes)
	}
	// When the address comes back, the overlay's route may still be there.
	setup(w.nodeA, p)
	w.client.Ping("10.0.70.5")
	w.client.Ping("2001:db8:70::5")
	w.nodeA.Run(func() error {
		links, err := New("").List()
		if len(links) != 1 || !slices.Contains(links[0].Addresses, netip.MustParseAddr("10.0.70.5")) {
			err = errors.Join(err, fmt.Errorf("links are %v", links))
		}
		return errors.Join(err, New("").Teardown(p.spec))
	})
}
