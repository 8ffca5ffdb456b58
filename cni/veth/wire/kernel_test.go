// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// topology is two nodes in 10.0.60.0/24 and a client in the pool's 10.0.70.0/24 on
// one layer 2 network, with the router of both.
type topology struct {
	t                            testing.TB
	wire                         *netnstest.Wire
	nodeA, nodeB, client, router *netnstest.Host
}

const (
	outside4 = "10.99.0.1"
	outside6 = "2001:db8:99::1"
)

func newTopology(t testing.TB) *topology {
	t.Helper()
	netnstest.Need(t)
	w := &topology{t: t, wire: netnstest.NewWire(t)}
	w.nodeA, w.nodeB, w.client, w.router = netnstest.New(t), netnstest.New(t), netnstest.New(t), netnstest.New(t)
	plug := func(h *netnstest.Host, addrs ...string) {
		var prefixes []netip.Prefix
		for _, a := range addrs {
			prefixes = append(prefixes, netip.MustParsePrefix(a))
		}
		w.wire.Plug(h, "eth0", prefixes...)
	}
	for _, h := range []*netnstest.Host{w.nodeA, w.nodeB, w.client, w.router} {
		// Without waiting for duplicate address detection of each link.
		sysctl(t, h, "net/ipv6/conf/default/accept_dad", "0")
	}
	for _, n := range []*netnstest.Host{w.nodeA, w.nodeB} {
		sysctl(t, n, "net/ipv6/conf/all/forwarding", "1")
		// The strictest setting a node can have.
		sysctl(t, n, "net/ipv4/conf/all/rp_filter", "1")
		sysctl(t, n, "net/ipv4/conf/default/rp_filter", "1")
		sysctl(t, n, "net/ipv4/ip_forward", "0")
	}
	plug(w.nodeA, "10.0.60.11/24", "2001:db8:60::11/64")
	plug(w.nodeB, "10.0.60.12/24", "2001:db8:60::12/64")
	plug(w.client, "10.0.70.50/24", "2001:db8:70::50/64")
	plug(w.router, "10.0.60.1/24", "10.0.70.1/24", "169.254.7.1/32", "172.31.1.1/32", "2001:db8:60::1/64", "2001:db8:70::1/64", "fe80::1/64", "2001:db8:71::1/128")
	w.router.IP("addr", "add", outside4+"/32", "dev", "lo")
	w.router.IP("addr", "add", outside6+"/128", "dev", "lo")
	sysctl(t, w.router, "net/ipv4/ip_forward", "1")
	sysctl(t, w.router, "net/ipv6/conf/all/forwarding", "1")
	for _, n := range []*netnstest.Host{w.nodeA, w.nodeB} {
		n.IP("route", "add", "default", "via", "10.0.60.1")
		n.IP("-6", "route", "add", "default", "via", "2001:db8:60::1")
	}
	w.client.IP("route", "add", "default", "via", "10.0.70.1")
	w.client.IP("-6", "route", "add", "default", "via", "2001:db8:70::1")
	return w
}

func sysctl(t testing.TB, h *netnstest.Host, key, value string) {
	t.Helper()
	h.Run(func() error { return os.WriteFile("/proc/sys/"+key, []byte(value), 0o644) })
}

// pod is a container with its spec.
type pod struct {
	*netnstest.Host
	spec Spec
}

func (w *topology) pod(id string, addrs ...string) *pod {
	w.t.Helper()
	h := netnstest.New(w.t)
	p := &pod{Host: h, spec: Spec{ContainerID: id, IfName: "eth0", NetNS: h.Path(), Uplink: "eth0"}}
	for _, a := range addrs {
		p.spec.Addresses = append(p.spec.Addresses, poolAddress(a))
	}
	p.spec.MAC = v1alpha1.MACOf(p.spec.Addresses[0].Address)
	return p
}

