// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/sriov"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// topology is two nodes in 10.0.60.0/24 on a trunk, and on the same trunk a client and the
// router of the pool's 10.0.70.0/24, which is untagged or has the VLAN of the test.
type topology struct {
	t                            *testing.T
	wire                         *netnstest.Wire
	config                       Config
	vlan                         int
	drivers                      map[*netnstest.Host]*Driver
	nodeA, nodeB, client, router *netnstest.Host
}

const (
	outside4 = "10.99.0.1"
	outside6 = "2001:db8:99::1"
)

func newTopology(t *testing.T, config Config, vlan int) *topology {
	t.Helper()
	netnstest.Need(t)
	w := &topology{t: t, wire: netnstest.NewWire(t), config: config, vlan: vlan, drivers: map[*netnstest.Host]*Driver{}}
	w.nodeA, w.nodeB, w.client, w.router = netnstest.New(t), netnstest.New(t), netnstest.New(t), netnstest.New(t)
	for _, h := range []*netnstest.Host{w.nodeA, w.nodeB, w.client, w.router} {
		sysctl(t, h, "net/ipv6/conf/default/accept_dad", "0")
		// The router and its neighbours are on one segment; a redirect past the router would
		// outlive the pod's move.
		for _, key := range []string{"ipv4/conf/all", "ipv4/conf/default", "ipv6/conf/all", "ipv6/conf/default"} {
			sysctl(t, h, "net/"+key+"/accept_redirects", "0")
		}
		w.wire.Plug(h, "eth0")
	}
	for i, n := range []*netnstest.Host{w.nodeA, w.nodeB} {
		w.drivers[n] = New(wire.New(""), sriov.New(t.TempDir()))
		strict := "1"
		if config.Mode == Pure {
			strict = "0" // package wire tests it
		}
		sysctl(t, n, "net/ipv4/conf/all/rp_filter", strict)
		sysctl(t, n, "net/ipv4/conf/default/rp_filter", strict)
		link := "eth0"
		if config.Bridge != "" {
			// An administrator's bridge with the node's address.
			link = config.Bridge
			n.IP("link", "add", link, "type", "bridge")
			n.IP("link", "set", "eth0", "master", link)
			n.IP("link", "set", link, "up")
		}
		address(n, link, fmt.Sprintf("10.0.60.%d/24", 11+i), fmt.Sprintf("2001:db8:60::%d/64", 11+i))
		n.IP("route", "add", "default", "via", "10.0.60.1")
		n.IP("-6", "route", "add", "default", "via", "2001:db8:60::1")
		// The kernel makes it a moment after the address, and snapshots have it.
		netnstest.Eventually(t, func() error {
			if local := fmt.Sprintf("2001:db8:60::%d", 11+i); !strings.Contains(n.IP("-6", "route", "show", "table", "local"), local) {
				return fmt.Errorf("no local route to %s", local)
			}
			return nil
		})
	}
	address(w.router, "eth0", "10.0.60.1/24", "2001:db8:60::1/64")
	address(w.router, "lo", outside4+"/32", outside6+"/128")
	address(w.router, w.poolLink(w.router), "10.0.70.1/24", "2001:db8:70::1/64", "172.31.1.1/32", "169.254.7.1/32", "fe80::1/64", "2001:db8:71::1/128")
	address(w.client, w.poolLink(w.client), "10.0.70.50/24", "2001:db8:70::50/64")
	sysctl(t, w.router, "net/ipv4/ip_forward", "1")
	sysctl(t, w.router, "net/ipv6/conf/all/forwarding", "1")
	w.client.IP("route", "add", "default", "via", "10.0.70.1")
	w.client.IP("-6", "route", "add", "default", "via", "2001:db8:70::1")
	return w
}

// poolLinkName is the name of a client's link to the pool's network.
func (w *topology) poolLinkName() string {
	if w.vlan == 0 {
		return "eth0"
	}
	return "pool0"
}

// poolLink makes the host's link to the pool's network.
func (w *topology) poolLink(h *netnstest.Host) string {
	if w.vlan == 0 {
		return "eth0"
	}
	h.IP("link", "add", "link", "eth0", "name", "pool0", "type", "vlan", "id", fmt.Sprint(w.vlan))
	h.IP("link", "set", "pool0", "up")
	return "pool0"
}

func address(h *netnstest.Host, link string, addrs ...string) {
	for _, a := range addrs {
		args := []string{"addr", "add", a, "dev", link}
		if netip.MustParsePrefix(a).Addr().Is6() {
			args = append(args, "nodad")
		}
		h.IP(args...)
	}
}

