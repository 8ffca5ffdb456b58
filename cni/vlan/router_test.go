// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"errors"
	"net/netip"
	"sync"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
)

// A container that changes its own routes does not get past its pool's gateway by its node link:
// the node forwards from there to no network, also not to its other containers, and with no source.
// It forwards answers of the container, and the connections that it translates
// (TestTranslatedConnections).
func TestNodeLinkLeadsNowhere(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, w *topology) {
		if w.config.Mode == Pure {
			return // it has no node links
		}
		sysctl(t, w.nodeA, "net/ipv4/ip_forward", "1")
		sysctl(t, w.nodeA, "net/ipv6/conf/all/forwarding", "1")
		second, elsewhere := netnstest.NewWire(t), netnstest.New(t)
		second.Plug(w.nodeA, "eth1", netip.MustParsePrefix("10.0.50.1/24"), netip.MustParsePrefix("2001:db8:50::1/64"))
		second.Plug(elsewhere, "eth0", netip.MustParsePrefix("10.0.50.2/24"), netip.MustParsePrefix("2001:db8:50::2/64"))
		elsewhere.IP("route", "add", "default", "via", "10.0.50.1")
		elsewhere.IP("-6", "route", "add", "default", "via", "2001:db8:50::1")

		a, same, beside := w.pod("a", "10.0.70.5", "2001:db8:70::5"), w.pod("same", "10.0.70.7", "2001:db8:70::7"), w.pod("beside", "10.0.80.6", "2001:db8:80::6")
		for i, subnet := range []string{"10.0.80.0/24", "2001:db8:80::/64"} {
			b := &beside.spec.Addresses[i]
			b.VLAN, b.Gateway, b.Subnet = 0, netip.Addr{}, netip.MustParsePrefix(subnet)
		}
		if w.config.Bridge != "" {
			beside.spec.Uplink = w.config.Bridge
		}
		for _, p := range []*pod{a, same, beside} {
			sysctl(t, p.Host, "net/ipv4/conf/all/rp_filter", "0")
			sysctl(t, p.Host, "net/ipv4/conf/default/rp_filter", "0")
		}
		w.setup(w.nodeA, a)
		w.setup(w.nodeA, same)
		d := w.drivers[w.nodeA]
		w.nodeA.Run(func() error { _, err := d.wirer.Setup(beside.spec.Spec); return err })
		defer w.nodeA.Run(func() error {
			return errors.Join(d.Teardown(a.spec), d.Teardown(same.spec), d.wirer.Teardown(beside.spec.Spec))
		})

		link := NodeLink(a.spec.ContainerID, a.spec.IfName)
		a.IP("addr", "add", "10.0.70.9/32", "dev", link)
		a.IP("addr", "add", "2001:db8:70::9/128", "dev", link, "nodad")
		serve(t, a.Host, servicePort)
		for _, f := range []struct{ own, foreign, node, elsewhere, same, beside string }{
			{"10.0.70.5", "10.0.70.9", "10.0.60.11", "10.0.50.2", "10.0.70.7", "10.0.80.6"},
			{"2001:db8:70::5", "2001:db8:70::9", "2001:db8:60::11", "2001:db8:50::2", "2001:db8:70::7", "2001:db8:80::6"},
		} {
			var group sync.WaitGroup
			for to, server := range map[string]*netnstest.Host{f.elsewhere: elsewhere, f.same: same.Host, f.beside: beside.Host} {
				a.IP("route", "replace", to, "via", f.node, "dev", link, "onlink")
				for _, source := range []string{f.own, f.foreign} {
					group.Go(func() {
						if seen := netnstest.Seen(t, a.Host, source, server, to); seen.IsValid() {
							t.Errorf("a packet from %s to %s passes the node link; the server sees %s", source, to, seen)
						}
					})
				}
			}
			group.Wait()
			seen, err := ask(elsewhere, netip.AddrPortFrom(netip.MustParseAddr(f.own), servicePort), true)
			if seen != f.elsewhere || err != nil {
				t.Errorf("an answer of %s to a client that the node led to it: the server sees %q, %v", f.own, seen, err)
			}
			a.Ping(f.node)
		}
	})
}
