// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// homes are the addresses of a node of one family: the first of its uplink, a further one of its
// uplink, the one of its first link, which is not the uplink, and one that it takes later. Then the
// container's, of which the second has a gateway of its own, a Service's, and one from which a mesh
// has the node's probes come, which no host has.
type homes struct{ node, second, first, later, own, further, service, mesh string }

var bothHomes = []homes{
	{"10.0.60.11", "10.0.60.21", "192.0.2.9", "192.0.2.10", "10.0.70.5", "10.0.70.9", "10.96.0.1", "169.254.7.127"},
	{"2001:db8:60::11", "2001:db8:60::21", "2001:db8:90::9", "2001:db8:90::10", "2001:db8:70::5", "2001:db8:70::9", "2001:db8:96::1", "fd16:9254:7127:1337:ffff:ffff:ffff:ffff"},
}

// portRedirected is of connections that a REDIRECT leads to servicePort, on the node and in the
// container.
const portRedirected = 8080

// portOfMesh is of connections for which a mesh gives the node another source.
const portOfMesh = 8081

// TestMultihomed: a node has several addresses, also on a link before its uplink. All are addresses
// by which the container and the node reach each other, and host ports and NodePorts reach the
// container.
func TestMultihomed(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, w *topology) {
		a, d := w.multihomed(), w.drivers[w.nodeA]
		defer w.nodeA.Run(func() error { return d.Teardown(a.spec) })
		for _, h := range []*netnstest.Host{a.Host, w.nodeA, w.client} {
			serve(t, h, servicePort)
		}
		serve(t, a.Host, portOfMesh)
		if w.config.Mode == Pure {
			redirect(t, w.nodeA, a.spec.HostLink())
			redirect(t, a.Host, "eth0")
		} else {
			redirect(t, w.nodeA, NodeLink("a", "eth0"))
			redirect(t, a.Host, NodeLink("a", "eth0"))
		}
		for _, f := range bothHomes {
			w.nodeA.Run(func() error {
				var errs []error
				for _, node := range []string{f.node, f.second, f.first} {
					errs = append(errs, netnstest.RedirectPort(node, portToSelf, f.own, servicePort))
				}
				return errors.Join(append(errs, netnstest.RedirectPort(f.service, servicePort, f.first, servicePort), translateSource(f.mesh))...)
			})
			w.expectSeen(t, []seenCase{
				{"a NodePort, which a client outside calls", w.client, "", f.node, portToSelf, w.outside(f.node)},
				{"a NodePort at the uplink's second address", w.client, "", f.second, portToSelf, w.outside(f.node)},
				{"a NodePort at the first link's address", w.client, "", f.first, portToSelf, w.outside(f.node)},
				{"a NodePort, which the node calls", w.nodeA, "", f.second, portToSelf, f.node},
				{"a Service with an endpoint on the node", a.Host, "", f.service, servicePort, f.own},
				{"a probe", w.nodeA, "", f.own, servicePort, f.node},
				{"a probe from the uplink's second address", w.nodeA, f.second, f.own, servicePort, f.second},
				{"a probe from the first link's address", w.nodeA, f.first, f.own, servicePort, f.first},
				{"a probe of a mesh, from --service-prefixes", w.nodeA, "", f.own, portOfMesh, f.mesh},
				{"a probe of an address with a gateway of its own", w.nodeA, f.first, f.further, servicePort, f.first},
				{"a Service, called from that", a.Host, f.further, f.service, servicePort, f.further},
				{"the node's address", a.Host, "", f.node, servicePort, f.own},
				{"the uplink's second address", a.Host, "", f.second, servicePort, f.own},
				{"the first link's address", a.Host, "", f.first, servicePort, f.own},
				{"a REDIRECT of the node", a.Host, "", f.first, portRedirected, f.own},
				{"a REDIRECT of the container, as a sidecar has it", w.nodeA, "", f.own, portRedirected, f.node},
			})
		}
	})
}

