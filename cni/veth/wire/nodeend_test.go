// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
)

// A node's first address is on a network that has nothing to do with the pods'. Pods see the node
// by the address of its uplink, also where the node masquerades, and after the uplink got another
// address.
func TestNodeEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ any, own, first, node, next, client string }{
		"IPv4": {"0.0.0.0", "10.0.70.5", "192.0.2.9/32", "10.0.60.11/24", "10.0.60.31/24", "10.0.70.50"},
		"IPv6": {"::", "2001:db8:70::5", "2001:db8:90::9/128", "2001:db8:60::11/64", "2001:db8:60::31/64", "2001:db8:70::50"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTopology(t)
			p := w.pod("a", c.own)
			setup(w.nodeA, p)
			own := netip.MustParsePrefix(c.node).Addr().String()
			if have := w.nodeA.IP("-o", "addr", "show", "dev", p.spec.HostLink()); strings.Contains(have, " "+own+"/") {
				t.Errorf("the pod's link repeats the only address of the node: %s", have)
			}
			w.nodeA.IP("addr", "add", c.first, "dev", "lo")
			repaired := func() {
				t.Helper()
				w.nodeA.Run(func() error {
					if err := New("").CheckNode(p.spec); !errors.Is(err, ErrNotWired) {
						t.Errorf("the node has another address, CheckNode() = %v", err)
					}
					return errors.Join(New("").Repair(p.spec), New("").CheckNode(p.spec))
				})
			}
			repaired()
			w.nodeA.Run(netnstest.Masquerade)
			seen := func(want string) {
				t.Helper()
				for what, got := range map[string]string{
					"node":   netnstest.Seen(t, w.nodeA, c.any, p.Host, c.own).String(),
					"client": netnstest.Seen(t, w.client, c.client, p.Host, c.own).String(),
				} {
					if want := netip.MustParsePrefix(want).Addr().String(); got != want {
						t.Errorf("the pod sees the %s as %s, want %s", what, got, want)
					}
				}
			}
			seen(c.node)
			w.nodeA.IP("addr", "add", c.next, "dev", "eth0", "nodad")
			w.nodeA.IP("addr", "del", c.node, "dev", "eth0")
			w.nodeA.IP("addr", "replace", c.next, "dev", "eth0", "nodad") // went with the first one of its subnet
			repaired()
			seen(c.next)
		})
	}
}