func sysctl(t *testing.T, h *netnstest.Host, key, value string) {
	t.Helper()
	h.Run(func() error { return os.WriteFile("/proc/sys/"+key, []byte(value), 0o644) })
}

type pod struct {
	*netnstest.Host
	spec Spec
}

func (w *topology) pod(id string, addrs ...string) *pod {
	w.t.Helper()
	h := netnstest.New(w.t)
	p := &pod{Host: h, spec: Spec{Config: w.config, Spec: wire.Spec{ContainerID: id, IfName: "eth0", NetNS: h.Path(), Uplink: "eth0"}}}
	for _, a := range addrs {
		p.spec.Addresses = append(p.spec.Addresses, w.poolAddress(a))
	}
	p.spec.MAC = v1alpha1.MACOf(p.spec.Addresses[0].Address)
	return p
}

func (w *topology) poolAddress(a string) api.Address {
	addr := netip.MustParseAddr(a)
	if addr.Is4() {
		return api.Address{Address: addr, Subnet: netip.MustParsePrefix("10.0.70.0/24"), Gateway: netip.MustParseAddr("10.0.70.1"), VLAN: w.vlan}
	}
	return api.Address{Address: addr, Subnet: netip.MustParsePrefix("2001:db8:70::/64"), Gateway: netip.MustParseAddr("2001:db8:70::1"), VLAN: w.vlan}
}

func (w *topology) setup(node *netnstest.Host, p *pod) {
	w.t.Helper()
	node.Run(func() error {
		d := w.drivers[node]
		if _, err := d.Setup(p.spec); err != nil {
			return err
		}
		return errors.Join(d.Announce(p.spec), d.Check(p.spec), d.CheckNode(p.spec))
	})
}

// snapshot returns the links, rules, routes and answers of a node's kernel.
func snapshot(node *netnstest.Host) string {
	var b strings.Builder
	for _, args := range [][]string{
		{"-br", "link", "show"}, {"rule"}, {"-6", "rule"},
		{"route", "show", "table", "all"}, {"-6", "route", "show", "table", "all"}, {"neigh", "show", "proxy"}, {"-6", "neigh", "show", "proxy"},
	} {
		for line := range strings.SplitSeq(node.IP(args...), "\n") {
			if strings.HasPrefix(line, fmt.Sprint(wire.PriorityMain)+":") || strings.Contains(line, "fe80") || strings.HasPrefix(line, "anycast") || strings.Contains(line, "ff00::/8") {
				continue
			}
			fmt.Fprintln(&b, strings.Join(strings.Fields(line), " "))
		}
	}
	node.Run(func() error {
		chains, err := chainNames()
		fmt.Fprintln(&b, chains)
		return err
	})
	return b.String()
}

// networkType is a mode on a network that is untagged or a VLAN.
type networkType struct {
	Config
	vlan int
}

// networkTypes are all network types, and the types of links that the kernel needs for them.
var networkTypes = map[string]struct {
	networkType
	needs []string
}{
	"macvlan":           {networkType{Config{Mode: Macvlan}, 0}, []string{"macvlan"}},
	"macvlan on a VLAN": {networkType{Config{Mode: Macvlan}, 7}, []string{"vlan", "macvlan"}},
	"bridge":            {networkType{Config{Mode: Bridge, Bridge: "br0"}, 0}, nil},
	"bridge on a VLAN":  {networkType{Config{Mode: Bridge}, 7}, []string{"vlan"}},
	"ipvlan l2":         {networkType{Config{Mode: IPvlan}, 0}, []string{"ipvlan"}},
	"ipvlan l2 on VLAN": {networkType{Config{Mode: IPvlan, IPvlanMode: L2}, 7}, []string{"vlan", "ipvlan"}},
	"ipvlan l3s":        {networkType{Config{Mode: IPvlan, IPvlanMode: L3S}, 0}, []string{"ipvlan"}},
	"ipvlan l3s VLAN":   {networkType{Config{Mode: IPvlan, IPvlanMode: L3S}, 7}, []string{"vlan", "ipvlan"}},
	"ipvlan l3":         {networkType{Config{Mode: IPvlan, IPvlanMode: L3}, 0}, []string{"ipvlan"}},
	"pure on a VLAN":    {networkType{Config{Mode: Pure}, 7}, []string{"vlan"}},
}

// eachType runs a test for every network type, each in namespaces of its own: most wait for packets
// that do not come.
func eachType(t *testing.T, run func(t *testing.T, w *topology)) {
	for name, c := range networkTypes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			netnstest.NeedLinks(t, c.needs...)
			run(t, newTopology(t, c.Config, c.vlan))
		})
	}
}