// The node's addresses change: it takes a virtual address and loses it to another host, and its
// uplink gets another one. CheckNode sees it, and after Filter, or Repair where it is the address
// that the node talks from, the container reaches the address where it is.
func TestNodeAddressesChange(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, w *topology) {
		a, d := w.multihomed(), w.drivers[w.nodeA]
		defer w.nodeA.Run(func() error { return d.Teardown(a.spec) })
		for _, h := range []*netnstest.Host{a.Host, w.nodeA, w.client} {
			serve(t, h, servicePort)
		}
		changed := func(what string, fix func(Spec) error, lines ...string) {
			t.Helper()
			w.nodeA.IPBatch(strings.Join(lines, "\n") + "\n")
			settled(t, w.nodeA)
			w.nodeA.Run(func() error {
				if err := d.CheckNode(a.spec); !errors.Is(err, ErrNotWired) {
					t.Errorf("%s: CheckNode() = %v, want ErrNotWired", what, err)
				}
				return errors.Join(fix(a.spec), d.Check(a.spec))
			})
		}
		changed("a virtual address comes", d.Filter, "addr add 192.0.2.10/32 dev eth0", "addr add 2001:db8:90::10/128 dev eth0 nodad")
		for _, f := range bothHomes {
			w.expectSeen(t, []seenCase{
				{"a probe from a virtual address", w.nodeA, f.later, f.own, servicePort, f.later},
				{"a probe", w.nodeA, "", f.own, servicePort, f.node}, // the uplink's first address stays the one
				{"a virtual address", a.Host, "", f.later, servicePort, f.own},
			})
		}
		changed("the virtual address goes", d.Filter, "addr del 192.0.2.10/32 dev eth0", "addr del 2001:db8:90::10/128 dev eth0")
		address(w.client, "lo", "192.0.2.10/32", "2001:db8:90::10/128")
		w.router.IP("route", "add", "192.0.2.10", "via", "10.0.70.50")
		w.router.IP("-6", "route", "add", "2001:db8:90::10", "via", "2001:db8:70::50")
		for _, f := range bothHomes {
			w.expectSeen(t, []seenCase{{"a virtual address that another host has", a.Host, "", f.later, servicePort, f.own}})
		}
		link := w.nodeUplink()
		sysctl(t, w.nodeA, "net/ipv4/conf/"+link+"/promote_secondaries", "1")
		changed("the uplink's first addresses go", d.Repair, "addr del 10.0.60.11/24 dev "+link, "addr del 2001:db8:60::11/64 dev "+link)
		for _, f := range bothHomes {
			w.nodeA.Run(func() error { return netnstest.RedirectPort(f.first, portToSelf, f.own, servicePort) })
			w.expectSeen(t, []seenCase{
				{"a NodePort after the uplink's address changed", w.nodeA, "", f.first, portToSelf, f.second},
				{"a probe after it", w.nodeA, "", f.own, servicePort, f.second},
			})
		}
	})
}

// A node's addresses are on their links, whatever node links repeat, of which some may come before
// the uplink.
func TestRepeatedAddresses(t *testing.T) {
	t.Parallel()
	eachPlain(t, func(t *testing.T, w *topology) {
		a, d := w.pod("a", "10.0.70.5", "2001:db8:70::5"), w.drivers[w.nodeA]
		w.setup(w.nodeA, a)
		repeats := func() bool {
			have := w.nodeA.IP("-o", "addr", "show", "dev", NodeLink("a", "eth0"))
			return strings.Contains(have, "10.0.60.11") || strings.Contains(have, "2001:db8:60::11")
		}
		if repeats() {
			t.Error("the link of a container repeats the only address of its node")
		}
		address(w.nodeA, "lo", "192.0.2.9/32", "2001:db8:90::9/128")
		w.nodeA.Run(func() error { return d.Repair(a.spec) })
		if !repeats() {
			t.Error("the link of a container has no address, of a node with several")
		}
		w.nodeA.IPBatch("addr del 192.0.2.9/32 dev lo\naddr del 2001:db8:90::9/128 dev lo\n")
		var want []rtnl.NodeAddress
		node := func() (all []rtnl.NodeAddress) {
			t.Helper()
			w.nodeA.Run(func() (err error) { all, err = rtnl.NodeAddresses(); return err })
			return all
		}
		for _, addr := range []string{"10.0.60.11", "2001:db8:60::11"} {
			want = append(want, rtnl.NodeAddress{Addr: netip.MustParseAddr(addr), Link: w.nodeUplink()})
		}
		if got := node(); !slices.Equal(got, want) {
			t.Errorf("the node has %v, want %v", got, want)
		}
		// The uplink's driver is loaded anew: now the node link is before the link with the address.
		later := netnstest.NewWire(t)
		later.Plug(w.nodeA, "eth9")
		w.nodeA.IPBatch(fmt.Sprintf("addr del 10.0.60.11/24 dev %s\naddr del 2001:db8:60::11/64 dev %[1]s\n", w.nodeUplink()))
		expect := func(want string) {
			t.Helper()
			w.nodeA.Run(func() error {
				for _, addr := range []string{"10.0.60.11", "2001:db8:60::11"} {
					if got, err := wire.UplinkFor(netip.MustParseAddr(addr)); got != want || (err == nil) != (want != "") {
						t.Errorf("the link with %s is %q, %v, want %q", addr, got, err, want)
					}
				}
				return nil
			})
		}
		expect("")
		if got := node(); len(got) > 0 {
			t.Errorf("the node has %v, want none", got)
		}
		address(w.nodeA, "eth9", "10.0.60.11/24", "2001:db8:60::11/64")
		settled(t, w.nodeA)
		expect("eth9")
		// What the node's end repeats goes with the address that it repeats, with a withdrawal and with
		// the link.
		w.nodeA.Run(func() error { return errors.Join(d.Repair(a.spec), d.CheckNode(a.spec), d.Withdraw(a.spec)) })
		if repeats() {
			t.Error("a withdrawn container's link has the node's address still")
		}
		w.nodeA.Run(func() error { return d.Teardown(a.spec) })
	})
}

