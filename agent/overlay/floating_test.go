// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/nftables"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/overlay/rules"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// floatingPod is a pod with floating IPs of a subnet that no node is in.
type floatingPod struct {
	*netnstest.Host
	v4, v6 netip.Addr
}

// move wires the pod to a node as its driver does, and has the API say so.
func (w *topology) move(p *floatingPod, to *node) {
	w.t.Helper()
	_, _ = p.Command("ip", "link", "del", "eth0")
	to.IP("link", "add", "bthfloating", "type", "veth", "peer", "name", "eth0", "netns", p.Path())
	to.IP("link", "set", "bthfloating", "up")
	p.IP("link", "set", "eth0", "up")
	for _, addr := range []netip.Addr{p.v4, p.v6} {
		p.IP("addr", "add", netip.PrefixFrom(addr, addr.BitLen()).String(), "dev", "eth0", "nodad")
		to.IP("route", "replace", netip.PrefixFrom(addr, addr.BitLen()).String(), "dev", "bthfloating", "proto", fmt.Sprint(rtnl.Protocol))
	}
	mac := strings.Fields(to.IP("-o", "link", "show", "bthfloating"))
	for i, field := range mac {
		if field == "link/ether" {
			p.IP("neigh", "replace", "169.254.1.1", "lladdr", mac[i+1], "dev", "eth0", "nud", "permanent")
			p.IP("neigh", "replace", "fe80::1", "lladdr", mac[i+1], "dev", "eth0", "nud", "permanent")
		}
	}
	p.IP("route", "replace", "default", "via", "169.254.1.1", "dev", "eth0", "onlink")
	p.IP("-6", "route", "replace", "default", "via", "fe80::1", "dev", "eth0", "onlink")
	pod := strings.Fields(p.IP("-o", "link", "show", "eth0"))
	for i, field := range pod {
		if field == "link/ether" {
			for _, addr := range []netip.Addr{p.v4, p.v6} {
				to.IP("neigh", "replace", addr.String(), "lladdr", pod[i+1], "dev", "bthfloating", "nud", "permanent")
			}
		}
	}
	for _, addr := range []netip.Addr{p.v4, p.v6} {
		w.berth.Put(&v1alpha1.FloatingIP{
			ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NameOf(addr)},
			Spec:       v1alpha1.FloatingIPSpec{Address: addr.String(), Node: to.name, Pod: &v1alpha1.PodReference{Name: "floating", UID: "uid"}},
		})
	}
}

// With the option, ordinary pods and floating IPs reach each other over the overlay with their
// own addresses, also where the network between the nodes knows neither; and after moves, also
// to the asking pod's node.
func TestFloatingIPs(t *testing.T) {
	t.Parallel()
	for _, backend := range []Backend{VXLAN, HostGW} {
		t.Run(string(backend), func(t *testing.T) {
			t.Parallel()
			w := newTopology(t, backend, 0)
			w.berth.Put(&v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "four"}, Spec: v1alpha1.IPPoolSpec{Subnet: "10.0.70.0/24", Ranges: []string{"10.0.70.5-10.0.70.9"}}},
				&v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "six"}, Spec: v1alpha1.IPPoolSpec{Subnet: "2001:db8:70::/64", Ranges: []string{"2001:db8:70::5-2001:db8:70::9"}}})
			for range 3 {
				n := w.join(backend)
				n.stop()
				// The strictest setting a node can have.
				for _, key := range []string{"all", "default", "eth0"} {
					n.Run(func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/"+key+"/rp_filter", []byte("1"), 0o644) })
				}
				w.start(n, len(w.nodes), backend, func(o *Options) { o.FloatingIPs = true })
			}
			a := w.pod(w.nodes[0])
			p := &floatingPod{Host: netnstest.New(t), v4: netip.MustParseAddr("10.0.70.5"), v6: netip.MustParseAddr("2001:db8:70::5")}
			for _, i := range []int{1, 2, 0, 1} {
				w.move(p, w.nodes[i])
				w.expectReached(a, &pod{Host: p.Host, v4: p.v4, v6: p.v6})
				w.expectReached(&pod{Host: p.Host}, a)
				w.expectSeen(a.Host, p.Host, p.v4, a.v4)
				w.expectSeen(a.Host, p.Host, p.v6, a.v6)
				w.expectSeen(p.Host, a.Host, a.v4, p.v4)
				w.expectSeen(p.Host, a.Host, a.v6, p.v6)
			}
			w.berth.Remove(&v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NameOf(p.v4)}})
			w.berth.Remove(&v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NameOf(p.v6)}})
			w.eventually(func() error {
				for _, n := range []*node{w.nodes[0], w.nodes[2]} {
					if routes := n.IP("route") + n.IP("-6", "route"); strings.Contains(routes, p.v4.String()) || strings.Contains(routes, p.v6.String()) {
						return fmt.Errorf("%s has %s", n.name, routes)
					}
				}
				return nil
			})
		})
	}
}

