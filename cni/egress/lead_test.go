// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/conntrack"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// shared are addresses that no node has, and from whose ports from 2048 to 4095 the node sends.
var shared = []string{"10.0.80.200", "2001:db8:80::200"}

var sharedPorts = Ports{2048, 4095}

// carrier is a node that answers for the shared addresses.
type carrier struct {
	*netnstest.Host
	w    *topology
	link int
}

// newCarrier returns a node on the network of the addresses, with its last bytes.
func newCarrier(w *topology, last string) *carrier {
	w.t.Helper()
	h := netnstest.New(w.t)
	w.storage.Plug(h, "eth1", netip.MustParsePrefix("10.0.80."+last+"/24"), netip.MustParsePrefix("2001:db8:80::"+last+"/64"))
	h.IP("-4", "route", "add", "default", "via", routers[0])
	h.IP("-6", "route", "add", "default", "via", routers[1])
	return (&carrier{Host: h, w: w}).forward()
}

// forward has the node be one that forwards, with the strictest filter, and says which index its
// link has.
func (c *carrier) forward() *carrier {
	c.w.t.Helper()
	c.Run(func() (err error) {
		c.link, err = wire.NetworkLink("eth1", 0)
		return errors.Join(err, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644), os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644),
			os.WriteFile("/proc/sys/net/ipv4/conf/all/rp_filter", []byte("1"), 0o644))
	})
	return c
}

// lead has the node lead answers to the one with the pods, unless it is that node itself, and then
// answer for the addresses.
func (c *carrier) lead() {
	c.w.t.Helper()
	c.Run(func() error {
		var leads []Lead
		var errs []error
		for i, address := range shared {
			l := Lead{Address: netip.MustParseAddr(address), Link: c.link, Size: 2048, Nodes: map[uint16]netip.Addr{sharedPorts.First: netip.MustParseAddr(own[i])}}
			if c.Host == c.w.node {
				l.Nodes = nil
			}
			leads = append(leads, l)
		}
		errs = append(errs, PutLeads(leads), PutLeads(leads))
		for i, address := range shared {
			s := wire.Service{Address: netip.MustParseAddr(address), Subnet: netip.MustParsePrefix(subnets[i]), Led: true}
			wirer := wire.New("")
			errs = append(errs, wirer.MarkService(s.Address), wirer.CarryService(s, c.link), wire.AnnounceAt(c.link, s.Address, true))
		}
		return errors.Join(errs...)
	})
}

// tracksNothing fails the test if the node tracks a connection of an address.
func (c *carrier) tracksNothing() {
	c.w.t.Helper()
	c.Run(func() error {
		return conntrack.List(rtnl.Families, func(f *conntrack.Flow) bool {
			if to := f.Original.Destination.Addr().String(); to == shared[0] || to == shared[1] {
				c.w.t.Errorf("the carrier tracks a connection from %s to %s", f.Original.Source, f.Original.Destination)
			}
			return true
		})
	})
}

func (w *topology) blocks() []Way {
	return w.ways(func(i int, way *Way) { way.Address, way.Ports = netip.MustParseAddr(shared[i]), sharedPorts })
}

// stream is a connection from the pod to a server outside, which has the port from which it comes.
type stream struct {
	t            testing.TB
	client, peer net.Conn
}

func (w *topology) dial(from, to *netnstest.Host, server string) *stream {
	w.t.Helper()
	var l net.Listener
	s := &stream{t: w.t}
	to.Run(func() (err error) {
		l, err = new(net.ListenConfig).Listen(w.t.Context(), "tcp", net.JoinHostPort(server, "0"))
		return err
	})
	defer l.Close()
	from.Run(func() (err error) {
		s.client, err = (&net.Dialer{Timeout: patience}).DialContext(w.t.Context(), "tcp", l.Addr().String())
		return err
	})
	var err error
	if s.peer, err = l.Accept(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { s.client.Close(); s.peer.Close() })
	return s
}

