// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/packet"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/frame"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

const (
	addr4, addr6 = "10.0.70.10", "2001:db8:70::10"
	free4, free6 = "10.0.70.11", "2001:db8:70::11"
)

// nodes makes two nodes on one network.
func nodes(t *testing.T) (w *netnstest.Wire, a, b *netnstest.Host) {
	t.Helper()
	netnstest.Need(t)
	w = netnstest.NewWire(t)
	a, b = netnstest.New(t), netnstest.New(t)
	w.Plug(a, "eth0", netip.MustParsePrefix("10.0.60.11/24"), netip.MustParsePrefix("2001:db8:60::11/64"))
	w.Plug(b, "eth0", netip.MustParsePrefix("10.0.60.12/24"), netip.MustParsePrefix("2001:db8:60::12/64"))
	return w, a, b
}

// foreign plugs in a host that has addresses.
func foreign(t *testing.T, w *netnstest.Wire, addrs ...string) (*netnstest.Host, string) {
	t.Helper()
	h := netnstest.New(t)
	var prefixes []netip.Prefix
	for _, a := range addrs {
		addr := netip.MustParseAddr(a)
		prefixes = append(prefixes, netip.PrefixFrom(addr, addr.BitLen()-8))
	}
	w.Plug(h, "eth0", prefixes...)
	return h, macOf(h)
}

func macOf(h *netnstest.Host) string {
	var mac string
	h.Run(func() error {
		link, err := net.InterfaceByName("eth0")
		mac = link.HardwareAddr.String()
		return err
	})
	return mac
}

func targetsOf(addrs ...string) (all []Target) {
	for _, a := range addrs {
		all = append(all, Target{Address: netip.MustParseAddr(a)})
	}
	return all
}

// owners asks from a node, some times, and returns "address mac" of each host that has one of the
// addresses itself.
func owners(t *testing.T, from *netnstest.Host, addrs ...string) []string {
	t.Helper()
	var all, is4 []netip.Addr
	for _, target := range targetsOf(addrs...) {
		if all = append(all, target.Address); target.Address.Is4() {
			is4 = append(is4, target.Address)
		}
	}
	found := map[string]bool{}
	from.Run(func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		asker, err := OpenAsker(link.Index, nil)
		if err != nil {
			return err
		}
		hearing, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		var mu sync.Mutex
		go func() {
			done <- asker.Hear(hearing, func(a Answer) {
				mu.Lock()
				defer mu.Unlock()
				if slices.Contains(all, a.Address) && a.Owner {
					found[a.Address.String()+" "+a.MAC.String()] = true
				}
			}, func(Conflict) {})
		}()
		for range 3 {
			err = errors.Join(err, asker.Question(all), asker.Probe(is4))
			<-time.After(300 * time.Millisecond)
		}
		stop()
		return errors.Join(err, <-done, asker.Close())
	})
	return slices.Sorted(maps.Keys(found))
}