// Destinations inside the cluster and destinations that the administrator names see pods' own
// addresses; the others, also of a pool's subnet, see the node.
func TestMasquerade(t *testing.T) {
	t.Parallel()
	w := newTopology(t, VXLAN, 1)
	w.berth.Put(&v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "four"}, Spec: v1alpha1.IPPoolSpec{Subnet: "10.0.70.0/24", Ranges: []string{"10.0.70.5-10.0.70.9"}}},
		&v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "six"}, Spec: v1alpha1.IPPoolSpec{Subnet: "2001:db8:70::/64", Ranges: []string{"2001:db8:70::5-2001:db8:70::9"}}})
	n := w.nodes[0]
	n.stop()
	w.start(n, 1, VXLAN, func(o *Options) { o.Inside = []netip.Prefix{netip.MustParsePrefix("10.98.0.0/16")} })
	a := w.pod(n)
	// The outside host has all the addresses, and a way back.
	w.outside.IP("route", "add", "10.244.0.0/16", "via", "10.0.60.11")
	w.outside.IP("-6", "route", "add", "fd00:244::/32", "via", "fd00:60::11")
	for addr, own := range map[string]bool{
		"10.0.70.4": false, "10.0.70.5": true, "10.0.70.9": true, "10.0.70.10": false, "10.96.0.1": true, "10.97.0.1": false, "10.98.3.4": true, outside4: false,
		"2001:db8:70::4": false, "2001:db8:70::5": true, "2001:db8:70::a": false, outside6: false,
	} {
		address := netip.MustParseAddr(addr)
		w.outside.IP("addr", "replace", netip.PrefixFrom(address, address.BitLen()).String(), "dev", "lo", "nodad")
		want := a.v4
		if !own {
			want = netip.MustParseAddr("10.0.60.11")
		}
		if address.Is6() {
			want = a.v6
			if !own {
				want = netip.MustParseAddr("fd00:60::11")
			}
		}
		w.expectSeen(a.Host, w.outside, address, want)
	}
	// The overlay fixes another program's flush of any part.
	for _, lose := range []func(*nftables.Conn, *nftables.Table){
		func(c *nftables.Conn, t *nftables.Table) { c.DelTable(t) },
		func(c *nftables.Conn, t *nftables.Table) { c.FlushTable(t) },
		func(c *nftables.Conn, t *nftables.Table) {
			c.FlushSet(&nftables.Set{Table: t, Name: "subnets4", KeyType: nftables.TypeIPAddr, Interval: true})
		},
		func(c *nftables.Conn, t *nftables.Table) { c.DelChain(&nftables.Chain{Table: t, Name: "masquerade"}) },
	} {
		n.Run(func() error {
			conn, err := nftables.New()
			if err != nil {
				return err
			}
			lose(conn, &nftables.Table{Family: nftables.TableFamilyINet, Name: rules.TableName})
			return conn.Flush()
		})
		n.overlay.Recheck()
		w.eventually(func() error {
			if got := w.seen(a.Host, w.outside, netip.MustParseAddr(outside4)); got.String() != "10.0.60.11" {
				return fmt.Errorf("seen as %s", got)
			}
			return nil
		})
	}
}

