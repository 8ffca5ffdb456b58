// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/rtnl"
)

// nowhere is a network whose packets the router discards in silence.
const nowhere = "203.0.113.9"

// manyAddresses gives a node a pod and, before it, the routing of more addresses of the
// pool.
func manyAddresses(b *testing.B, more int) (*topology, *pod) {
	b.Helper()
	w := newTopology(b)
	w.router.IP("route", "add", "blackhole", "203.0.113.0/24")
	first, p := w.pod("first", "10.0.70.5"), w.pod("p", "10.0.70.6")
	for _, p := range []*pod{first, p} {
		p.spec.Addresses[0].Subnet = netip.MustParsePrefix("10.0.0.0/9")
	}
	setup(w.nodeA, first)
	w.nodeA.Run(func() error {
		host, err := netlinksafe.LinkByName(first.spec.HostLink())
		if err != nil {
			return err
		}
		uplink, err := netlinksafe.LinkByName("eth0")
		if err != nil {
			return err
		}
		a := first.spec.Addresses[0]
		a.Address = netip.MustParseAddr("10.1.0.0")
		for range more {
			a.Address = a.Address.Next()
			plan := planHost(a, host.Attrs().Index, uplink.Attrs(), first.spec.MAC)
			if err := New("").setupRouting(plan); err != nil {
				return err
			}
		}
		return nil
	})
	setup(w.nodeA, p)
	return w, p
}

// BenchmarkPackets is the time for one datagram from the pod, to it, and of the node itself,
// through both namespaces and the network to where it is discarded.
func BenchmarkPackets(b *testing.B) {
	for _, more := range []int{0, 250, 1000} {
		b.Run(fmt.Sprintf("addresses=%d", more), func(b *testing.B) {
			w, p := manyAddresses(b, more)
			for _, flow := range []struct {
				name string
				from *netnstest.Host
				to   string
			}{{"out", p.Host, nowhere}, {"own", w.nodeA, nowhere}} {
				b.Run(flow.name, func(b *testing.B) { sendMany(b, flow.from, flow.to) })
			}
		})
	}
}

func sendMany(b *testing.B, from *netnstest.Host, to string) {
	b.Helper()
	from.Run(func() error {
		conn, err := net.ListenUDP("udp4", nil)
		if err != nil {
			return err
		}
		defer conn.Close()
		datagram, addr := make([]byte, 64), netip.AddrPortFrom(netip.MustParseAddr(to), 9)
		for b.Loop() {
			if _, err := conn.WriteToUDPAddrPort(datagram, addr); err != nil {
				return err
			}
		}
		return nil
	})
}

// BenchmarkCarry is the time to make the node's side of a dual-stack pod and to withdraw it, on
// a node with 500 routes of other programs that carries more addresses.
func BenchmarkCarry(b *testing.B) {
	for _, more := range []int{0, 200} {
		b.Run(fmt.Sprintf("addresses=%d", more), func(b *testing.B) {
			w := newTopology(b)
			w.nodeA.Run(func() error {
				for i := range 500 {
					_, dst, err := net.ParseCIDR(fmt.Sprintf("10.%d.%d.0/24", 200+i/256, i%256))
					if err != nil {
						return err
					}
					if err := netlink.RouteAdd(&netlink.Route{Dst: dst, Gw: net.ParseIP("10.0.60.1")}); err != nil {
						return err
					}
				}
				return nil
			})
			for i := range more {
				setup(w.nodeA, w.pod(fmt.Sprintf("more%d", i), fmt.Sprintf("10.0.70.%d", 51+i)))
			}
			p := w.pod("p", "10.0.70.5", "2001:db8:70::5")
			setup(w.nodeA, p)
			w.nodeA.Run(func() error {
				for b.Loop() {
					if err := errors.Join(New("").Withdraw(p.spec), New("").Repair(p.spec)); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

// BenchmarkList is the time to list the addresses of all pods of the node.
func BenchmarkList(b *testing.B) {
	for _, pods := range []int{100, 400} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			node := netnstest.New(b)
			var batch strings.Builder
			for i := range pods {
				link := HostLink(fmt.Sprint(i), "eth0")
				fmt.Fprintf(&batch, "link add %s up type veth peer name peer%d\n", link, i)
				for _, table := range []int{unix.RT_TABLE_MAIN, podsTable} {
					fmt.Fprintf(&batch, "route add 10.1.%d.%d dev %s proto %d table %d\n", i/256, i%256, link, rtnl.Protocol, table)
				}
			}
			node.IPBatch(batch.String())
			node.Run(func() error {
				for b.Loop() {
					links, err := New("").List()
					if err != nil {
						return err
					}
					if len(links) != pods || len(links[pods-1].Addresses) != 1 {
						b.Fatalf("%d links, the last one %v", len(links), links[pods-1])
					}
				}
				return nil
			})
		})
	}
}
