// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/rtnl"
)

// secondUplink gives node A and the router a link to a network of its own, where a pool is
// 10.0.80.0/24 with a client.
func (w *topology) secondUplink(nodeAddrs ...netip.Prefix) (client *netnstest.Host, second *netnstest.Wire) {
	w.t.Helper()
	second, client = netnstest.NewWire(w.t), netnstest.New(w.t)
	second.Plug(w.router, "eth1", netip.MustParsePrefix("10.0.80.1/24"))
	second.Plug(w.nodeA, "eth1", nodeAddrs...)
	second.Plug(client, "eth0", netip.MustParsePrefix("10.0.80.50/24"))
	client.IP("route", "add", "default", "via", "10.0.80.1")
	return client, second
}

// onSecond makes a pod of the second uplink's pool.
func (w *topology) onSecond(id, addr string) *pod {
	w.t.Helper()
	p := w.pod(id, addr)
	p.spec.Uplink = "eth1"
	p.spec.Addresses[0].Subnet, p.spec.Addresses[0].Gateway = netip.MustParsePrefix("10.0.80.0/24"), netip.MustParseAddr("10.0.80.1")
	return p
}

// With strict filtering on node and link, the pool's link is not the one with the node's
// address and default route. Packets from the node's own subnet arrive by the pool's link,
// too, and connections to a port of the node by the node's.
func TestSecondUplink(t *testing.T) {
	t.Parallel()
	const marks = "net/ipv4/conf/eth1/src_valid_mark"
	cases := map[string]struct {
		own     []netip.Prefix
		prepare func(node *netnstest.Host)
		outside bool
	}{
		"plain":                         {outside: true},
		"loose":                         {prepare: func(node *netnstest.Host) { sysctl(t, node, "net/ipv4/conf/eth1/rp_filter", "2") }, outside: true},
		"the node has an address there": {own: []netip.Prefix{netip.MustParsePrefix("10.0.80.11/24")}, outside: true},
		"the node has no default route": {prepare: func(node *netnstest.Host) { node.IP("route", "del", "default") }},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTopology(t)
			client, _ := w.secondUplink(c.own...)
			if c.prepare != nil {
				c.prepare(w.nodeA)
			}
			before := snapshot(w.nodeA)
			p, neighbour := w.onSecond("p", "10.0.80.5"), w.onSecond("q", "10.0.80.6")
			setup(w.nodeA, p)
			setup(w.nodeA, neighbour)
			for _, hop := range []struct {
				from *netnstest.Host
				to   string
			}{
				{client, "10.0.80.5"}, {p.Host, "10.0.80.50"}, {p.Host, outside4}, {w.router, "10.0.80.5"},
				{w.nodeB, "10.0.80.5"}, {p.Host, "10.0.60.12"}, {w.client, "10.0.80.5"}, {p.Host, "10.0.70.50"},
				{w.nodeA, "10.0.80.5"}, {p.Host, "10.0.60.11"}, {p.Host, "10.0.80.6"}, {neighbour.Host, "10.0.80.5"},
			} {
				hop.from.Ping(hop.to)
			}
			if out, err := w.router.Command("ping", "-c", "1", "-w", "60", "-I", outside4, "10.0.80.5"); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			if c.outside {
				// As on every node of Kubernetes.
				sysctl(t, w.nodeA, "net/ipv4/ip_forward", "1")
				w.nodeA.Run(func() error { return netnstest.Redirect("10.0.60.11", 9000, "10.0.80.5") })
				if got := w.answerFrom(p, 9000, "10.0.60.11"); got != "10.0.60.11" {
					t.Errorf("the node's port is answered from %q", got)
				}
			}
			// Another program takes the setting back.
			sysctl(t, w.nodeA, marks, "0")
			if err := w.nodeA.Try(func() error { return New("").CheckNode(p.spec) }); !errors.Is(err, ErrSysctl) {
				t.Errorf("CheckNode() = %v, want ErrSysctl", err)
			}
			w.nodeA.Run(func() error { return New("").Repair(p.spec) })
			w.nodeB.Ping("10.0.80.5")
			// A pool on the link of the node's own way out does without.
			plain := w.pod("r", "10.0.70.5")
			setup(w.nodeA, plain)
			if have := setting(t, w.nodeA, "net/ipv4/conf/eth0/src_valid_mark"); c.outside && have != "0" {
				t.Errorf("src_valid_mark of the node's own link is %s", have)
			}
			for _, gone := range []*pod{plain, p, neighbour} {
				w.nodeA.Run(func() error { return New("").Teardown(gone.spec) })
			}
			if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
				t.Errorf("(-before +after):\n%s", diff)
			}
		})
	}
}

