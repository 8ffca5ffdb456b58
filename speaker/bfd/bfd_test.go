// SPDX-License-Identifier: Apache-2.0

package bfd

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bfd"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/ipam/wakeup"
	"github.com/berth-dev/berth/speaker/bfd/machine"
)

// usual is lost after three seconds: a busy machine is silent for a second.
func usual() machine.Config {
	return machine.Config{Interval: 300 * time.Millisecond, Multiplier: 10}
}

// one is a session on a host.
type one struct {
	t *testing.T
	*Session
	changed wakeup.Signal
}

func begin(t *testing.T, s *Sessions, host *netnstest.Host, router string, config machine.Config) *one {
	t.Helper()
	o := &one{t: t, changed: wakeup.New()}
	host.Run(func() (err error) {
		o.Session, err = s.Begin(netip.MustParseAddr(router), netip.Addr{}, config, o.changed.Send)
		return err
	})
	t.Cleanup(func() {
		select {
		case <-o.ended:
		default:
			o.End()
		}
	})
	return o
}

// await waits for a state after so many losses.
func (o *one) await(want bfd.StateType, losses int) State {
	o.t.Helper()
	timeout := time.After(time.Minute)
	for {
		s := o.State()
		if s.StateType == want && s.Losses == losses {
			return s
		}
		select {
		case <-o.changed:
		case <-timeout:
			o.t.Fatalf("with %s: %s (%s) after %d losses, want %s after %d", o.to, s.StateType, s.Why, s.Losses, want, losses)
		}
	}
}

// Two speakers watch each other, with several sessions on a socket, and know at once when the wire
// is cut, or the other one ends.
func TestPair(t *testing.T) {
	netnstest.Need(t)
	for name, multihop := range map[string]bool{"neighbours": false, "multihop": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wire := netnstest.NewWire(t)
			var hosts []*netnstest.Host
			for n := 1; n <= 3; n++ {
				host := netnstest.New(t)
				wire.Plug(host, "eth0", netip.MustParsePrefix(fmt.Sprintf("10.11.0.%d/24", n)), netip.MustParsePrefix(fmt.Sprintf("2001:db8:11::%d/64", n)))
				hosts = append(hosts, host)
			}
			config := usual()
			config.Multihop = multihop
			node, router, other := New(), New(), New()
			node4, router4 := begin(t, node, hosts[0], "10.11.0.2", config), begin(t, router, hosts[1], "10.11.0.1", config)
			node6, router6 := begin(t, node, hosts[0], "2001:db8:11::2", config), begin(t, router, hosts[1], "2001:db8:11::1", config)
			second, other4 := begin(t, node, hosts[0], "10.11.0.3", config), begin(t, other, hosts[2], "10.11.0.1", config)
			all := []*one{node4, router4, node6, router6, second, other4}
			for _, each := range all {
				each.await(bfd.StateUp, 0)
			}
			if len(node.hearing) != 2 {
				t.Errorf("hears at %d sockets, want one of each IP version", len(node.hearing))
			}
			wire.Block(2, true)
			cut := time.Now()
			for _, each := range []*one{node4, router4, node6, router6} {
				s := each.await(bfd.StateDown, 1)
				t.Logf("%s of %s: Down after %v: %s", name, each.to, s.Since.Sub(cut).Round(time.Millisecond), s.Why)
				if s.Why != "fell silent" {
					t.Errorf("%s: %s", each.to, s.Why)
				}
			}
			wire.Block(2, false)
			for _, each := range []*one{node4, router4, node6, router6} {
				each.await(bfd.StateUp, 1)
			}
			second.await(bfd.StateUp, 0)
			// The end of one is no loss of the other, which finds the next one.
			node4.End()
			node6.End()
			for _, each := range []*one{router4, router6} {
				if s := each.await(bfd.StateDown, 1); !strings.Contains(s.Why, "AdminDown") {
					t.Errorf("%s: %s", each.to, s.Why)
				}
			}
			begin(t, node, hosts[0], "10.11.0.2", config).await(bfd.StateUp, 0)
			router4.await(bfd.StateUp, 1)
			second.await(bfd.StateUp, 0)
			if len(node.hearing) != 1 {
				t.Errorf("hears at %d sockets, want none for IPv6", len(node.hearing))
			}
		})
	}
}

// router is one that does what the test says.
type router struct {
	t    *testing.T
	conn *net.UDPConn
}

func (r *router) say(to netip.AddrPort, hops int, packet bfd.BFDHeader) {
	r.t.Helper()
	packet.Version, packet.DetectTimeMultiplier, packet.MyDiscriminator, packet.DesiredMinTxInterval, packet.RequiredMinRxInterval = 1, 255, 7, 1_000_000, 1_000_000
	bytes, err := packet.MarshalBinary()
	if err != nil {
		r.t.Fatal(err)
	}
	level, option := unix.IPPROTO_IP, unix.IP_TTL
	if to.Addr().Is6() {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
	}
	raw, err := r.conn.SyscallConn()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, hops) }); err != nil {
		r.t.Fatal(err)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.conn.WriteToUDPAddrPort(bytes, to); err != nil {
		r.t.Fatal(err)
	}
}