// says fails the test unless what one end says comes to the other one.
func (s *stream) says(from, to net.Conn, size int) {
	s.t.Helper()
	text := bytes.Repeat([]byte("0123456789"), size/10)
	go func() { _, _ = from.Write(text) }()
	got := make([]byte, len(text))
	if err := to.SetDeadline(time.Now().Add(patience)); err != nil {
		s.t.Fatal(err)
	}
	if _, err := io.ReadFull(to, got); err != nil || !bytes.Equal(got, text) {
		s.t.Errorf("of %d bytes came others (%v)", len(text), err)
	}
}

// comesFrom fails the test unless the peer sees a shared address and a port of the block.
func (s *stream) comesFrom(address string) {
	s.t.Helper()
	from := s.peer.RemoteAddr().(*net.TCPAddr).AddrPort()
	if from.Addr().Unmap().String() != address || from.Port() < sharedPorts.First || from.Port() > sharedPorts.Last {
		s.t.Errorf("the peer sees %s, want ports %v of %s", from, sharedPorts, address)
	}
}

// A pod leaves with an address that no node has: TCP, UDP in fragments, pings. Another node leads
// the answers to its node, and a third one goes on in the middle of a connection in which the
// server speaks first. Neither tracks anything.
func TestBlock(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	before := w.state()
	first, second := newCarrier(w, "12"), newCarrier(w, "13")
	first.lead()
	w.put(w.blocks())
	with := w.state()
	w.put(w.blocks())
	if again := w.state(); again != with {
		t.Errorf("a second time it is\n%s\nwant\n%s", again, with)
	}
	w.sees(w.pod, outside, shared)
	w.sees(w.pod, near, shared)
	w.sees(w.pod, peers, pods)
	w.sees(w.other, outside, primary)
	streams := make([]*stream, len(shared))
	for i, address := range shared {
		streams[i] = w.dial(w.pod, w.world, outside[i])
		streams[i].comesFrom(address)
		streams[i].says(streams[i].client, streams[i].peer, 100_000)
		w.pod.Ping(outside[i])
		w.fragments(outside[i])
	}
	// The network passes nothing to the first carrier any more: plugs are world and node before it.
	second.lead()
	w.storage.Block(3, true)
	for _, s := range streams {
		s.says(s.peer, s.client, 100_000)
		s.says(s.client, s.peer, 10)
	}
	w.sees(w.pod, outside, shared)
	first.tracksNothing()
	second.tracksNothing()
	w.put(nil)
	if after := w.state(); after != before {
		t.Errorf("after all it is\n%s\nwant\n%s", after, before)
	}
	second.Run(func() error { return PutLeads(nil) })
	if out, err := second.Command("nft", "list", "tables"); err != nil || strings.Contains(out, LeadTable) {
		t.Errorf("the table stays: %s (%v)", out, err)
	}
}

// fragments has a datagram of 4,000 bytes come to a server and back.
func (w *topology) fragments(server string) {
	w.t.Helper()
	var socket net.PacketConn
	w.world.Run(func() (err error) {
		socket, err = new(net.ListenConfig).ListenPacket(w.t.Context(), "udp", net.JoinHostPort(server, "0"))
		return err
	})
	defer socket.Close()
	go func() {
		b := make([]byte, 5000)
		for {
			n, from, err := socket.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = socket.WriteTo(b[:n], from)
		}
	}()
	err := w.pod.Try(func() error {
		c, err := net.Dial("udp", socket.LocalAddr().String())
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write(make([]byte, 4000)); err != nil {
			return err
		}
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		n, err := c.Read(make([]byte, 5000))
		if err == nil && n != 4000 {
			err = fmt.Errorf("%d bytes came back", n)
		}
		return err
	})
	if err != nil {
		w.t.Errorf("fragments to %s: %v", server, err)
	}
}