func setting(t *testing.T, h *netnstest.Host, key string) string {
	t.Helper()
	var value []byte
	h.Run(func() (err error) { value, err = os.ReadFile("/proc/sys/" + key); return err })
	return strings.TrimSpace(string(value))
}

// TestRoutedUplink: the second uplink is a cloud's, which leads packets for the addresses to the
// node by itself, drops packets whose source is not the link's address, and answers ARP for every
// address. Its own address there has no subnet.
func TestRoutedUplink(t *testing.T) {
	t.Parallel()
	for name, own := range map[string][]netip.Prefix{
		"an address without a subnet": {netip.MustParsePrefix("10.0.80.11/32"), netip.MustParsePrefix("2001:db8:80::11/128")},
		"an address in the subnet":    {netip.MustParsePrefix("10.0.80.11/24"), netip.MustParsePrefix("2001:db8:80::11/64")},
		"no address":                  nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTopology(t)
			client, _ := w.secondUplink(own...)
			w.router.IP("addr", "add", "2001:db8:80::1/64", "dev", "eth1", "nodad")
			mac := strings.Fields(w.nodeA.IP("-br", "link", "show", "eth1"))[2]
			addrs := []string{"10.0.80.5", "2001:db8:80::5"}
			for _, a := range append([]string{"10.0.80.11", "2001:db8:80::11"}, addrs...) {
				w.router.IP("neigh", "replace", a, "lladdr", mac, "dev", "eth1", "nud", "permanent")
			}
			sysctl(t, w.router, "net/ipv4/conf/eth0/rp_filter", "1")
			before := snapshot(w.nodeA)
			p := w.onSecond("p", addrs[0])
			p.spec.Routed = true
			p.spec.Addresses = append(p.spec.Addresses, api.Address{
				Address: netip.MustParseAddr(addrs[1]), Subnet: netip.MustParsePrefix("2001:db8:80::/64"), Gateway: netip.MustParseAddr("2001:db8:80::1"),
			})
			setup(w.nodeA, p)
			w.nodeA.Run(func() error { return New("").Announce(p.spec) })
			w.nodeA.Run(func() error { return New("").Check(p.spec) })
			for _, hop := range []struct {
				from *netnstest.Host
				to   string
			}{
				{w.router, addrs[0]}, {w.router, addrs[1]}, {p.Host, outside4}, {p.Host, outside6}, {w.client, addrs[0]}, {w.client, addrs[1]},
				{w.nodeA, addrs[0]}, {p.Host, "10.0.60.11"},
			} {
				hop.from.Ping(hop.to)
			}
			// The node asks nobody to send to it, and answers nobody.
			if proxies := w.nodeA.IP("neigh", "show", "proxy", "dev", "eth0") + w.nodeA.IP("-6", "neigh", "show", "proxy", "dev", "eth0"); proxies != "" {
				t.Errorf("the node answers for\n%s", proxies)
			}
			if _, err := client.Command("ping", "-c", "1", "-W", "1", addrs[0]); err == nil {
				t.Error("a host that the network does not lead to the node reaches the pod")
			}
			w.nodeA.Run(func() error { return New("").Teardown(p.spec) })
			if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
				t.Errorf("(-before +after):\n%s", diff)
			}
		})
	}
}