func poolAddress(a string) api.Address {
	addr := netip.MustParseAddr(a)
	if addr.Is4() {
		return api.Address{Address: addr, Subnet: netip.MustParsePrefix("10.0.70.0/24"), Gateway: netip.MustParseAddr("10.0.70.1")}
	}
	return api.Address{Address: addr, Subnet: netip.MustParsePrefix("2001:db8:70::/64"), Gateway: netip.MustParseAddr("2001:db8:70::1")}
}

func setup(node *netnstest.Host, p *pod) {
	node.Run(func() error {
		w := New("")
		if _, err := w.Setup(p.spec); err != nil {
			return err
		}
		return errors.Join(w.Announce(p.spec), w.Check(p.spec))
	})
}

// snapshot is everything in a node's kernel that Setup could have touched.
func snapshot(node *netnstest.Host) string {
	var b strings.Builder
	for _, args := range [][]string{
		{"-o", "link", "show", "type", "veth"}, {"rule"}, {"-6", "rule"},
		{"route", "show", "table", "all"}, {"-6", "route", "show", "table", "all"}, {"neigh", "show", "proxy"}, {"-6", "neigh", "show", "proxy"},
	} {
		for line := range strings.SplitSeq(node.IP(args...), "\n") {
			if strings.Contains(line, "fe80") || strings.Contains(line, "ff00::/8") {
				continue
			}
			fmt.Fprintln(&b, strings.TrimSpace(line))
		}
	}
	return b.String()
}

func TestTraffic(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ a, a2, b, client, nodeA, nodeB, outside, gateway, via string }{
		"IPv4":                   {"10.0.70.5", "10.0.70.6", "10.0.70.7", "10.0.70.50", "10.0.60.11", "10.0.60.12", outside4, "10.0.70.1", "10.0.70.1"},
		"IPv6":                   {"2001:db8:70::5", "2001:db8:70::6", "2001:db8:70::7", "2001:db8:70::50", "2001:db8:60::11", "2001:db8:60::12", outside6, "2001:db8:70::1", "2001:db8:70::1"},
		"IPv4 link-local":        {"10.0.70.5", "10.0.70.6", "10.0.70.7", "10.0.70.50", "10.0.60.11", "10.0.60.12", outside4, "169.254.7.1", "169.254.7.1"},
		"IPv4 of another subnet": {"10.0.70.5", "10.0.70.6", "10.0.70.7", "10.0.70.50", "10.0.60.11", "10.0.60.12", outside4, "172.31.1.1", "172.31.1.1"},
		"IPv6 link-local":        {"2001:db8:70::5", "2001:db8:70::6", "2001:db8:70::7", "2001:db8:70::50", "2001:db8:60::11", "2001:db8:60::12", outside6, "2001:db8:70::1", "fe80::1"},
		"IPv6 of another subnet": {"2001:db8:70::5", "2001:db8:70::6", "2001:db8:70::7", "2001:db8:70::50", "2001:db8:60::11", "2001:db8:60::12", outside6, "2001:db8:71::1", "2001:db8:71::1"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTopology(t)
			before := snapshot(w.nodeA)
			a, a2, b := w.pod("a", c.a), w.pod("a2", c.a2), w.pod("b", c.b)
			a.spec.Addresses[0].Gateway = netip.MustParseAddr(c.via)
			setup(w.nodeA, a)
			setup(w.nodeA, a2)
			setup(w.nodeB, b)
			for _, hop := range []struct {
				from *netnstest.Host
				to   string
			}{
				{w.client, c.a}, {a.Host, c.client}, {a.Host, c.gateway}, {a.Host, c.outside}, {w.router, c.a},
				{a.Host, c.a2}, {a2.Host, c.a}, {a.Host, c.b}, {b.Host, c.a},
				{w.nodeA, c.a}, {a.Host, c.nodeA}, {a.Host, c.nodeB}, {w.nodeB, c.a},
			} {
				hop.from.Ping(hop.to)
			}
			// The pod's way out is the pool's gateway, not the node's.
			out, err := w.router.Command("ip", "neigh", "show", c.a)
			if err != nil || !strings.Contains(out, "lladdr") {
				t.Errorf("the router did not see the pod on the pool's network: %q, %v", out, err)
			}
			for _, p := range []*pod{a, a2} {
				w.nodeA.Run(func() error { return New("").Teardown(p.spec) })
				w.nodeA.Run(func() error { return New("").Teardown(p.spec) })
			}
			if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
				t.Errorf("node after teardown (-before +after):\n%s", diff)
			}
			w.client.NoPing(c.a)
		})
	}
}

