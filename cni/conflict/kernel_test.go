// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

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

// ask probes from a node and returns "address mac" of each conflict.
func ask(t *testing.T, from *netnstest.Host, p *Prober, targets ...Target) ([]string, error) {
	t.Helper()
	var found []string
	err := from.Try(func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		for i := range targets {
			targets[i].Link = link.Index
		}
		conflicts, err := p.Probe(t.Context(), targets)
		for _, c := range conflicts {
			found = append(found, c.Address.String()+" "+c.MAC.String())
		}
		return err
	})
	return found, err
}

func targetsOf(addrs ...string) (all []Target) {
	for _, a := range addrs {
		all = append(all, Target{Address: netip.MustParseAddr(a)})
	}
	return all
}

// prober has the defaults, but a patience that a busy machine does not outlast.
func prober() *Prober { return &Prober{Probes: Probes, Interval: Interval, Patience: Patience} }

// A host that is no part of the cluster and has some of the addresses.
func TestForeignHost(t *testing.T) {
	t.Parallel()
	w, a, _ := nodes(t)
	_, mac := foreign(t, w, addr4, addr6)
	found, err := ask(t, a, prober(), targetsOf(free6, addr6, addr4, free4, addr4)...)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{addr4 + " " + mac, addr6 + " " + mac}, found); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// One that the probe made give up, or that was on its way out.
func TestForeignHostThatEnds(t *testing.T) {
	t.Parallel()
	w, a, _ := nodes(t)
	h, _ := foreign(t, w, addr4, addr6)
	p := prober()
	p.Patience = time.Hour
	done := make(chan []string, 1)
	go func() {
		found, err := ask(t, a, p, targetsOf(addr4, addr6)...)
		if err != nil {
			found = append(found, err.Error())
		}
		done <- found
	}()
	netnstest.Eventually(t, func() error {
		if advertised(t, h) == 0 {
			return errors.New("the host answered no probe yet")
		}
		return nil
	})
	h.IP("addr", "flush", "dev", "eth0")
	select {
	case found := <-done:
		if len(found) > 0 {
			t.Errorf("found %q", found)
		}
	case <-time.After(time.Minute):
		t.Fatal("the probes do not end")
	}
}

// advertised returns how many neighbour advertisements the host sent.
func advertised(t *testing.T, h *netnstest.Host) int {
	t.Helper()
	var sent int
	h.Run(func() error {
		// This process's /proc/net shows the namespace of its first thread.
		counters, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/net/snmp6", unix.Gettid()))
		for line := range strings.Lines(string(counters)) {
			if fields := strings.Fields(line); len(fields) == 2 && fields[0] == "Icmp6OutNeighborAdvertisements" {
				sent, err = strconv.Atoi(fields[1])
			}
		}
		return err
	})
	return sent
}