// answerFrom asks at a port of address, behind the router's outside, and returns the address that
// answers. The pod serves; the router drops packets with the node's address from the pool's
// network.
func (w *topology) answerFrom(server *pod, port int, address string) string {
	w.t.Helper()
	sysctl(w.t, w.router, "net/ipv4/conf/eth1/rp_filter", "1")
	defer sysctl(w.t, w.router, "net/ipv4/conf/eth1/rp_filter", "0")
	var listener *net.UDPConn
	server.Run(func() (err error) { listener, err = net.ListenUDP("udp4", &net.UDPAddr{Port: port}); return err })
	defer listener.Close()
	go func() {
		b := make([]byte, 16)
		for {
			n, from, err := listener.ReadFromUDP(b)
			if err != nil {
				return
			}
			_, _ = listener.WriteToUDP(b[:n], from)
		}
	}()
	var client *net.UDPConn
	w.router.Run(func() (err error) {
		client, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(outside4)})
		return err
	})
	defer client.Close()
	for range 3 {
		if _, err := client.WriteToUDP([]byte("hello"), &net.UDPAddr{IP: net.ParseIP(address), Port: port}); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := client.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		w.t.Fatal(err)
	}
	_, from, err := client.ReadFromUDP(make([]byte, 16))
	if err != nil {
		return err.Error()
	}
	return from.IP.String()
}

// secondRouter is another gateway of 10.0.70.0/24, and the only way to 10.99.0.2.
func (w *topology) secondRouter() {
	w.t.Helper()
	router := netnstest.New(w.t)
	w.wire.Plug(router, "eth0", netip.MustParsePrefix("10.0.70.254/24"))
	router.IP("addr", "add", secondOutside+"/32", "dev", "lo")
	router.IP("route", "add", "default", "via", "10.0.70.1")
	sysctl(w.t, router, "net/ipv4/ip_forward", "1")
}

const secondOutside = "10.99.0.2"

// othersMarks are marks of other programs, of which package netfilter has a table.
var othersMarks = []uint32{
	51820, 51821, 51822, 51823, 51824, 51830, // wg-quick
	0x4000, 0x8000, 0xc000, 0x2000, 0x80, // kube-proxy and flannel, portmap, the AWS CNI
	0x0200, 0x0a00, 0x0b00, 0x0c00, 0x0d00, 0x0e00, 0x0f00, 0x12340f00, // Cilium
	0xffff0000, 0x10000, 0x80000, 0x100000, 0x40000, // Calico, Tailscale
	1337, 0x111, 0x3f0, 0xd0c, 0xff, // Istio, OVN-Kubernetes, Docker, small numbers
}

