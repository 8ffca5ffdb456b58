// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"net/netip"
	"testing"

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