// A node is its own carrier, and the server is a pod of the carrier with an address of the network.
func TestBlockOnCarrier(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	self := (&carrier{Host: w.node, w: w}).forward()
	self.lead()
	// The world asks for addresses from those of its servers, as no router does.
	w.world.Run(func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/eth1/arp_announce", []byte("2"), 0o644) })
	w.put(w.blocks())
	w.sees(w.pod, outside, shared)

	first := newCarrier(w, "12")
	first.lead()
	w.node.Run(func() error {
		return errors.Join(wire.New("").RemoveService(netip.MustParseAddr(shared[0])), wire.New("").RemoveService(netip.MustParseAddr(shared[1])))
	})
	w.sees(w.pod, outside, shared)
	// A pod of the carrier that has a floating IP, and a rule for what its connections do not know, as
	// kube-proxy has one.
	floating := netnstest.New(t)
	first.IP("link", "add", "float", "type", "veth", "peer", "name", "eth0", "netns", floating.Path())
	first.IP("link", "set", "float", "up")
	floating.IP("link", "set", "eth0", "up")
	for i, address := range []string{"10.0.80.77", "2001:db8:80::77"} {
		family, bits := []string{"-4", "-6"}[i], []string{"/32", "/128"}[i]
		floating.IP(family, "addr", "add", address+bits, "dev", "eth0", "nodad")
		first.IP(family, "route", "add", address, "dev", "float")
		first.IP(family, "neigh", "add", "proxy", address, "dev", "eth1")
		via := []string{"169.254.1.1", "fe80::1"}[i]
		first.IP(family, "addr", "add", via+bits, "dev", "float")
		floating.IP(family, "route", "add", "default", "via", via, "dev", "eth0", "onlink")
		program := []string{"iptables", "ip6tables"}[i]
		if out, err := first.Command(program, "-A", "FORWARD", "-m", "conntrack", "--ctstate", "INVALID", "-j", "DROP"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		s := w.dial(w.pod, floating, address)
		s.comesFrom(shared[i])
		s.says(s.client, s.peer, 10_000)
		s.says(s.peer, s.client, 10_000)
	}
}

// A smaller MTU outside comes to the pod, by an error that the carrier leads on.
func TestBlockMTU(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	first := newCarrier(w, "12")
	first.lead()
	w.put(w.blocks())
	behind, far := netnstest.NewWire(t), netnstest.New(t)
	behind.Plug(w.world, "eth2", netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8:2::1/64"))
	behind.Plug(far, "eth0", netip.MustParsePrefix("192.0.2.2/24"), netip.MustParsePrefix("2001:db8:2::2/64"))
	w.world.IP("link", "set", "eth2", "mtu", "1300")
	w.world.Run(func() error {
		return errors.Join(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644), os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644))
	})
	far.IP("-4", "route", "add", "default", "via", "192.0.2.1")
	far.IP("-6", "route", "add", "default", "via", "2001:db8:2::1")
	for i, address := range []string{"192.0.2.2", "2001:db8:2::2"} {
		s := w.dial(w.pod, far, address)
		s.comesFrom(shared[i])
		s.says(s.client, s.peer, 100_000)
		if got := w.pod.IP("route", "get", address); !strings.Contains(got, "mtu 1300") {
			t.Errorf("the pod's route is %s", got)
		}
	}
	first.tracksNothing()
}

// A full block lets no more connections to one destination and port begin, but others. What the
// node denies, or no answer could find, does not leave, and nobody's answers go nowhere.
func TestBlockFull(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	newCarrier(w, "12").lead()
	ways := w.blocks()
	for i := range ways {
		ways[i].Ports.Last = ways[i].Ports.First + 7
	}
	w.put(ways)
	w.heard()
	for i := range shared {
		var held []net.Conn
		for range 8 {
			w.pod.Run(func() error {
				c, err := net.DialTimeout("udp", net.JoinHostPort(outside[i], strconv.Itoa(port)), patience)
				if err == nil {
					_, err = c.Write([]byte("who?"))
				}
				held = append(held, c)
				return err
			})
		}
		netnstest.Eventually(t, func() error {
			var full []int
			w.node.Run(func() (err error) { full, err = Full(ways); return err })
			if full[i] != 8 {
				return fmt.Errorf("of %s %d ports are in use", &ways[i], full[i])
			}
			return nil
		})
		if got, err := askFor(silence, w.pod, "udp", outside[i]); err == nil {
			t.Errorf("one more connection has the source %s", got)
		}
		if got, err := ask(w.pod, "udp", near[i]); got != shared[i] || err != nil {
			t.Errorf("another server sees %q (%v)", got, err)
		}
		for _, c := range held {
			c.Close()
		}
	}
	if sources := w.heard(); len(sources) != 2 || !sources[netip.MustParseAddr(shared[0])] || !sources[netip.MustParseAddr(shared[1])] {
		t.Errorf("packets from %v came", sources)
	}

	// A protocol without ports.
	w.pod.Run(func() error {
		c, err := net.Dial("ip4:47", outside[0])
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("not of GRE"))
		return err
	})
	w.node.Run(func() error {
		refused, err := tableOf(nil).Counted(refusedCounter)
		if refused != 1 {
			t.Errorf("%d packets were refused, want the one without ports", refused)
		}
		return err
	})

	// An answer to nobody ends at the node, and is not sent round.
	packets := func() (n uint64) {
		w.node.Run(func() error {
			link, err := netlink.LinkByIndex(w.eth1)
			if err == nil {
				n = link.Attrs().Statistics.RxPackets
			}
			return err
		})
		return n
	}
	before := packets()
	w.world.Run(func() error {
		c, err := net.Dial("udp", net.JoinHostPort(shared[0], "2050"))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("stray"))
		return err
	})
	if got, err := ask(w.pod, "udp", near[0]); got != shared[0] || err != nil {
		t.Errorf("a server sees %q (%v)", got, err)
	}
	if n := packets() - before; n > 20 { // A packet that is sent round comes 30 times.
		t.Errorf("%d packets came to the node", n)
	}

	// A policy.
	for _, program := range []string{"iptables", "ip6tables"} {
		if out, err := w.node.Command(program, "-A", "FORWARD", "-o", "eth1", "-j", "DROP"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	w.silent(w.pod, outside, false)
}

// Without even a network, nothing leaves, and everything else goes as ever.
func TestNoBlock(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	before := w.state()
	w.put(w.ways(func(i int, way *Way) {
		*way = Way{Subnet: netip.MustParsePrefix([]string{"0.0.0.0/32", "::/128"}[i]), Pods: way.Pods}
	}))
	w.silent(w.pod, outside, false)
	w.sees(w.pod, peers, pods)
	w.sees(w.pod, nodes, primary)
	w.sees(w.other, outside, primary)
	w.put(nil)
	if after := w.state(); after != before {
		t.Errorf("after all it is\n%s\nwant\n%s", after, before)
	}
}

// Two namespaces share the network of one pool, and its number: each has its own address, also
// where the node's own is another one.
func TestBlocksOfOneNetwork(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	newCarrier(w, "12").lead()
	ways := w.blocks()
	ways = append(ways, w.ways(func(i int, way *Way) {
		way.Pods = []netip.Addr{netip.MustParseAddr([]string{"10.244.1.6", "fd00:244:1::6"}[i])}
	})...)
	w.put(ways)
	w.sees(w.pod, outside, shared)
	w.sees(w.other, outside, own)
	// Both change at once, and with them their connections.
	s := w.dial(w.pod, w.world, outside[0])
	s.comesFrom(shared[0])
	for i := range ways {
		ways[i].Pods, ways[(i+2)%4].Pods = ways[(i+2)%4].Pods, ways[i].Pods
		if i == 1 {
			break
		}
	}
	w.put(ways)
	w.node.Run(func() error { return EndConnections(ways, []netip.Addr{netip.MustParseAddr(pods[0])}, nil) })
	w.sees(w.pod, outside, own)
	w.sees(w.other, outside, shared)
	w.heard()
	if _, err := s.client.Write([]byte("on")); err != nil {
		t.Fatal(err)
	}
	if err := s.peer.SetReadDeadline(time.Now().Add(silence)); err != nil {
		t.Fatal(err)
	}
	if n, err := s.peer.Read(make([]byte, 2)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the older connection goes on: %d bytes, %v", n, err)
	}
}
