// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/rtnl"
)

// boot starts a guest behind the pod, as KubeVirt's bridge binding does: the pod gives the guest
// its MAC address and its addresses.
func (p *pod) boot(t *testing.T) *netnstest.Host {
	t.Helper()
	guest := netnstest.New(t)
	// A virtual machine's interface keeps its carrier in a migration.
	for _, key := range []string{"net/ipv4/conf/default/arp_evict_nocarrier", "net/ipv6/conf/default/ndisc_evict_nocarrier", "net/ipv6/conf/default/accept_dad"} {
		sysctl(t, guest, key, "0")
	}
	p.IP("link", "add", "tap0", "type", "veth", "peer", "name", "eth0", "netns", guest.Path())
	p.bind()
	guest.IP("link", "set", "eth0", "address", p.spec.MAC.String(), "up")
	for _, a := range p.spec.Addresses {
		guest.IP("addr", "add", fmt.Sprintf("%s/%d", a.Address, a.Address.BitLen()), "dev", "eth0", "nodad")
	}
	for _, way := range podRoutes(p.spec.Addresses) {
		guest.IP("route", "add", way.Gateway.String(), "dev", "eth0")
		guest.IP("route", "add", way.Destination.String(), "via", way.Gateway.String(), "dev", "eth0")
	}
	return guest
}

// bind gives the pod's link to the guest whose link is tap0.
func (p *pod) bind() {
	p.IP("link", "set", "eth0", "down")
	p.IP("addr", "flush", "dev", "eth0")
	p.IP("link", "set", "eth0", "address", "02:00:00:11:22:33")
	p.IP("link", "add", "k6t-eth0", "type", "bridge")
	for _, link := range []string{"eth0", "tap0"} {
		p.IP("link", "set", link, "master", "k6t-eth0", "up")
	}
	p.IP("link", "set", "k6t-eth0", "up")
}

// A guest behind a bridge in the pod asks for its gateway, and what it hears is right after a live
// migration to another node.
func TestGuest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ own, client, outside, other, permanent string }{
		"IPv4": {"10.0.70.5", "10.0.70.50", outside4, "10.0.70.6", "169.254.1.9"},
		"IPv6": {"2001:db8:70::5", "2001:db8:70::50", outside6, "2001:db8:70::6", "fe80::9"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTopology(t)
			source, target, other := w.pod("source", c.own), w.pod("target", c.own), w.pod("other", c.other)
			gateway := podGateway(source.spec.Addresses[0].Address).String()
			setup(w.nodeA, source)
			setup(w.nodeA, other)
			w.nodeA.IP("neigh", "add", "proxy", c.permanent, "dev", source.spec.HostLink())
			guest := source.boot(t)
			if !strings.Contains(w.nodeA.IP("neigh", "show", "proxy"), c.permanent) && !strings.Contains(w.nodeA.IP("-6", "neigh", "show", "proxy"), c.permanent) {
				t.Log("this kernel forgets permanent entries of a link that loses its carrier, until a repair")
				w.nodeA.Run(func() error { return New("").Repair(source.spec) })
			}
			known := func() string {
				for line := range strings.Lines(guest.IP("neigh", "show", gateway, "dev", "eth0")) {
					if _, rest, ok := strings.Cut(line, "lladdr "); ok {
						return strings.Fields(rest)[0]
					}
				}
				return "none"
			}
			reaches := func(node *netnstest.Host) {
				t.Helper()
				for _, to := range []string{c.client, c.outside, c.other} {
					guest.Ping(to)
				}
				w.client.Ping(c.own)
				node.Ping(c.own)
			}
			reaches(w.nodeA)
			heard := known()
			// A guest asks a neighbour that it knows by unicast.
			guest.IP("neigh", "change", gateway, "dev", "eth0", "nud", "probe")
			netnstest.Eventually(t, func() error {
				if state := guest.IP("neigh", "show", gateway, "dev", "eth0"); !strings.Contains(state, "REACHABLE") {
					return errors.New(state)
				}
				return nil
			})

			// From now on it does not ask.
			guest.IP("neigh", "replace", gateway, "lladdr", heard, "dev", "eth0", "nud", "permanent")
			w.nodeA.Run(func() error { return New("").Withdraw(source.spec) })
			setup(w.nodeB, target)
			source.IP("link", "set", "tap0", "netns", target.Path())
			target.bind()
			reaches(w.nodeB)
			if got := target.hostMAC(w.nodeB); heard != got {
				t.Errorf("the guest knows the gateway at %s, after the migration it is at %s", heard, got)
			}
		})
	}
}

// hostMAC returns the MAC of the node's end of the pod's link.
func (p *pod) hostMAC(node *netnstest.Host) string { return node.MAC(p.spec.HostLink()).String() }

// The node answers a guest for the gateway alone, and nobody else for the gateway.
func TestGuestAsksForOthers(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	p, other := w.pod("p", "10.0.70.5", "2001:db8:70::5"), w.pod("other", "10.0.70.6", "2001:db8:70::6")
	setup(w.nodeA, p)
	setup(w.nodeA, other)
	w.nodeA.Run(func() error {
		for _, a := range p.spec.Addresses {
			answered, err := AnsweredOn(rtnl.FamilyOf(a.Address))
			if link, found := answered[podGateway(a.Address)]; err != nil || found {
				t.Errorf("the gateway counts as an address of a pod on %s, %v", link, err)
			}
		}
		return errors.Join(New("").RemoveLoose(), New("").CheckNode(p.spec))
	})
	guest := p.boot(t)
	asks := func(h *netnstest.Host, to ...string) {
		t.Helper()
		for _, addr := range to {
			h.IP("route", "add", addr, "dev", "eth0")
		}
		h.NoPing(to...)
		for _, addr := range to {
			if state := h.IP("neigh", "show", addr, "dev", "eth0"); strings.Contains(state, "lladdr") {
				t.Errorf("somebody answers for %s: %s", addr, state)
			}
		}
	}
	asks(guest, "169.254.1.2", "10.0.70.6", "10.0.70.50", outside4, "fe80::2", "2001:db8:70::6", "2001:db8:70::50", outside6)
	asks(w.client, "169.254.1.1")
	for _, addr := range []string{"10.0.70.50", "2001:db8:70::50"} {
		guest.IP("route", "del", addr, "dev", "eth0")
		guest.Ping(addr)
	}
}