// route makes the network route the pod to its node, where nobody answers for it.
func (w *topology) route(p *pod, node *netnstest.Host) {
	if w.config.IPvlanMode != L3 {
		return
	}
	via := map[*netnstest.Host][2]string{w.nodeA: {"10.0.60.11", "2001:db8:60::11"}, w.nodeB: {"10.0.60.12", "2001:db8:60::12"}}[node]
	for _, a := range p.spec.Addresses {
		next, gateway := via[0], "10.0.70.1"
		if a.Address.Is6() {
			next, gateway = via[1], "2001:db8:70::1"
		}
		w.router.IP("route", "replace", a.Address.String(), "via", next)
		w.client.IP("route", "replace", a.Address.String(), "via", gateway)
	}
}

// via gives the addresses of a pod gateways that are on the link and in no subnet of the pod's.
func (p *pod) via(gateways ...string) *pod {
	for i, g := range gateways {
		p.spec.Addresses[i].Gateway = netip.MustParseAddr(g)
	}
	return p
}

// Everyone reaches everyone, both families; the address moves to another node and the client
// goes on; nothing is left on a node without pods.
func TestTraffic(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, w *topology) {
		before := snapshot(w.nodeA)
		a, a2, b := w.pod("a", "10.0.70.5", "2001:db8:70::5"), w.pod("a2", "10.0.70.6", "2001:db8:70::6"), w.pod("b", "10.0.70.7", "2001:db8:70::7")
		local := w.pod("local", "10.0.70.8", "2001:db8:70::8").via("169.254.7.1", "fe80::1")
		further := w.pod("further", "10.0.70.9", "2001:db8:70::9").via("172.31.1.1", "2001:db8:71::1")
		for p, node := range map[*pod]*netnstest.Host{a: w.nodeA, a2: w.nodeA, b: w.nodeB, local: w.nodeA, further: w.nodeB} {
			w.setup(node, p)
			w.route(p, node)
		}
		w.setup(w.nodeA, a) // once more
		for _, hop := range []struct {
			from   *netnstest.Host
			v4, v6 string
		}{
			{w.client, "10.0.70.5", "2001:db8:70::5"}, {a.Host, "10.0.70.50", "2001:db8:70::50"},
			{w.router, "10.0.70.5", "2001:db8:70::5"}, {a.Host, outside4, outside6},
			{a.Host, "10.0.70.6", "2001:db8:70::6"}, {a2.Host, "10.0.70.5", "2001:db8:70::5"},
			{a.Host, "10.0.70.7", "2001:db8:70::7"}, {b.Host, "10.0.70.5", "2001:db8:70::5"},
			{w.nodeA, "10.0.70.5", "2001:db8:70::5"}, {a.Host, "10.0.60.11", "2001:db8:60::11"},
			{w.nodeB, "10.0.70.5", "2001:db8:70::5"}, {a.Host, "10.0.60.12", "2001:db8:60::12"},
			{local.Host, "169.254.7.1", "2001:db8:70::1"}, {local.Host, outside4, outside6}, {local.Host, "10.0.70.5", "2001:db8:70::5"},
			{further.Host, "172.31.1.1", "2001:db8:71::1"}, {further.Host, outside4, outside6}, {w.client, "10.0.70.9", "2001:db8:70::9"},
		} {
			hop.from.Ping(hop.v4)
			hop.from.Ping(hop.v6)
		}

		moved := w.pod("moved", "10.0.70.5", "2001:db8:70::5")
		w.nodeA.Run(func() error { return w.drivers[w.nodeA].Withdraw(a.spec) })
		w.client.NoPing("10.0.70.5")
		w.nodeA.NoPing("10.0.70.5")
		w.client.NoPing("2001:db8:70::5")
		w.setup(w.nodeB, moved)
		w.route(moved, w.nodeB)
		// Linux keeps a neighbour for a second after it learned it, and the agent repeats
		// announcements.
		netnstest.Eventually(t, func() error {
			w.nodeB.Run(func() error { return w.drivers[w.nodeB].Announce(moved.spec) })
			_, err := w.client.Command("ping", "-c", "1", "-W", "1", "10.0.70.5")
			return err
		})
		w.client.Ping("2001:db8:70::5")
		w.nodeB.Ping("10.0.70.5")
		w.nodeA.Ping("10.0.70.5")

		// The runtime's DEL comes later; the other pod goes on.
		w.nodeA.Run(func() error { return w.drivers[w.nodeA].Teardown(a.spec) })
		w.client.Ping("10.0.70.5")
		w.client.Ping("10.0.70.6")
		for _, p := range []*pod{local, a2, a2} {
			w.nodeA.Run(func() error { return w.drivers[w.nodeA].Teardown(p.spec) })
		}
		if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
			t.Errorf("node after teardown (-before +after):\n%s", diff)
		}
	})
}