// A pod must not make itself the router of its node.
func TestRouterAdvertisement(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	// A node without IPv6 pods is a host to IPv6.
	sysctl(t, w.nodeA, "net/ipv6/conf/all/forwarding", "0")
	p := w.pod("a", "10.0.70.5")
	setup(w.nodeA, p)
	// This link is as the pod's, and the node obeys: the frame is one that kernels heed.
	w.nodeA.IP("link", "add", "plain", "type", "veth", "peer", "name", "eth1", "netns", p.Path())
	w.nodeA.IP("link", "set", "plain", "up")
	p.IP("link", "set", "eth1", "up")
	advertise := func(name string) {
		p.Run(func() error {
			link, err := netlinksafe.LinkByName(name)
			if err != nil {
				return err
			}
			source, err := linkLocal(link)
			if err != nil {
				return err
			}
			return send(link.Attrs().Index, unix.ETH_P_IPV6, [][]byte{routerAdvertisement(link.Attrs().HardwareAddr, source)})
		})
	}
	obeys := func(link string) bool {
		return strings.Contains(w.nodeA.IP("-6", "route", "show", "dev", link), "proto ra")
	}
	netnstest.Eventually(t, func() error {
		advertise("eth0")
		advertise("eth1")
		if !obeys("plain") {
			return errors.New("the node obeys no router advertisement at all")
		}
		return nil
	})
	if obeys(p.spec.HostLink()) {
		t.Errorf("the pod is the node's router:\n%s", w.nodeA.IP("-6", "route"))
	}
}

// A host of a VLAN must not use the node as its router through a link that Berth made there, which
// leads to the node's pods alone. A link of the administrator is open as before.
func TestLinkOfBerthIsNoWayThrough(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		link    string
		through bool
	}{
		"VLAN link of Berth":        {netfilter.VLANPrefix + "2.7", false},
		"bridge of Berth":           {netfilter.BridgePrefix + "2.7", false},
		"link of the administrator": {"pool0", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTopology(t)
			for _, key := range []string{"all", "default"} {
				sysctl(t, w.nodeA, "net/ipv4/conf/"+key+"/rp_filter", "0")
				sysctl(t, w.client, "net/ipv4/conf/"+key+"/rp_filter", "0")
			}
			w.wire.Plug(w.nodeA, c.link)
			p := w.pod("p", "10.0.70.5", "2001:db8:70::5")
			p.spec.Uplink = c.link
			setup(w.nodeA, p)
			var mac string
			w.nodeA.Run(func() error {
				link, err := netlinksafe.LinkByName(c.link)
				if err == nil {
					mac = link.Attrs().HardwareAddr.String()
				}
				return err
			})
			for _, to := range []string{"10.0.60.12", "2001:db8:60::12"} {
				w.client.IP("route", "add", to, "dev", "eth0")
				w.client.IP("neigh", "replace", to, "lladdr", mac, "dev", "eth0")
				_, err := w.client.Command("ping", "-c", "2", "-W", "2", to)
				if through := err == nil; through != c.through {
					t.Errorf("%s is reached through the node: %t, want %t (%v)", to, through, c.through, err)
				}
			}
			for _, addr := range []string{"10.0.70.5", "2001:db8:70::5"} {
				w.client.Ping(addr)
				w.nodeB.Ping(addr)
			}
			for _, addr := range []string{"10.0.70.50", "2001:db8:70::50", outside4, outside6, "10.0.60.12"} {
				p.Host.Ping(addr)
			}
		})
	}
}