// Packets that do not come from a pod are routed as before: the node has two uplinks with a rule
// that its administrator made, an address in the pool's subnet, and a guest of another program with
// one.
func TestOtherTrafficIsNotRerouted(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("the rule comes after the pods %v", late), func(t *testing.T) {
			t.Parallel()
			w := newTopology(t)
			_, second := w.secondUplink(netip.MustParsePrefix("10.0.80.11/24"))
			w.secondRouter()
			addRule := func() {
				w.nodeA.IP("route", "add", "default", "via", "10.0.80.1", "table", "101")
				w.nodeA.IP("rule", "add", "from", "10.0.80.11", "lookup", "101")
			}
			if !late {
				addRule()
			}
			w.nodeA.IP("addr", "add", "10.0.70.2/24", "dev", "eth0")
			guest := netnstest.New(t)
			w.nodeA.IP("link", "add", "guest", "type", "veth", "peer", "name", "eth0", "netns", guest.Path())
			w.nodeA.IP("link", "set", "guest", "up")
			w.nodeA.IP("route", "add", "10.0.70.77", "dev", "guest")
			w.nodeA.IP("neigh", "add", "proxy", "10.0.70.77", "dev", "eth0")
			w.nodeA.IP("neigh", "add", "proxy", "10.0.60.11", "dev", "guest")
			guest.IP("addr", "add", "10.0.70.77/32", "dev", "eth0")
			guest.IP("link", "set", "eth0", "up")
			guest.IP("route", "add", "10.0.60.11", "dev", "eth0")
			guest.IP("route", "add", "default", "via", "10.0.60.11")
			sysctl(t, w.nodeA, "net/ipv4/ip_forward", "1")

			p := w.pod("p", "10.0.70.5")
			p.spec.Addresses[0].Gateway = netip.MustParseAddr("10.0.70.254")
			setup(w.nodeA, p)
			if late {
				addRule()
			}
			from := func(host *netnstest.Host, source, to string) error {
				_, err := host.Command("ping", "-c", "1", "-W", "1", "-I", source, to)
				return err
			}
			p.Host.Ping(secondOutside)
			for _, c := range []struct {
				host       *netnstest.Host
				source, to string
			}{
				{w.nodeA, "10.0.60.11", outside4}, {w.nodeA, "10.0.70.2", outside4}, {w.nodeA, "10.0.80.11", outside4},
				{w.nodeA, "10.0.80.11", "10.0.60.12"}, {guest, "10.0.70.77", outside4},
				// Pods and their own node reach each other with any rules.
				{w.nodeA, "10.0.60.11", "10.0.70.5"}, {w.nodeA, "10.0.70.2", "10.0.70.5"}, {p.Host, "10.0.70.5", "10.0.70.2"},
			} {
				netnstest.Eventually(t, func() error { return from(c.host, c.source, c.to) })
			}
			if !late {
				netnstest.Eventually(t, func() error { return from(w.nodeA, "10.0.80.11", "10.0.70.5") })
				netnstest.Eventually(t, func() error { return from(p.Host, "10.0.70.5", "10.0.80.11") })
			}
			// Only pods leave by the pool's gateway.
			for host, source := range map[*netnstest.Host]string{w.nodeA: "10.0.70.2", guest: "10.0.70.77"} {
				if from(host, source, secondOutside) == nil {
					t.Errorf("%s leaves by the pool's gateway", source)
				}
			}
			// Nor does a mark of another program: the socket of wg-quick, and the marks below.
			if out, err := w.nodeA.Command("ping", "-c", "1", "-W", "1", "-m", "51820", "-I", "10.0.70.2", secondOutside); err == nil {
				t.Errorf("a packet with wg-quick's mark leaves by the pool's gateway\n%s", out)
			}
			for _, mark := range othersMarks {
				get := []string{"route", "get", secondOutside, "from", "10.0.70.2"}
				// The first line; the second says for how long the kernel remembers it.
				plain, _, _ := strings.Cut(w.nodeA.IP(get...), "\n")
				marked, _, _ := strings.Cut(w.nodeA.IP(append(get, "mark", fmt.Sprint(mark))...), "\n")
				marked = strings.Replace(marked, fmt.Sprintf(" mark %#x", mark), "", 1)
				if strings.Join(strings.Fields(plain), " ") != strings.Join(strings.Fields(marked), " ") {
					t.Errorf("with mark %#x the route is\n%s and not\n%s", mark, marked, plain)
				}
			}
			// The node's second address leaves by its own link only.
			second.Port(1, false)
			if from(w.nodeA, "10.0.80.11", "10.0.60.12") == nil {
				t.Error("10.0.80.11 leaves by another link than the administrator's rule says")
			}
		})
	}
}