// nodeUplink returns the name of the node's link with its address.
func (w *topology) nodeUplink() string {
	if w.config.Bridge != "" {
		return w.config.Bridge
	}
	return "eth0"
}

// multihomed gives node A further addresses, and a container.
func (w *topology) multihomed() *pod {
	w.t.Helper()
	sysctl(w.t, w.nodeA, "net/ipv4/ip_forward", "1") // as kube-proxy needs it
	sysctl(w.t, w.nodeA, "net/ipv6/conf/all/forwarding", "1")
	address(w.nodeA, "lo", "192.0.2.9/32", "2001:db8:90::9/128")
	address(w.nodeA, w.nodeUplink(), "10.0.60.21/24", "2001:db8:60::21/64")
	settled(w.t, w.nodeA)
	for _, family := range bothHomes {
		w.router.IP("route", "add", family.first, "via", family.node)
	}
	a := w.pod("a", "10.0.70.5", "2001:db8:70::5", "10.0.70.9", "2001:db8:70::9").via("10.0.70.1", "2001:db8:70::1", "172.31.1.1", "2001:db8:71::1")
	if w.config.Bridge != "" {
		a.spec.Uplink = w.config.Bridge
	}
	// As on a node that filters strictly, which new namespaces inherit.
	sysctl(w.t, a.Host, "net/ipv4/conf/all/rp_filter", "1")
	sysctl(w.t, a.Host, "net/ipv4/conf/default/rp_filter", "1")
	a.spec.Services = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("2001:db8:96::/112")}
	for _, f := range bothHomes {
		a.spec.Services = append(a.spec.Services, rtnl.SinglePrefix(netip.MustParseAddr(f.mesh)))
	}
	w.setup(w.nodeA, a)
	w.route(a, w.nodeA)
	return a
}

// outside is the source that the container sees of a client outside that calls a NodePort.
func (w *topology) outside(node string) string {
	if w.config.Mode != Pure && (w.config.IPvlanMode != L3S || w.vlan != 0) {
		return node
	}
	if netip.MustParseAddr(node).Is4() {
		return "10.0.70.50"
	}
	return "2001:db8:70::50"
}

// settled waits for the kernel, which takes an IPv6 address and gives it up a moment later.
func settled(t *testing.T, h *netnstest.Host) {
	t.Helper()
	netnstest.Eventually(t, func() error {
		local := h.IP("-6", "route", "show", "table", "local")
		for link := range strings.SplitSeq(strings.TrimSpace(h.IP("-6", "-o", "addr", "show", "scope", "global")), "\n") {
			if words := strings.Fields(link); len(words) > 3 {
				addr, _, _ := strings.Cut(words[3], "/")
				if !strings.Contains(local, "local "+addr+" dev "+words[1]+" ") {
					return fmt.Errorf("no local route to %s on %s", addr, words[1])
				}
			}
		}
		return nil
	})
}

// redirect leads connections that come by a link to another port of the host itself, with the
// kernel's REDIRECT.
func redirect(t *testing.T, h *netnstest.Host, link string) {
	t.Helper()
	h.Run(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "sidecar"})
		chain := conn.AddChain(&nftables.Chain{Table: table, Name: "in", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
		name := append([]byte(link), make([]byte, unix.IFNAMSIZ-len(link))...)
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name},
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(portRedirected)},
			&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(servicePort)}, &expr.Redir{RegisterProtoMin: 1},
		}})
		return conn.Flush()
	})
}

// translateSource gives connections of the node to portOfMesh another source, as Istio's ambient
// mode does for the kubelet's.
func translateSource(to string) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	addr, family := netip.MustParseAddr(to), nftables.TableFamilyIPv4
	if addr.Is6() {
		family = nftables.TableFamilyIPv6
	}
	table := conn.AddTable(&nftables.Table{Family: family, Name: "mesh"})
	chain := conn.AddChain(&nftables.Chain{Table: table, Name: "out", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(portOfMesh)},
		&expr.Immediate{Register: 1, Data: addr.AsSlice()}, &expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(family), RegAddrMin: 1},
	}})
	return conn.Flush()
}

type seenCase struct {
	what string
	from *netnstest.Host
	// source is the caller's address, any where it is empty.
	source, to string
	port       uint16
	want       string
}

// expectSeen fails the test where a server does not see the source that a case wants.
func (w *topology) expectSeen(t *testing.T, cases []seenCase) {
	t.Helper()
	var group sync.WaitGroup
	for _, c := range cases {
		group.Go(func() {
			seen, err := askFrom(c.from, net.ParseIP(c.source), netip.AddrPortFrom(netip.MustParseAddr(c.to), c.port), true)
			if err != nil || seen != c.want {
				t.Errorf("%s, %s port %d: the server sees %q, %v, want %q", c.what, c.to, c.port, seen, err, c.want)
			}
		})
	}
	group.Wait()
}
