// SPDX-License-Identifier: Apache-2.0

package nodeaddress

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/leftover"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// topology is a node with an uplink and a link to another network, and a host in both.
type topology struct {
	t          *testing.T
	node, host *netnstest.Host
}

func newTopology(t *testing.T) *topology {
	t.Helper()
	netnstest.Need(t)
	network, storage := netnstest.NewWire(t), netnstest.NewWire(t)
	w := &topology{t, netnstest.New(t), netnstest.New(t)}
	for h, addrs := range map[*netnstest.Host][2]string{w.node: {"10.0.60.11/24", "2001:db8:60::11/64"}, w.host: {"10.0.60.1/24", "2001:db8:60::1/64"}} {
		h.Run(func() error {
			// Without waiting for duplicate address detection. The strictest filter a node can have.
			return errors.Join(os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0o644),
				os.WriteFile("/proc/sys/net/ipv4/conf/all/rp_filter", []byte("1"), 0o644))
		})
		network.Plug(h, "eth0", netip.MustParsePrefix(addrs[0]), netip.MustParsePrefix(addrs[1]))
		storage.Plug(h, "eth1")
	}
	w.node.IP("route", "add", "default", "via", "10.0.60.1")
	w.node.IP("-6", "route", "add", "default", "via", "2001:db8:60::1")
	for _, addr := range []string{"10.0.80.50/24", "2001:db8:80::50/64"} {
		w.host.IP("addr", "add", addr, "dev", "eth1")
	}
	return w
}

func address(prefix string) Address {
	p := netip.MustParsePrefix(prefix)
	return Address{p.Addr(), p.Masked()}
}

func (w *topology) put(a Address, uplink string) {
	w.t.Helper()
	w.node.Run(func() error {
		link, err := LinkFor(uplink, 0)
		if err != nil {
			return err
		}
		return errors.Join(Mark(a), Put(a, link))
	})
}

// state is the addresses, rules and routes of the node, without what the kernel does on its own.
func (w *topology) state() string {
	w.t.Helper()
	var lines []string
	for _, family := range []string{"-4", "-6"} {
		for _, args := range [][]string{{"-o", "addr"}, {"rule"}, {"route", "show", "table", "all"}} {
			for line := range strings.Lines(w.node.IP(append([]string{family}, args...)...)) {
				if !strings.Contains(line, "fe80") && !strings.Contains(line, "ff00::/8") {
					lines = append(lines, strings.TrimSpace(line))
				}
			}
		}
	}
	return strings.Join(lines, "\n")
}

func (w *topology) ping(from *netnstest.Host, to string) {
	w.t.Helper()
	if out, err := from.Command("ping", "-c", "1", "-w", "30", to); err != nil {
		w.t.Errorf("%v\n%s", err, out)
	}
}

// way fails the test unless "ip route get" has all the texts.
func (w *topology) way(texts []string, args ...string) {
	w.t.Helper()
	got := w.node.IP(append([]string{"route", "get"}, args...)...)
	for _, text := range texts {
		if !strings.Contains(got, text) {
			w.t.Errorf("ip route get %s is %swant %s", strings.Join(args, " "), got, text)
		}
	}
}

var both = []string{"10.0.80.11/24", "2001:db8:80::11/64"}