// A pod's address that moves is none, also while the node where it was still carries it:
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
	l := newListener(t, b)
	b.Run(func() error { return l.Listen(onLink(indexOf(b), addr4, addr6)) })
	// Node a asks for them at the same time, and the proxy answers that.
	asking, stop := context.WithCancel(t.Context())
	asked, link := make(chan error, 1), indexOf(a)
	go func() {
		asked <- a.Try(func() error {
			asker, err := OpenAsker(link)
			if err != nil {
				return err
			}
			for ; err == nil && asking.Err() == nil; time.Sleep(Interval / 10) { //nolint:forbidigo // the questions' interval
				err = asker.Question([]netip.Addr{netip.MustParseAddr(addr4), netip.MustParseAddr(addr6)})
			}
			return errors.Join(err, asker.Close())
		})
	}()
	found, err := ask(t, a, prober(), targetsOf(addr4, addr6)...)
	stop()
	if err := errors.Join(err, <-asked); err != nil || len(found) > 0 {
		t.Errorf("found %q, %v", found, err)
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

// A host that probes for an address that a node answers for by proxy, as DHCP clients do before they
// take one, gets the node's answer, but none for other addresses and none after a withdrawal.
func TestHostsProbe(t *testing.T) {
	t.Parallel()
	w, _, b := nodes(t)
	h, _ := foreign(t, w, "10.0.70.99")
	pod := netnstest.New(t)
	spec := wire.Spec{ContainerID: "c", IfName: "eth0", NetNS: pod.Path(), Uplink: "eth0", MAC: v1alpha1.MACOf(netip.MustParseAddr(addr4)), Addresses: []api.Address{
		{Address: netip.MustParseAddr(addr4), Subnet: netip.MustParsePrefix("10.0.70.0/24")},
	}}
	b.Run(func() error { _, err := wire.New("").Setup(spec); return err })
	l := newListener(t, b)
	b.Run(func() error { return l.Listen(onLink(indexOf(b), free4, addr4)) })
	// answersOf returns the answers to a probe for each address, "address mac".
	answersOf := func(addrs ...string) (found []string) {
		h.Run(func() error {
			link, err := net.InterfaceByName("eth0")
			if err != nil {
				return err
			}
			s := &segment{link: link, is4: true, targets: onLink(link.Index, addrs...)}
			if s.conn, err = s.listen(); err != nil {
				return err
			}
			defer s.conn.Close()
			for _, target := range s.targets {
				probe := frame.ARP{Operation: frame.ARPRequest, SenderMAC: link.HardwareAddr, Sender: netip.IPv4Unspecified(), Target: target.Address}
				if _, err := s.conn.WriteTo(probe.To(frame.Broadcast()), &packet.Addr{HardwareAddr: frame.Broadcast()}); err != nil {
					return err
				}
			}
			return s.receive(t.Context(), time.Now().Add(time.Second), func(f []byte) {
				if addr, mac, ok := s.answer(f); ok {
					found = append(found, addr.String()+" "+mac.String())
				}
			})
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

func onLink(link int, addrs ...string) []Target {
	targets := targetsOf(addrs...)
	for i := range targets {
		targets[i].Link = link
	}
	return targets
}

// A pod that has its address on an interface of its own in the network, as with macvlan, is
// known by its MAC.
func TestOwnMAC(t *testing.T) {
	t.Parallel()
	w, a, _ := nodes(t)
	_, mac := foreign(t, w, addr4, addr6)
	own, err := net.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	targets := targetsOf(addr4, addr6)
	for i := range targets {
		targets[i].Own = own
	}
	if found, err := ask(t, a, prober(), targets...); err != nil || len(found) > 0 {
		t.Errorf("found %q, %v", found, err)
	}
}

// A caller that ends the ADD does not wait for the patience.
func TestEnds(t *testing.T) {
	t.Parallel()
	w, a, _ := nodes(t)
	foreign(t, w, addr4, addr6)
	p := prober()
	p.Patience = time.Hour
	gone := errors.New("the pod is gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	timer := time.AfterFunc(time.Second, func() { cancel(gone) })
	defer timer.Stop()
	err := a.Try(func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		targets := targetsOf(addr4, addr6)
		targets[0].Link, targets[1].Link = link.Index, link.Index
		_, err = p.Probe(ctx, targets)
		return err
	})
	if !errors.Is(err, gone) {
		t.Errorf("Probe() = %v", err)
	}
}

// Where a network cannot be asked, the others still are.
func TestBrokenLinks(t *testing.T) {
	t.Parallel()
	w, a, _ := nodes(t)
	_, mac := foreign(t, w, addr4)
	a.Run(func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		targets := targetsOf(addr4, addr6, free4)
		targets[0].Link, targets[1].Link, targets[2].Link = link.Index, link.Index+1000, 1 // loopback has no neighbours
		conflicts, err := prober().Probe(t.Context(), targets)
		if err == nil || !strings.Contains(err.Error(), "find link") || len(conflicts) != 1 || conflicts[0].MAC.String() != mac || conflicts[0].Link != "eth0" {
			t.Errorf("Probe() = %v, %v", conflicts, err)
		}
		return nil
	})
	a.IP("link", "set", "eth0", "down")
	if found, err := ask(t, a, prober(), targetsOf(addr4)...); err == nil || len(found) > 0 {
		t.Errorf("on a link that is down: %q, %v", found, err)
	}
}

// A Listener hears other hosts claim its addresses, with the host's MAC, and hears nothing else;
// the addresses may change meanwhile.
func TestListener(t *testing.T) {
	t.Parallel()
	w, a, b := nodes(t)
	mac := macOf(b)
	l := newListener(t, a)
	index := indexOf(a)
	listen := func(l *Listener, targets ...Target) {
		t.Helper()
		for i := range targets {
			targets[i].Link = index
		}
		a.Run(func() error { return l.Listen(targets) })
	}
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
	hears := func(l *Listener, want ...string) {
		t.Helper()
		missing := map[string]bool{}
		for _, addr := range want {
			missing[addr] = true
		}
		for len(missing) > 0 {
			select {
			case claim := <-l.Claims():
				if !slices.Contains(want, claim.Address.String()) || claim.MAC.String() != mac || claim.Link != "eth0" {
					t.Errorf("heard %s, want claims of %q by %s", claim, want, mac)
				}
				delete(missing, claim.Address.String())
			case <-time.After(time.Minute):
				t.Fatalf("no claim of %v is heard", missing)
			}
		}
	}
	listen(l, targetsOf(addr4, addr6)...)
	announce(b, free4, addr4, free6, addr6)
	hears(l, addr4, addr6)

	// The pod's own MAC, which other nodes give its interface, too, claims nothing.
	own, err := net.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	targets := targetsOf(addr4, addr6, free4, free6)
	targets[0].Own, targets[1].Own = own, own
	other := newListener(t, a)
	listen(other, targets...)
	announce(b, addr4, free4, addr6, free6)
	hears(other, free4, free6)

	// A link that goes down is heard again, and so is one in its place.
	late := newListener(t, a)
	listen(late, targetsOf(addr4)...)
	a.IP("link", "set", "eth0", "down")
	a.IP("link", "set", "eth0", "up")
	netnstest.Eventually(t, func() error {
		announce(b, addr4)
		select {
		case <-late.Claims():
			return nil
		default:
			return errors.New("nothing is heard")
		}
	})
	a.IP("link", "del", "eth0")
	if err := a.Try(func() error { return late.Listen([]Target{{Address: netip.MustParseAddr(addr4), Link: index}}) }); err == nil {
		t.Error("Listen() succeeds on a link that is gone")
	}
	w.Plug(a, "eth0", netip.MustParsePrefix("10.0.60.11/24"))
	index = indexOf(a)
	listen(late, targetsOf(addr4)...)
	announce(b, addr4)
	hears(late, addr4)

	// Without a filter for each address.
	many := targetsOf(addr4)
	for addr := netip.MustParseAddr("10.9.0.1"); len(many) <= maxAddresses; addr = addr.Next() {
		many = append(many, Target{Address: addr})
	}
	listen(late, many...)
	announce(b, free4, addr4)
	hears(late, addr4)
}

// newListener returns a Listener of a node, whose kernel it asks.
func newListener(t *testing.T, node *netnstest.Host) *Listener {
	l := NewListener(func(link int, addr netip.Addr) (answers bool, err error) {
		err = node.Try(func() (err error) { answers, err = wire.Answers(link, addr); return err })
		return answers, err
	})
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func indexOf(h *netnstest.Host) int {
	var index int
	h.Run(func() error {
		link, err := net.InterfaceByName("eth0")
		if err == nil {
			index = link.Index
		}
		return err
	})
	return index
}

// Where a node has no link for a VLAN, the VLAN's hosts claim nothing on the link below.
func TestOtherVLAN(t *testing.T) {
	t.Parallel()
	_, a, b := nodes(t)
	l := newListener(t, a)
	a.Run(func() error { return l.Listen(onLink(indexOf(a), addr4, free4, addr6, free6)) })
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
			case claim := <-l.Claims():
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