// routerAdvertisement is one of a default router with a prefix (RFC 4861, section 4.2).
func routerAdvertisement(mac net.HardwareAddr, source netip.Addr) []byte {
	prefix := netip.MustParseAddr("2001:db8:bad::").As16()
	icmp := []byte{134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}
	icmp = append(icmp, 3, 4, 64, 0xc0, 0, 0, 7, 8, 0, 0, 7, 8, 0, 0, 0, 0)
	return toAllNodes(mac, source, append(icmp, prefix[:]...))
}

func TestDefaultNetworkPods(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	a := w.pod("a", "10.0.70.5")
	setup(w.nodeA, a)
	// A bridge with a pod of the node's default network.
	ordinary := netnstest.New(t)
	w.nodeA.IP("link", "add", "cni0", "type", "bridge")
	w.nodeA.IP("addr", "add", "10.244.0.1/24", "dev", "cni0")
	w.nodeA.IP("link", "set", "cni0", "up")
	w.nodeA.IP("link", "add", "ord0", "type", "veth", "peer", "name", "tmp0")
	w.nodeA.IP("link", "set", "ord0", "master", "cni0", "up")
	w.nodeA.IP("link", "set", "tmp0", "netns", ordinary.Path())
	ordinary.IP("link", "set", "tmp0", "name", "eth0")
	ordinary.IP("addr", "add", "10.244.0.5/24", "dev", "eth0")
	ordinary.IP("link", "set", "eth0", "up")
	ordinary.IP("route", "add", "default", "via", "10.244.0.1")
	sysctl(t, w.nodeA, "net/ipv4/ip_forward", "1")
	ordinary.Ping("10.0.70.5")
	a.Host.Ping("10.244.0.5")
}

func TestSetupIsIdempotentAndCheckFindsWhatIsMissing(t *testing.T) {
	t.Parallel()
	breakage := map[string][]string{
		"host route":   {"route", "del", "10.0.70.5"},
		"pods' table":  {"route", "del", "10.0.70.5", "table", fmt.Sprint(podsTable)},
		"table route":  {"route", "del", "10.0.70.0/24", "table", "TABLE"},
		"gateway":      {"route", "del", "default", "table", "TABLE"},
		"rule":         {"rule", "del", "pref", fmt.Sprint(PriorityNetwork)},
		"main rule":    {"rule", "del", "pref", fmt.Sprint(PriorityMain)},
		"pods' rule":   {"rule", "del", "pref", fmt.Sprint(PriorityPods)},
		"arrivals":     {"rule", "del", "pref", fmt.Sprint(PriorityArrivals)},
		"way back":     {"rule", "del", "pref", fmt.Sprint(PriorityBackNetwork)},
		"all rules":    {"rule", "flush", "proto", fmt.Sprint(rtnl.Protocol)},
		"proxy":        {"neigh", "del", "proxy", "10.0.70.5", "dev", "eth0"},
		"guests":       {"neigh", "del", "proxy", "169.254.1.1", "dev", "LINK"},
		"host down":    {"link", "set", "LINK", "down"},
		"host link":    {"link", "del", "LINK"},
		"uplink flap":  {"link", "set", "eth0", "down"},
		"pod address":  {"POD", "addr", "flush", "dev", "eth0"},
		"pod route":    {"POD", "route", "del", "default"},
		"pod link":     {"POD", "link", "set", "eth0", "down"},
		"pod gateway":  {"POD", "neigh", "del", "169.254.1.1", "dev", "eth0"},
		"neighbour":    {"neigh", "replace", "10.0.70.5", "lladdr", "02:00:00:00:00:01", "dev", "LINK", "nud", "permanent"},
		"pod MAC":      {"POD", "link", "set", "eth0", "address", "02:00:00:00:00:01"},
		"pod deletion": {"POD", "link", "del", "eth0"},
	}
	w := newTopology(t)
	a := w.pod("a", "10.0.70.5")
	setup(w.nodeA, a)
	for name, args := range breakage {
		t.Run(name, func(t *testing.T) {
			args := append([]string(nil), args...)
			host := w.nodeA
			if args[0] == "POD" {
				host, args = a.Host, args[1:]
			}
			for i := range args {
				args[i] = strings.NewReplacer("LINK", a.spec.HostLink(), "TABLE", tableText(w.nodeA)).Replace(args[i])
			}
			host.IP(args...)
			if name == "uplink flap" {
				w.nodeA.IP("link", "set", "eth0", "up")
				w.nodeA.IP("route", "add", "default", "via", "10.0.60.1")
			}
			err := w.nodeA.Try(func() error { return New("").Check(a.spec) })
			if !errors.Is(err, ErrNotWired) {
				t.Errorf("Check() = %v, want ErrNotWired", err)
			}
			setup(w.nodeA, a)
			setup(w.nodeA, a)
			w.client.Ping("10.0.70.5")
		})
	}
}