// hears waits for a packet that is wanted.
func (r *router) hears(want func(p *bfd.BFDHeader) bool) (p bfd.BFDHeader, from netip.AddrPort) {
	r.t.Helper()
	if err := r.conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		r.t.Fatal(err)
	}
	for {
		buffer, control := make([]byte, 100), make([]byte, 100)
		n, size, _, from, err := r.conn.ReadMsgUDPAddrPort(buffer, control)
		if err != nil {
			r.t.Fatal(err)
		}
		if hops := hopLimit(control[:size]); hops != 255 {
			r.t.Fatalf("a packet has the TTL %d", hops)
		}
		if err := p.UnmarshalBinary(buffer[:n]); err != nil {
			r.t.Fatal(err)
		}
		if want(&p) {
			return p, from
		}
	}
}

// What comes with another TTL, or for another session, changes nothing; packets are as RFC 5881 has
// them.
func TestForged(t *testing.T) {
	netnstest.Need(t)
	for _, version := range []struct{ node, router string }{{"10.11.0.1", "10.11.0.2"}, {"2001:db8:11::1", "2001:db8:11::2"}} {
		t.Run(version.node, func(t *testing.T) {
			t.Parallel()
			wire, node, host := netnstest.NewWire(t), netnstest.New(t), netnstest.New(t)
			bits := netip.MustParseAddr(version.node).BitLen()
			wire.Plug(node, "eth0", netip.PrefixFrom(netip.MustParseAddr(version.node), bits*3/4))
			wire.Plug(host, "eth0", netip.PrefixFrom(netip.MustParseAddr(version.router), bits*3/4))
			r := &router{t: t}
			host.Run(func() (err error) {
				r.conn, err = open(netip.AddrPortFrom(netip.MustParseAddr(version.router), single))
				return err
			})
			t.Cleanup(func() { _ = r.conn.Close() })
			session := begin(t, New(), node, version.router, usual())
			to := netip.AddrPortFrom(netip.MustParseAddr(version.node), single)
			p, from := r.hears(func(*bfd.BFDHeader) bool { return true })
			if from.Addr().Unmap() != to.Addr() || from.Port() < firstSource || p.YourDiscriminator != 0 || p.State != bfd.StateDown {
				t.Errorf("%s says %+v", from, p)
			}
			local := p.MyDiscriminator
			r.say(to, 254, bfd.BFDHeader{State: bfd.StateInit, YourDiscriminator: local})
			r.say(to, 255, bfd.BFDHeader{State: bfd.StateInit, YourDiscriminator: local + 1})
			r.say(to, 255, bfd.BFDHeader{State: bfd.StateDown})
			r.hears(func(p *bfd.BFDHeader) bool { return p.State == bfd.StateInit && p.YourDiscriminator == 7 })
			session.await(bfd.StateInit, 0)
			r.say(to, 254, bfd.BFDHeader{State: bfd.StateUp, YourDiscriminator: local})
			netnstest.Eventually(t, func() error {
				if s := session.State(); !strings.Contains(s.Why, "TTL 254") {
					return fmt.Errorf("it is not told that packets were refused: %s", s.Why)
				}
				return nil
			})
			r.say(to, 255, bfd.BFDHeader{State: bfd.StateUp, YourDiscriminator: local})
			session.await(bfd.StateUp, 0)
			for _, forged := range []struct {
				hops int
				bfd.BFDHeader
			}{{254, bfd.BFDHeader{State: bfd.StateDown}}, {1, bfd.BFDHeader{State: bfd.StateAdminDown, YourDiscriminator: local}}, {255, bfd.BFDHeader{State: bfd.StateDown, YourDiscriminator: local + 1}}} {
				r.say(to, forged.hops, forged.BFDHeader)
			}
			// The answer to a poll comes after all that came before it.
			r.say(to, 255, bfd.BFDHeader{State: bfd.StateUp, YourDiscriminator: local, Poll: true})
			p, again := r.hears(func(p *bfd.BFDHeader) bool { return p.Final })
			if p.State != bfd.StateUp || again != from || session.State().Losses != 0 {
				t.Errorf("after forged packets %s says %+v", again, p)
			}
		})
	}
}

// A port that another daemon has is named.
func TestTaken(t *testing.T) {
	netnstest.Need(t)
	host := netnstest.New(t)
	var taken net.PacketConn
	host.Run(func() (err error) { taken, err = net.ListenPacket("udp4", ":3784"); return err })
	defer taken.Close()
	host.Run(func() error {
		if _, err := New().Begin(netip.MustParseAddr("10.11.0.2"), netip.Addr{}, usual(), func() {}); err == nil || !strings.Contains(err.Error(), "UDP port 3784 of the node") {
			t.Errorf("begins with a port that is taken: %v", err)
		}
		return nil
	})
}