// A node gets an address in another network: the host there reaches it, and the node reaches the
// host from the address, with a strict reverse path filter, too. Nothing else of the node changes,
// not the way of pods' packets, and in the end nothing is left.
func TestOtherNetwork(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	before := w.state()
	for _, prefix := range both {
		w.put(address(prefix), "eth1")
	}
	var with string
	netnstest.Eventually(t, func() error { // The kernel makes the local route of an IPv6 address a moment later.
		if with = w.state(); !strings.Contains(with, "local 2001:db8:80::11 dev eth1") {
			return fmt.Errorf("no local route in\n%s", with)
		}
		return nil
	})
	for _, prefix := range both {
		w.put(address(prefix), "eth1")
		w.node.IP("addr", "del", prefix, "dev", "eth1")
		w.put(address(prefix), "eth1")
	}
	netnstest.Eventually(t, func() error {
		if again := w.state(); again != with {
			return fmt.Errorf("a second time it is\n%s\nwant\n%s", again, with)
		}
		return nil
	})
	w.ping(w.host, "10.0.80.11")
	w.ping(w.host, "2001:db8:80::11")
	w.ping(w.node, "10.0.80.50")
	w.ping(w.node, "2001:db8:80::50")
	w.way([]string{"dev eth1", "src 10.0.80.11"}, "10.0.80.50")
	w.way([]string{"dev eth1", "src 2001:db8:80::11"}, "2001:db8:80::50")
	w.way([]string{"via 10.0.60.1", "src 10.0.60.11"}, "10.0.90.1")
	w.way([]string{"via 2001:db8:60::1", "src 2001:db8:60::11"}, "2001:db8:90::1")
	w.way([]string{"via 2001:db8:60::1", "src 2001:db8:60::11"}, "2001:db8:81::1") // ::80 is nearer
	// Packets of pods leave by the rules of package wire, and where these are none by the node's
	// routes.
	mark := fmt.Sprint(netfilter.Mark)
	w.node.IP("link", "add", "pod", "type", "veth", "peer", "name", "peer")
	w.node.IP("link", "set", "pod", "up")
	w.node.IP("link", "set", "peer", "up")
	w.node.Run(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644) })
	w.node.IP("route", "add", "10.0.70.5", "dev", "pod")
	w.way([]string{"via 10.0.60.1"}, "10.0.80.50", "from", "10.0.70.5", "iif", "pod", "mark", mark)
	w.way([]string{"dev eth1"}, "10.0.80.50", "from", "10.0.70.5", "iif", "pod")
	w.node.IP("link", "del", "pod")

	w.node.Run(func() error {
		marked, err := List()
		if want := []Address{address(both[0]), address(both[1])}; err != nil || !slices.Equal(marked, want) {
			t.Errorf("the node has %v, %v, want %v", marked, err, want)
		}
		for _, a := range marked {
			err = errors.Join(err, Remove(a), Remove(a))
		}
		return err
	})
	w.node.Run(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0o644) })
	if after := w.state(); after != before {
		t.Errorf("after all it is\n%s\nwant\n%s", after, before)
	}
}

// The route of the node to its own subnet stays, as the one that the node has to a part of another.
func TestOwnRoutes(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	before := w.state()
	w.put(address("10.0.60.77/24"), "eth0")
	w.way([]string{"src 10.0.60.11"}, "10.0.60.1")
	w.ping(w.host, "10.0.60.77")
	first := strings.Fields(w.node.IP("-4", "-o", "addr", "show", "dev", "eth0"))
	if len(first) < 4 || first[3] != "10.0.60.11/24" {
		t.Errorf("the first address of the uplink is %v: a kubelet would take it for the node's", first)
	}
	w.node.IP("route", "add", "10.0.80.48/28", "via", "10.0.60.1")
	w.put(address("10.0.80.11/24"), "eth1")
	w.way([]string{"via 10.0.60.1"}, "10.0.80.50")
	w.way([]string{"via 10.0.60.1"}, "10.0.80.9")
	w.node.IP("route", "del", "10.0.80.48/28")
	w.put(address("10.0.80.11/24"), "eth1")
	w.way([]string{"dev eth1"}, "10.0.80.50")
	w.node.IP("route", "add", "10.0.80.0/24", "via", "10.0.60.1")
	w.put(address("10.0.80.11/24"), "eth1")
	w.way([]string{"via 10.0.60.1"}, "10.0.80.50")
	w.node.IP("route", "del", "10.0.80.0/24")
	w.node.Run(func() error { return errors.Join(Remove(address("10.0.80.11/24")), Remove(address("10.0.60.77/24"))) })
	if after := w.state(); after != before {
		t.Errorf("after all it is\n%s\nwant\n%s", after, before)
	}
}

// Two pools may have one subnet. The kernel removes with the first address of a subnet the others,
// of which one may be the node's own.
func TestSameSubnet(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	w.node.Run(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/conf/eth1/promote_secondaries", []byte("0"), 0o644)
	})
	before := w.state()
	w.put(address("10.0.80.11/24"), "eth1")
	w.put(address("10.0.80.12/24"), "eth1")
	w.node.IP("addr", "add", "10.0.80.13/32", "dev", "eth1")
	w.node.IP("addr", "add", "10.0.80.14/24", "dev", "eth1", "noprefixroute")
	w.node.Run(func() error { return Remove(address("10.0.80.11/24")) })
	w.put(address("10.0.80.12/24"), "eth1")
	for _, to := range []string{"10.0.80.12", "10.0.80.13", "10.0.80.14"} {
		w.ping(w.host, to)
	}
	w.way([]string{"dev eth1", "src 10.0.80.12"}, "10.0.80.50")
	w.node.Run(func() error { return Remove(address("10.0.80.12/24")) })
	w.node.IP("addr", "del", "10.0.80.14/24", "dev", "eth1")
	w.node.IP("addr", "del", "10.0.80.13/32", "dev", "eth1")
	if after := w.state(); after != before {
		t.Errorf("after all it is\n%s\nwant\n%s", after, before)
	}
}