// The packets of pods pass firewalls of other programs that drop unknown packets, by policy or a
// last rule, also firewalls that come later.
func TestForwardPolicy(t *testing.T) {
	t.Parallel()
	for name, lines := range map[string][]string{
		"policy":    {"-P FORWARD DROP"},
		"last rule": {"-A FORWARD -i wg0 -j ACCEPT", "-A FORWARD -j REJECT"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTopology(t, VXLAN, 2)
			a, b := w.pod(w.nodes[0]), w.pod(w.nodes[1])
			w.expectReached(a, b)
			n := w.nodes[0]
			run := func(args string) {
				t.Helper()
				for _, program := range []string{"iptables", "ip6tables"} {
					if out, err := n.Command(program, strings.Fields("-w "+args)...); err != nil {
						t.Fatal(err, out)
					}
				}
			}
			for _, line := range lines {
				run(line)
			}
			n.overlay.Recheck()
			w.expectReached(a, b)
			w.expectReached(b, a)
			// The end of the last pod with a floating IP takes nothing away.
			n.Run(netfilter.Sweep)
			w.expectReached(a, b)
			w.expectSeen(a.Host, w.outside, netip.MustParseAddr(outside4), netip.MustParseAddr("10.0.60.11"))
			// Their owner writes its chain anew.
			run("-F FORWARD")
			for _, line := range lines {
				run(line)
			}
			n.overlay.Recheck()
			w.expectReached(b, a)
			a.IP("link", "del", "eth0")
			n.stop()
			n.Run(func() error { _, err := Sweep(); return err })
			if rules, err := n.Command("iptables-save"); err != nil || strings.Contains(rules, "bth+") {
				t.Errorf("rules are left: %s %v", rules, err)
			}
		})
	}
}

// A pod of the overlay cannot send from a floating IP or from the address of another pod, of its
// node or of another.
func TestSpoofing(t *testing.T) {
	t.Parallel()
	w := newTopology(t, VXLAN, 2)
	a, neighbour, b := w.pod(w.nodes[0]), w.pod(w.nodes[0]), w.pod(w.nodes[1])
	w.expectReached(a, b)
	for _, n := range w.nodes {
		for _, key := range []string{"all", "default", "eth0", link4} {
			n.Run(func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/"+key+"/rp_filter", []byte("0"), 0o644) })
		}
	}
	for source, want := range map[string]bool{a.v4.String(): true, "10.0.70.5": false, "10.244.2.77": false, neighbour.v4.String(): false, a.v6.String(): true, "2001:db8:70::5": false, neighbour.v6.String(): false} {
		addr := netip.MustParseAddr(source)
		to := b.v4
		if addr.Is6() {
			to = b.v6
		}
		a.IP("addr", "replace", netip.PrefixFrom(addr, addr.BitLen()).String(), "dev", "eth0", "nodad")
		if got := arrives(t, a, addr, b.Host, to); got != want {
			t.Errorf("packets from %s arrive: %v, want %v", source, got, want)
		}
	}
	// Policies know the pod by its addresses; no packet of this source leaves the node.
	a.IP("addr", "add", "fe80::77/64", "dev", "eth0", "nodad")
	for source, want := range map[string]string{"fe80::77%eth0": "invalid IP", a.v6.String(): a.v6.String()} {
		if got := netnstest.Seen(t, a.Host, source, w.nodes[0].Host, "fd00:60::11"); got.String() != want {
			t.Errorf("sent from %s, the node saw %v, want %s", source, got, want)
		}
	}
}

// arrives sends from a source address, and then from the pod's own: by then the first packet had
// its chance.
func arrives(t *testing.T, from *pod, source netip.Addr, server *netnstest.Host, to netip.Addr) bool {
	t.Helper()
	var listener *net.UDPConn
	server.Run(func() error {
		var err error
		listener, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 0)))
		return err
	})
	defer listener.Close()
	send := func(local *net.UDPAddr, text string) {
		from.Run(func() error {
			conn, err := net.DialUDP("udp", local, listener.LocalAddr().(*net.UDPAddr))
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write([]byte(text))
			return err
		})
	}
	send(net.UDPAddrFromAddrPort(netip.AddrPortFrom(source, 0)), "first")
	own := from.v4
	if to.Is6() {
		own = from.v6
	}
	send(net.UDPAddrFromAddrPort(netip.AddrPortFrom(own, 0)), "last")
	came := false
	for {
		buffer := make([]byte, 100)
		n, err := listener.Read(buffer)
		if err != nil {
			t.Fatal(err)
		}
		if string(buffer[:n]) == "last" {
			return came
		}
		came = true
	}
}