// tableText finds the routing table of the node's only pool network.
func tableText(node *netnstest.Host) string {
	for line := range strings.SplitSeq(node.IP("rule"), "\n") {
		if f := strings.Fields(line); strings.HasPrefix(line, fmt.Sprint(PriorityNetwork)+":") {
			for i := range f {
				if f[i] == "lookup" {
					return f[i+1]
				}
			}
		}
	}
	return "none"
}

// The kubelet makes a new sandbox for a pod before it takes the old one down. The set-up of a
// further pod changes nothing of the uplink: programs that watch it, the agent among them, look at
// all that depends on it after each change.
func TestSetupLeavesTheUplinkAlone(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	first, second := w.pod("first", "10.0.70.10", "2001:db8:70::10"), w.pod("second", "10.0.70.11", "2001:db8:70::11")
	setup(w.nodeA, first)
	w.nodeA.Run(func() error {
		ended := make(chan struct{})
		defer close(ended)
		changes := make(chan netlink.LinkUpdate, 256)
		if err := netlink.LinkSubscribe(changes, ended); err != nil {
			return err
		}
		if _, err := New("").Setup(second.spec); err != nil {
			return err
		}
		const last = "last"
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: last}, PeerName: last + "-peer"}); err != nil {
			return err
		}
		for change := range changes {
			switch change.Attrs().Name {
			case "eth0":
				t.Errorf("the uplink changed: %+v", change.IfInfomsg)
			case last:
				return nil
			}
		}
		return errors.New("the subscription ended")
	})
}

func TestOldLinkDoesNotTakeTheNewOnesAddress(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	old, fresh := w.pod("old", "10.0.70.5"), w.pod("new", "10.0.70.5")
	setup(w.nodeA, old)
	setup(w.nodeA, fresh)
	w.client.Ping("10.0.70.5")
	w.nodeA.Run(func() error { return New("").Teardown(old.spec) })
	w.client.Ping("10.0.70.5")
	w.nodeA.Run(func() error { return New("").Check(fresh.spec) })
	w.nodeA.Run(func() error { return New("").Teardown(fresh.spec) })
	w.client.NoPing("10.0.70.5")
}

