// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/netfilter"
)

// scan sends a datagram to each of so many addresses after one.
func scan(t *testing.T, from *netnstest.Host, first string, number int) {
	t.Helper()
	from.Run(func() error {
		conn, err := net.ListenUDP("udp", nil)
		if err != nil {
			return err
		}
		defer conn.Close()
		addr := netip.MustParseAddr(first)
		for range number {
			if _, err := conn.WriteToUDPAddrPort([]byte("is anybody there?"), netip.AddrPortFrom(addr, 9)); err != nil {
				return err
			}
			addr = addr.Next()
		}
		return nil
	})
}

// neighbours counts a host's neighbours that do not answer.
func neighbours(h *netnstest.Host, family string) (missing int) {
	for line := range strings.Lines(h.IP(family, "neigh", "show", "nud", "all")) {
		if strings.Contains(line, "INCOMPLETE") || strings.Contains(line, "FAILED") {
			missing++
		}
	}
	return missing
}

// A pod that looks for all hosts of a large network leaves room in the kernel's table of
// neighbours, which has 1,024 for all namespaces together: the node finds its own, and its pods
// find those that answered, and routers.
func TestScan(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ family, own, first, client, outside, nodeB, subnet string }{
		"IPv4": {"-4", "10.0.70.5", "10.0.72.0", "10.0.70.50", outside4, "10.0.60.12", "10.0.64.0/19"},
		"IPv6": {"-6", "2001:db8:70::5", "2001:db8:70::1:0", "2001:db8:70::50", outside6, "2001:db8:60::12", "2001:db8:70::/64"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTopology(t)
			p := w.pod("a", c.own)
			p.spec.Addresses = []api.Address{{Address: netip.MustParseAddr(c.own), Subnet: netip.MustParsePrefix(c.subnet), Gateway: poolAddress(c.own).Gateway}}
			setup(w.nodeA, p)
			p.Ping(c.client)
			w.nodeA.Ping(c.nodeB)
			scan(t, p.Host, c.first, 3000)
			found := neighbours(w.nodeA, c.family)
			w.nodeA.IP(c.family, "neigh", "flush", "dev", "eth0", "to", c.nodeB)
			w.nodeA.Ping(c.nodeB)
			for _, to := range []string{c.client, c.outside} {
				if out, err := p.Command("ping", "-c", "1", "-W", "3", to); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			}
			// More than a quarter of the table is a second's.
			if found == 0 || found > 512 {
				t.Errorf("the node looks for %d neighbours, want a few and at most 512", found)
			}
			w.nodeA.Run(func() error {
				refused, err := netfilter.RefusedNeighbours()
				if refused == 0 {
					t.Error("the packets that were refused are not counted")
				}
				return err
			})
		})
	}
}

// A pod may talk to as many hosts as there are, once they have answered; a host that never answers
// is tried again and again.
func TestManyNeighbours(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	p := w.pod("a", "2001:db8:70::5")
	setup(w.nodeA, p)
	// The client stands for them.
	const hosts = 30
	addr := netip.MustParseAddr("2001:db8:70::2:1").As16()
	at := func(i int) string {
		binary.BigEndian.PutUint16(addr[14:], uint16(i+1))
		return netip.AddrFrom16(addr).String()
	}
	for i := range hosts {
		w.client.IP("addr", "add", at(i)+"/128", "dev", "eth0", "nodad")
		p.Ping(at(i))
	}
	scan(t, p.Host, "2001:db8:70::1:0", 1000)
	for i := range hosts {
		if out, err := p.Command("ping", "-c", "1", "-W", "3", at(i)); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
	// One that does not answer, and that is asked every time, is not a new one every time.
	w.nodeA.Run(func() error {
		before, err := netfilter.RefusedNeighbours()
		if err != nil {
			return err
		}
		p.Run(func() error {
			fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			to := netip.MustParseAddr("2001:db8:70::1:0").As16()
			for range 500 {
				if err := unix.Sendto(fd, []byte("again"), 0, &unix.SockaddrInet6{Port: 9, Addr: to}); err != nil {
					return fmt.Errorf("send: %w", err)
				}
			}
			return nil
		})
		after, err := netfilter.RefusedNeighbours()
		if after != before {
			t.Errorf("%d packets to one neighbour are refused", after-before)
		}
		return err
	})
}

// The hosts of the network keep the pod as their neighbour: a host that has known it for a while
// asks it again by unicast (RFC 4861, section 7.3.3), for which an entry goes to PROBE, and by the
// answer back to REACHABLE.
func TestNeighbourStates(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"10.0.70.5", "2001:db8:70::5"} {
		t.Run(addr, func(t *testing.T) {
			t.Parallel()
			w := newTopology(t)
			a := w.pod("a", addr)
			setup(w.nodeA, a)
			for _, h := range []*netnstest.Host{w.client, w.router} {
				h.Ping(addr)
				for range 3 {
					h.IP("neigh", "change", addr, "dev", "eth0", "nud", "probe")
					state := ""
					netnstest.Eventually(t, func() error {
						if state = h.IP("neigh", "show", addr); strings.Contains(state, "PROBE") {
							return errors.New(state)
						}
						return nil
					})
					if !strings.Contains(state, "REACHABLE") {
						t.Fatalf("after the probes the neighbour is %s", state)
					}
				}
			}
		})
	}
}