// Two pools may have one subnet and two gateways, also one after the other.
func TestTwoGateways(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	w.secondRouter()
	before := snapshot(w.nodeA)
	a, b, c := w.pod("a", "10.0.70.5"), w.pod("b", "10.0.70.6"), w.pod("c", "10.0.70.7")
	b.spec.Addresses[0].Gateway = netip.MustParseAddr("10.0.70.254")
	c.spec.Addresses[0].Gateway = netip.MustParseAddr("10.0.70.254")
	// A smaller subnet within the others.
	c.spec.Addresses[0].Subnet = netip.MustParsePrefix("10.0.70.0/28")
	expect := func(p *pod, second bool) {
		t.Helper()
		if second {
			p.Host.Ping(secondOutside)
		} else {
			p.Host.Ping(outside4)
			p.Host.NoPing(secondOutside)
		}
		w.client.Ping(p.spec.Addresses[0].Address.String())
	}
	for _, p := range []*pod{a, b, c} {
		setup(w.nodeA, p)
	}
	expect(a, false)
	expect(b, true)
	// In another order.
	w.nodeA.IP("rule", "flush", "proto", fmt.Sprint(rtnl.Protocol))
	for _, p := range []*pod{c, a, b} {
		if err := w.nodeA.Try(func() error { return New("").CheckNode(p.spec) }); !errors.Is(err, ErrNotWired) {
			t.Errorf("CheckNode() = %v, want ErrNotWired", err)
		}
		w.nodeA.Run(func() error { return New("").Repair(p.spec) })
	}
	for _, p := range []*pod{a, b, c} {
		w.nodeA.Run(func() error { return New("").CheckNode(p.spec) })
	}
	expect(a, false)
	expect(b, true)
	expect(c, true)
	w.nodeA.Run(func() error { return New("").Teardown(c.spec) })
	w.nodeA.Run(func() error { return New("").Teardown(a.spec) })
	expect(b, true)
	w.nodeA.Run(func() error { return New("").Teardown(b.spec) })
	if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

// The node's way out comes from router advertisements, and the first IPv6 pod makes the
// node a router.
func TestNodeKeepsItsRouter(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	w.nodeA.IP("-6", "route", "del", "default")
	sysctl(t, w.nodeA, "net/ipv6/conf/all/forwarding", "0")
	for _, name := range []string{"plain", "deaf"} {
		w.nodeA.IP("link", "add", name, "type", "veth", "peer", "name", name+"1")
	}
	sysctl(t, w.nodeA, "net/ipv6/conf/deaf/accept_ra", "0")
	advertise := func() {
		w.router.Run(func() error {
			link, err := netlinksafe.LinkByName("eth0")
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
	learns := func() error {
		advertise()
		if routes := w.nodeA.IP("-6", "route", "show", "default"); !strings.Contains(routes, "proto ra") {
			return fmt.Errorf("the node has no router: %q", routes)
		}
		return nil
	}
	netnstest.Eventually(t, learns)
	w.nodeA.Ping(outside6)
	// An IPv4 pod changes nothing about it.
	setup(w.nodeA, w.pod("four", "10.0.70.5"))
	if have := setting(t, w.nodeA, "net/ipv6/conf/eth0/accept_ra"); have != "1" {
		t.Errorf("after an IPv4 pod accept_ra is %s", have)
	}
	setup(w.nodeA, w.pod("six", "2001:db8:70::5"))
	w.client.Ping("2001:db8:70::5")
	if routes := w.nodeA.IP("-6", "route", "show", "default"); !strings.Contains(routes, "proto ra") {
		t.Errorf("the node lost its router: %q", routes)
	}
	w.nodeA.Ping(outside6)
	for link, want := range map[string]string{"eth0": "2", "plain": "1", "deaf": "0", "lo": "1"} {
		if have := setting(t, w.nodeA, "net/ipv6/conf/"+link+"/accept_ra"); have != want {
			t.Errorf("accept_ra of %s is %s, want %s", link, have, want)
		}
	}
	w.nodeA.IP("-6", "route", "del", "default")
	netnstest.Eventually(t, learns)
}