func TestTakeover(t *testing.T) {
	t.Parallel()
	for name, addr := range map[string]string{"IPv4": "10.0.70.5", "IPv6": "2001:db8:70::5"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTopology(t)
			a, b := w.pod("a", addr), w.pod("b", addr)
			setup(w.nodeA, a)
			w.client.Ping(addr)
			before := w.client.IP("neigh", "show", addr)

			w.wire.Port(1, false) // node A is cut off
			setup(w.nodeB, b)
			// Linux keeps an entry for a second after it learned it, and may
			// ignore the first announcement; the agent repeats it.
			netnstest.Eventually(t, func() error {
				w.nodeB.Run(func() error { return New("").Announce(b.spec) })
				if now := w.client.IP("neigh", "show", addr); strings.Fields(now)[4] == strings.Fields(before)[4] {
					return fmt.Errorf("the client still has %q", now)
				}
				return nil
			})
			w.client.Ping(addr)

			w.wire.Port(1, true) // node A is back
			w.nodeA.Run(func() error { return New("").Withdraw(a.spec) })
			w.client.IP("neigh", "flush", "all")
			for range 5 {
				w.client.Ping(addr)
			}
			// The runtime's DEL comes later and succeeds.
			w.nodeA.Run(func() error { return New("").Teardown(a.spec) })
			w.client.Ping(addr)
		})
	}
}

func TestTeardownFindsNothing(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	a := w.pod("a", "10.0.70.5")
	before := snapshot(w.nodeA)
	gone := a.spec
	gone.NetNS = "/run/netns/never-was"
	for _, spec := range []Spec{a.spec, gone, {ContainerID: "a", IfName: "eth0"}} {
		w.nodeA.Run(func() error { return New("").Teardown(spec) })
	}
	if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

func TestTeardownWithoutRecord(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	before := snapshot(w.nodeA)
	a := w.pod("a", "10.0.70.5")
	setup(w.nodeA, a)
	w.nodeA.Run(func() error { return New("").Teardown(Spec{ContainerID: "a", IfName: "eth0", NetNS: a.spec.NetNS}) })
	if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

func TestRemoveLoose(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	before := snapshot(w.nodeA)
	a, b := w.pod("a", "10.0.70.5"), w.pod("b", "10.0.70.6")
	setup(w.nodeA, a)
	w.nodeA.IP("link", "del", a.spec.HostLink())
	w.nodeA.IP("neigh", "add", "proxy", "10.0.70.99", "dev", "eth0") // somebody else's
	setup(w.nodeA, b)
	w.nodeA.Run(func() error { return New("").RemoveLoose() })
	w.nodeA.Run(func() error { return New("").Check(b.spec) })
	w.nodeA.Run(func() error { return New("").Remove(b.spec.HostLink()) })
	if out := w.nodeA.IP("neigh", "show", "proxy"); !strings.Contains(out, "10.0.70.99") {
		t.Errorf("another's proxy entry is gone: %q", out)
	}
	w.nodeA.IP("neigh", "del", "proxy", "10.0.70.99", "dev", "eth0")
	if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

func TestSetupErrors(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	a := w.pod("a", "10.0.70.5")
	taken := w.pod("taken", "10.0.70.5")
	taken.IP("link", "add", "eth0", "type", "bridge")
	vlan := a.spec
	vlan.Addresses = []api.Address{a.spec.Addresses[0]}
	vlan.Addresses[0].VLAN = 7
	noUplink, noNetns := a.spec, a.spec
	noUplink.Uplink, noNetns.NetNS = "eth9", "/run/netns/never-was"
	cases := map[string]struct {
		spec Spec
		is   error
		text string
	}{
		"no VLAN link":   {vlan, ErrUplink, "ip link add link eth0 name eth0.7 type vlan id 7"},
		"no uplink":      {noUplink, ErrUplink, `no link "eth9"`},
		"no namespace":   {noNetns, rtnl.ErrNetNS, "never-was"},
		"name is taken":  {taken.spec, nil, "exists"},
		"no address":     {Spec{ContainerID: "a", IfName: "eth0"}, nil, "addresses given"},
		"name too long":  {Spec{ContainerID: "a", IfName: "sixteencharacter"}, nil, "interface name"},
		"no interface":   {Spec{ContainerID: "a"}, nil, "must be given"},
		"twice":          {Spec{ContainerID: "a", IfName: "eth0", Addresses: []api.Address{a.spec.Addresses[0], a.spec.Addresses[0]}}, nil, "given twice"},
		"too many":       {Spec{ContainerID: "a", IfName: "eth0", Addresses: make([]api.Address, MaxAddresses+1)}, nil, "9 addresses given"},
		"no MAC":         {Spec{ContainerID: "a", IfName: "eth0", Addresses: a.spec.Addresses}, nil, "not the MAC address"},
		"multicast MAC":  {Spec{ContainerID: "a", IfName: "eth0", MAC: net.HardwareAddr{1, 0, 0, 0, 0, 1}, Addresses: a.spec.Addresses}, nil, "not the MAC address"},
		"long MAC":       {Spec{ContainerID: "a", IfName: "eth0", MAC: make(net.HardwareAddr, 8), Addresses: a.spec.Addresses}, nil, "not the MAC address"},
		"foreign subnet": {Spec{ContainerID: "a", IfName: "eth0", Addresses: []api.Address{{Address: netip.MustParseAddr("10.0.70.5"), Subnet: netip.MustParsePrefix("10.0.71.0/24")}}}, nil, "not in its subnet"},
	}
	before := snapshot(w.nodeA)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := w.nodeA.Try(func() error { _, err := New("").Setup(c.spec); return err })
			if err == nil || !strings.Contains(err.Error(), c.text) || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("Setup() = %v, want %v with %q", err, c.is, c.text)
			}
			w.nodeA.Run(func() error { return New("").Teardown(c.spec) })
			if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
				t.Errorf("(-before +after):\n%s", diff)
			}
		})
	}
	if !strings.Contains(taken.IP("link"), "eth0") {
		t.Error("Teardown took somebody else's interface")
	}
}