// A host that has some of the addresses is known as their owner.
func TestForeignHost(t *testing.T) {
	t.Parallel()
	w, a, _ := nodes(t)
	_, mac := foreign(t, w, addr4, addr6)
	if diff := cmp.Diff([]string{addr4 + " " + mac, addr6 + " " + mac}, owners(t, a, free6, addr6, addr4, free4)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The node that a pod's address moves from is no owner, also while it still answers:
// it may be cut off from the API.
func TestMovingAddress(t *testing.T) {
	t.Parallel()
	_, a, b := nodes(t)
	pod := netnstest.New(t)
	spec := wire.Spec{ContainerID: "c", IfName: "eth0", NetNS: pod.Path(), Uplink: "eth0", MAC: v1alpha1.MACOf(netip.MustParseAddr(addr4)), Addresses: []api.Address{
		{Address: netip.MustParseAddr(addr4), Subnet: netip.MustParsePrefix("10.0.70.0/24")},
		{Address: netip.MustParseAddr(addr6), Subnet: netip.MustParsePrefix("2001:db8:70::/64")},
	}}
	b.Run(func() error {
		w := wire.New("")
		if _, err := w.Setup(spec); err != nil {
			return err
		}
		return w.Announce(spec)
	})
	// Its agent answers probes of other hosts.
	defending(t, b, targetsOf(addr4, addr6)...)
	if found := owners(t, a, addr4, addr6); len(found) > 0 {
		t.Errorf("found %q", found)
	}
	// The node carries them all the same.
	a.IP("route", "add", "10.0.70.0/24", "dev", "eth0")
	a.IP("route", "add", "2001:db8:70::/64", "dev", "eth0")
	b.IP("route", "add", "10.0.60.11/32", "dev", "eth0")
	for _, to := range []string{addr4, addr6} {
		if out, err := a.Command("ping", "-c", "1", "-w", "30", to); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
}

// A host that probes for an address that a node answers for by proxy, as DHCP clients do before
// they take one, gets the node's answer, but none for other addresses and none after a withdrawal.
func TestHostsProbe(t *testing.T) {
	t.Parallel()
	w, _, b := nodes(t)
	h, _ := foreign(t, w, "10.0.70.99")
	pod := netnstest.New(t)
	spec := wire.Spec{ContainerID: "c", IfName: "eth0", NetNS: pod.Path(), Uplink: "eth0", MAC: v1alpha1.MACOf(netip.MustParseAddr(addr4)), Addresses: []api.Address{
		{Address: netip.MustParseAddr(addr4), Subnet: netip.MustParsePrefix("10.0.70.0/24")},
	}}
	b.Run(func() error { _, err := wire.New("").Setup(spec); return err })
	defending(t, b, targetsOf(free4, addr4)...)
	// answersOf returns the answers to a probe for each address, "address mac".
	answersOf := func(addrs ...string) (found []string) {
		h.Run(func() error {
			link, err := net.InterfaceByName("eth0")
			if err != nil {
				return err
			}
			s := &segment{link: link, is4: true}
			if s.conn, err = s.listen(); err != nil {
				return err
			}
			defer s.conn.Close()
			for _, target := range targetsOf(addrs...) {
				probe := frame.ARP{Operation: frame.ARPRequest, SenderMAC: link.HardwareAddr, Sender: netip.IPv4Unspecified(), Target: target.Address}
				if _, err := s.conn.WriteTo(probe.To(frame.Broadcast()), &packet.Addr{HardwareAddr: frame.Broadcast()}); err != nil {
					return err
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return read(ctx, Socket{s.conn, func(f []byte) {
				if a, ok := s.answer(f); ok {
					found = append(found, a.Address.String()+" "+a.MAC.String())
				}
			}})
		})
		return found
	}
	if diff := cmp.Diff([]string{addr4 + " " + macOf(b)}, answersOf(free4, addr4)); diff != "" {
		t.Errorf("answers to probes (-want +got):\n%s", diff)
	}
	b.Run(func() error { return wire.New("").Withdraw(spec) })
	if found := answersOf(addr4); len(found) > 0 {
		t.Errorf("after the withdrawal: %q", found)
	}
}

// A node hears other hosts claim its addresses, with the host's MAC, and hears nothing else;
// the addresses may change meanwhile.
func TestClaims(t *testing.T) {
	t.Parallel()
	_, a, b := nodes(t)
	mac := macOf(b)
	announce := func(from *netnstest.Host, addrs ...string) {
		t.Helper()
		from.Run(func() error {
			link, err := netlinksafe.LinkByName("eth0")
			for _, addr := range addrs {
				if err == nil {
					err = wire.AnnounceOn(link, netip.MustParseAddr(addr), true)
				}
			}
			return err
		})
	}
	// hears waits for a claim of each address. Frames of one family arrive in their order.
	hears := func(d *defended, want ...string) {
		t.Helper()
		missing := map[string]bool{}
		for _, addr := range want {
			missing[addr] = true
		}
		for len(missing) > 0 {
			select {
			case claim := <-d.claims:
				if !slices.Contains(want, claim.Address.String()) || claim.MAC.String() != mac || claim.Link != "eth0" {
					t.Errorf("heard %s, want claims of %q by %s", claim, want, mac)
				}
				delete(missing, claim.Address.String())
			case <-time.After(time.Minute):
				t.Fatalf("no claim of %v is heard", missing)
			}
		}
	}
	d := defending(t, a, targetsOf(addr4, addr6)...)
	announce(b, free4, addr4, free6, addr6)
	hears(d, addr4, addr6)

	// The pod's own MAC, which other nodes give its interface, too, claims nothing.
	own, err := net.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	targets := targetsOf(addr4, addr6, free4, free6)
	targets[0].Own, targets[1].Own = own, own
	other := defending(t, a, targets...)
	announce(b, addr4, free4, addr6, free6)
	hears(other, free4, free6)

	// A link that goes down is heard again.
	late := defending(t, a, targetsOf(addr4)...)
	a.IP("link", "set", "eth0", "down")
	a.IP("link", "set", "eth0", "up")
	netnstest.Eventually(t, func() error {
		announce(b, addr4)
		select {
		case <-late.claims:
			return nil
		default:
			return errors.New("nothing is heard")
		}
	})

	// Without a filter for each address.
	many := targetsOf(addr4)
	for addr := netip.MustParseAddr("10.9.0.1"); len(many) <= maxAddresses; addr = addr.Next() {
		many = append(many, Target{Address: addr})
	}
	if err := late.Defend(many); err != nil {
		t.Fatal(err)
	}
	announce(b, free4, addr4)
	hears(late, addr4)
}

// defended is an Asker of a node that hears claims.
type defended struct {
	*Asker
	claims chan Conflict
}

// defending has a node hear claims, and answer hosts that probe, as its kernel says.
func defending(t *testing.T, node *netnstest.Host, targets ...Target) *defended {
	t.Helper()
	d := &defended{claims: make(chan Conflict, 1000)}
	node.Run(func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		d.Asker, err = OpenAsker(link.Index, func(link int, addr netip.Addr) (answers bool, err error) {
			err = node.Try(func() (err error) { answers, err = wire.Answers(link, addr); return err })
			return answers, err
		})
		if err != nil {
			return err
		}
		return d.Defend(targets)
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Hear(ctx, func(Answer) {}, func(c Conflict) { d.claims <- c }) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-done, d.Close()); err != nil {
			t.Error(err)
		}
	})
	return d
}

// Where a node has no link for a VLAN, the VLAN's hosts claim nothing on the link below.
func TestOtherVLAN(t *testing.T) {
	t.Parallel()
	_, a, b := nodes(t)
	d := defending(t, a, targetsOf(addr4, free4, addr6, free6)...)
	own := b.MAC("eth0")
	announcement := func(addr string) []byte {
		target := netip.MustParseAddr(addr)
		if target.Is4() {
			return frame.ARP{Operation: frame.ARPRequest, SenderMAC: own, Sender: target, Target: target}.To(frame.Broadcast())
		}
		message := append([]byte{frame.NeighborAdvertisement, 0, 0, 0, frame.FlagOverride, 0, 0, 0}, target.AsSlice()...)
		return frame.ICMPv6(own, net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, target, netip.IPv6LinkLocalAllNodes(), message)
	}
	for _, addr := range []string{addr4, addr6} {
		f := announcement(addr)
		b.SendFrame("eth0", append(append(slices.Clone(f[:12]), 0x81, 0, 0, 7), f[12:]...))
	}
	// Frames of one family arrive in their order.
	var heard []string
	for _, addr := range []string{free4, free6} {
		b.SendFrame("eth0", announcement(addr))
		for !slices.Contains(heard, addr) {
			select {
			case claim := <-d.claims:
				heard = append(heard, claim.Address.String())
			case <-time.After(time.Minute):
				t.Fatal("no claim is heard")
			}
		}
	}
	if diff := cmp.Diff([]string{free4, free6}, heard); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
}
