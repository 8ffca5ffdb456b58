// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// trunk gives a host a link for a VLAN on its uplink.
func trunk(h *netnstest.Host, id int, addrs ...string) {
	name := fmt.Sprintf("eth0.%d", id)
	h.IP("link", "add", "link", "eth0", "name", name, "type", "vlan", "id", fmt.Sprint(id))
	h.IP("link", "set", name, "up")
	for _, a := range addrs {
		args := []string{"addr", "add", a, "dev", name}
		if netip.MustParsePrefix(a).Addr().Is6() {
			args = append(args, "nodad")
		}
		h.IP(args...)
	}
}

func tagged(addr, subnet string, vlan int) api.Address {
	return api.Address{Address: netip.MustParseAddr(addr), Subnet: netip.MustParsePrefix(subnet), VLAN: vlan}
}

// A pod has addresses of two VLANs and of the untagged network, and moves between two nodes
// on a trunk. Each address answers in its own VLAN only.
func TestVLAN(t *testing.T) {
	netnstest.NeedLinks(t, "vlan")
	w := newTopology(t)
	seven, eight := netnstest.New(t), netnstest.New(t)
	for _, h := range []*netnstest.Host{seven, eight} {
		sysctl(t, h, "net/ipv6/conf/default/accept_dad", "0")
		w.wire.Plug(h, "eth0")
	}
	trunk(seven, 7, "10.0.77.50/24", "2001:db8:77::50/64")
	trunk(eight, 8, "10.0.78.50/24", "10.0.77.50/24")
	for _, n := range []*netnstest.Host{w.nodeA, w.nodeB} {
		trunk(n, 7)
		trunk(n, 8)
	}
	create := func(id string) *pod {
		p := w.pod(id, "10.0.70.5")
		p.spec.Addresses = append(p.spec.Addresses, tagged("10.0.77.5", "10.0.77.0/24", 7), tagged("10.0.78.5", "10.0.78.0/24", 8),
			tagged("2001:db8:77::5", "2001:db8:77::/64", 7))
		p.spec.MAC = v1alpha1.MACOf(p.spec.Addresses[0].Address)
		return p
	}
	before := snapshot(w.nodeA)
	a := create("a")
	setup(w.nodeA, a)
	everyone := func(p *pod) {
		t.Helper()
		for _, hop := range []struct {
			from *netnstest.Host
			to   string
		}{
			{w.client, "10.0.70.5"}, {seven, "10.0.77.5"}, {seven, "2001:db8:77::5"}, {eight, "10.0.78.5"},
			{p.Host, "10.0.70.50"}, {p.Host, "10.0.77.50"}, {p.Host, "10.0.78.50"}, {p.Host, "2001:db8:77::50"},
		} {
			hop.from.Ping(hop.to)
		}
		eight.NoPing("10.0.77.5")
	}
	everyone(a)

	b := create("b")
	w.nodeA.Run(func() error { return New("").Withdraw(a.spec) })
	for from, addr := range map[*netnstest.Host]string{w.client: "10.0.70.5", seven: "10.0.77.5", eight: "10.0.78.5"} {
		from.NoPing(addr)
	}
	setup(w.nodeB, b)
	netnstest.Eventually(t, func() error {
		w.nodeB.Run(func() error { return New("").Announce(b.spec) })
		_, err := seven.Command("ping", "-c", "1", "-W", "1", "10.0.77.5")
		return err
	})
	everyone(b)
	w.nodeA.Run(func() error { return New("").Teardown(a.spec) })
	everyone(b)
	if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
		t.Errorf("node after teardown (-before +after):\n%s", diff)
	}
}

// A node answers in a VLAN for the address of a Service, and in no other. Where its reverse path
// filter would drop the clients' packets, as without an address of the node in that network, it
// does not answer, and the error says so.
func TestVLANService(t *testing.T) {
	netnstest.NeedLinks(t, "vlan")
	w := newTopology(t)
	hosts := map[int]*netnstest.Host{7: netnstest.New(t), 8: netnstest.New(t)}
	for id, h := range hosts {
		sysctl(t, h, "net/ipv6/conf/default/accept_dad", "0")
		w.wire.Plug(h, "eth0")
		trunk(h, id, "10.0.77.50/24", "2001:db8:77::50/64")
		trunk(w.nodeA, id)
	}
	before := snapshot(w.nodeA)
	services := []Service{
		{Address: netip.MustParseAddr("10.0.77.5"), Subnet: netip.MustParsePrefix("10.0.77.0/24")},
		{Address: netip.MustParseAddr("2001:db8:77::5"), Subnet: netip.MustParsePrefix("2001:db8:77::/64")},
	}
	carry := func(s Service) error {
		return w.nodeA.Try(func() error {
			link, err := netlinksafe.LinkByName("eth0.7")
			if err != nil {
				return err
			}
			return errors.Join(New("").MarkService(s.Address), New("").CarryService(s, link.Attrs().Index))
		})
	}
	if err := carry(services[0]); !errors.Is(err, ErrServiceLink) || !strings.Contains(err.Error(), "reverse path filtering on eth0.7") {
		t.Errorf("carried in a network whose packets are dropped: %v", err)
	}
	w.nodeA.IP("addr", "add", "10.0.77.11/24", "dev", "eth0.7")
	sysctl(t, w.nodeA, "net/ipv4/conf/eth0.7/rp_filter", "2")
	answer := func(h *netnstest.Host, id int, addr netip.Addr) string {
		_, _ = h.Command("ping", "-c", "1", "-W", "1", addr.String()) // nothing answers but its neighbour discovery
		return h.IP("neigh", "show", addr.String(), "dev", fmt.Sprintf("eth0.%d", id))
	}
	for _, s := range services {
		if err := carry(s); err != nil {
			t.Fatal(err)
		}
		if got, want := answer(hosts[7], 7, s.Address), w.nodeA.MAC("eth0").String(); !strings.Contains(got, want) {
			t.Errorf("in its VLAN %s is at %q, want %s", s.Address, got, want)
		}
		if got := answer(hosts[8], 8, s.Address); strings.Contains(got, "lladdr") {
			t.Errorf("in another VLAN %s is at %q", s.Address, got)
		}
	}
	w.nodeA.IP("addr", "del", "10.0.77.11/24", "dev", "eth0.7")
	for _, s := range services {
		w.nodeA.Run(func() error { return New("").RemoveService(s.Address) })
	}
	if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
		t.Errorf("the node has changed:\n%s", diff)
	}
}