// A pod can make packets with any source, because runtimes give it CAP_NET_RAW.
// Packets with an address of another do not leave the node, even where the node itself
// filters nothing.
func TestForgedSourceIsDropped(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	for _, key := range []string{"all", "default", "eth0"} {
		sysctl(t, w.nodeA, "net/ipv4/conf/"+key+"/rp_filter", "0")
	}
	p := w.pod("a", "10.0.70.5", "10.0.70.6")
	setup(w.nodeA, p)
	victim := w.pod("b", "10.0.70.7")
	setup(w.nodeB, victim)
	var received *net.UDPConn
	w.client.Run(func() (err error) {
		received, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP("10.0.70.50"), Port: 9999})
		return err
	})
	defer received.Close()
	if err := received.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	p.Host.Ping("10.0.70.50") // so that no datagram waits for ARP
	// Of a pod of another node, of the node itself, of nobody, of a host.
	forged := []string{"10.0.70.7", "10.0.60.11", "10.0.70.99", "10.0.70.1"}
	for _, address := range forged {
		p.IP("addr", "add", address+"/32", "dev", "eth0")
	}
	for _, source := range append(forged, "10.0.70.5", "10.0.70.6") {
		p.Run(func() error {
			connection, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(source)}, &net.UDPAddr{IP: net.ParseIP("10.0.70.50"), Port: 9999})
			if err != nil {
				return err
			}
			defer connection.Close()
			_, err = connection.Write([]byte(source))
			return err
		})
	}
	// Datagrams on one path stay in order: the pod's own are the last.
	for last := ""; last != "10.0.70.6"; {
		buffer := make([]byte, 64)
		n, from, err := received.ReadFromUDP(buffer)
		if err != nil {
			t.Fatal(err)
		}
		if last = from.IP.String(); slices.Contains(forged, last) {
			t.Errorf("received a datagram from %s, which the pod of 10.0.70.5 sent", buffer[:n])
		}
	}
	// Another program resets it, as systemd does for new links.
	sysctl(t, w.nodeA, "net/ipv4/conf/"+p.spec.HostLink()+"/rp_filter", "2")
	if err := w.nodeA.Try(func() error { return New("").Check(p.spec) }); !errors.Is(err, ErrSysctl) {
		t.Errorf("Check() = %v, want ErrSysctl", err)
	}
	setup(w.nodeA, p)
}