// The pool's VLAN changes: the address moves to the other link, with its route.
func TestMovesToOtherLink(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	for _, prefix := range both {
		w.put(address(prefix), "eth1")
		w.put(address(prefix), "eth0")
	}
	w.way([]string{"dev eth0 ", "src 10.0.80.11"}, "10.0.80.50")
	w.way([]string{"dev eth0 ", "src 2001:db8:80::11"}, "2001:db8:80::50")
	if got := w.node.IP("-o", "addr", "show", "dev", "eth1"); strings.Contains(got, "80.11") || strings.Contains(got, "80::11") {
		t.Errorf("the former link has\n%s", got)
	}
}

// A link that goes down loses its routes, not its addresses nor Berth's mark.
func TestLinkDown(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	w.put(address(both[0]), "eth1")
	with := w.state()
	w.node.IP("link", "set", "eth1", "down")
	if err := w.node.Try(func() error { _, err := LinkFor("eth1", 0); return err }); !errors.Is(err, wire.ErrUplink) || !strings.Contains(err.Error(), "ip link set eth1 up") {
		t.Errorf("the link that is down: %v", err)
	}
	w.node.Run(func() error {
		carried, err := Carried()
		if !slices.Equal(carried, []netip.Addr{netip.MustParseAddr("10.0.80.11")}) {
			t.Errorf("the node has %v", carried)
		}
		return err
	})
	w.node.IP("link", "set", "eth1", "up")
	w.put(address(both[0]), "eth1")
	if again := w.state(); again != with {
		t.Errorf("it is\n%s\nwant\n%s", again, with)
	}
}

// The link of a VLAN is the one that the node's configuration made, or the bridge over it. A link
// of Berth's for pods is none for the node, and a VLAN without a link is named.
func TestLinkFor(t *testing.T) {
	t.Parallel()
	netnstest.NeedLinks(t, "vlan")
	w := newTopology(t)
	for id, name := range map[string]string{"80": "eth0.80", "81": "bthl81", "82": "eth0.82"} {
		w.node.IP("link", "add", "link", "eth0", "name", name, "type", "vlan", "id", id)
		w.node.IP("link", "set", name, "up")
	}
	w.node.IP("link", "add", "br82", "type", "bridge")
	w.node.IP("link", "set", "eth0.82", "master", "br82")
	w.node.IP("link", "set", "br82", "up")
	for vlan, want := range map[int]string{80: "eth0.80", 82: "br82"} {
		w.node.Run(func() error {
			index, err := LinkFor("eth0", vlan)
			if err != nil {
				return err
			}
			link, err := netlink.LinkByIndex(index)
			if err == nil && link.Attrs().Name != want {
				t.Errorf("the link of VLAN %d is %s, want %s", vlan, link.Attrs().Name, want)
			}
			return err
		})
	}
	for vlan, want := range map[int]string{81: "link bthl81 of VLAN 81 on eth0 is Berth's", 83: "VLAN 83 has no link on eth0"} {
		if err := w.node.Try(func() error { _, err := LinkFor("eth0", vlan); return err }); !errors.Is(err, wire.ErrUplink) || !strings.Contains(err.Error(), want) {
			t.Errorf("VLAN %d: %v, want %s", vlan, err, want)
		}
	}
}

// A cleanup removes all, also what a crash left.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	before := w.state()
	for _, prefix := range both {
		w.put(address(prefix), "eth1")
	}
	w.node.Run(func() error { return Mark(address("10.0.80.12/24")) })
	clean := func(leftovers func() ([]leftover.Item, error)) (names []string) {
		w.node.Run(func() error {
			items, err := leftovers()
			for _, item := range items {
				names = append(names, item.Name)
				err = errors.Join(err, item.Remove(), item.Remove())
			}
			return err
		})
		return names
	}
	want := []string{"the node's address 10.0.80.11/24", "the node's address 10.0.80.12/24", "the node's address 2001:db8:80::11/64"}
	if got := clean(Leftovers); !slices.Equal(got, want) {
		t.Errorf("left over are %v, want %v", got, want)
	}
	if after := w.state(); after != before {
		t.Errorf("after all it is\n%s\nwant\n%s", after, before)
	}
}
