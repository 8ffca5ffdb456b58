// SPDX-License-Identifier: Apache-2.0

package segment

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/answering/datagram"
	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/cni/frame"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/agentca"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

var (
	node1 = answering.Node{Name: "node1", UID: "u1"}
	node2 = answering.Node{Name: "node2", UID: "u2"}
	addr4 = netip.MustParseAddr("10.0.70.10")
	addr6 = netip.MustParseAddr("2001:db8:70::10")
	equal = cmpopts.EquateComparable(netip.Addr{})

	errNone = errors.New("no certificate yet")
)

// newAuthority is the cluster's in all tests.
var newAuthority = sync.OnceValues(func() (*agentca.Authority, error) { return agentca.New("c") })

// station is a node's Segment in a test, with all that it tells.
type station struct {
	*Segment
	t     *testing.T
	host  *netnstest.Host
	node  answering.Node
	codec atomic.Pointer[datagram.Codec]
	// taken counts how often the codec was taken, to send or to read.
	taken    atomic.Int64
	heard    chan answering.Message
	answered chan string
	refused  chan error
}

// join opens and runs the Segment of a host's link.
func join(t *testing.T, host *netnstest.Host, link string, node answering.Node) *station {
	t.Helper()
	s := &station{t: t, host: host, node: node, heard: make(chan answering.Message, 1000), answered: make(chan string, 1000), refused: make(chan error, 1000)}
	s.codec.Store(newCodec(t, node))
	options := Options{Codec: s.load, Refused: func(err error) { s.refused <- err }}
	host.Run(func() error {
		found, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		s.Segment, err = Open(found.Index, options)
		return err
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- s.Run(ctx, nil, func(m answering.Message) { s.heard <- m }, func(a conflict.Answer) {
			s.answered <- a.Address.String() + " " + a.MAC.String()
		}, func(conflict.Conflict) {})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *station) load() (*datagram.Codec, error) {
	defer s.taken.Add(1)
	if codec := s.codec.Load(); codec != nil {
		return codec, nil
	}
	return nil, errNone
}

// newCodec returns the codec of a node of the cluster.
func newCodec(t *testing.T, node answering.Node) *datagram.Codec {
	t.Helper()
	authority, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	return codecOf(t, authority, node)
}

// codecOf returns the codec of a node whose certificate is of an authority.
func codecOf(t *testing.T, authority *agentca.Authority, node answering.Node) *datagram.Codec {
	t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := authority.Certify(node.Name, node.UID, public)
	if err != nil {
		t.Fatal(err)
	}
	certificates, err := agentca.ParseBundle(text)
	if err != nil {
		t.Fatal(err)
	}
	return newCodecBy(t, authority, certificates[0], key)
}

// newCodecBy returns the codec of a node that has this certificate.
func newCodecBy(t *testing.T, authority *agentca.Authority, certificate *x509.Certificate, key ed25519.PrivateKey) *datagram.Codec {
	t.Helper()
	identity, err := datagram.NewIdentity(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	codec, err := datagram.NewCodec([]*x509.Certificate{authority.Certificate}, identity)
	if err != nil {
		t.Fatal(err)
	}
	return codec
}

func (s *station) say(messages ...answering.Message) {
	s.t.Helper()
	s.host.Run(func() error { return s.Send(messages) })
}

// meet waits until two stations hear each other: a new link passes nothing at first.
func meet(t *testing.T, s1, s2 *station) {
	t.Helper()
	for _, pair := range [][2]*station{{s1, s2}, {s2, s1}} {
		netnstest.Eventually(t, func() error {
			pair[0].say(answering.Message{Kind: answering.Hello, From: pair[0].node})
			select {
			case <-pair[1].heard:
				return nil
			case <-time.After(10 * time.Millisecond):
				return errors.New("nothing is heard")
			}
		})
	}
}

// hears fails the test where the next messages are others, beside the ones of meet. Frames of a
// sender arrive in their order, so a message that came before a wanted one is seen.
func (s *station) hears(want ...answering.Message) {
	s.t.Helper()
	for _, w := range want {
		got := wait(s.t, s.heard)
		for got.Kind == answering.Hello && w.Kind != answering.Hello {
			got = wait(s.t, s.heard)
		}
		if diff := cmp.Diff(w, got, equal); diff != "" {
			s.t.Errorf("heard (-want +got):\n%s", diff)
		}
	}
}

func wait[T any](t *testing.T, from <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-from:
	case <-time.After(time.Minute):
		t.Fatal("nothing comes in a minute")
	}
	return got
}

// asserts returns an Assert of a node, by a version that tells messages apart.
func asserts(from answering.Node, version answering.Version) answering.Message {
	return answering.Message{Kind: answering.Assert, From: from, Address: addr4, Version: version}
}

// pair makes two nodes on one network, without addresses there.
func pair(t *testing.T) (w *netnstest.Wire, a, b *netnstest.Host) {
	t.Helper()
	netnstest.Need(t)
	w = netnstest.NewWire(t)
	a, b = netnstest.New(t), netnstest.New(t)
	w.Plug(a, "eth0")
	w.Plug(b, "eth0")
	return w, a, b
}

// Two nodes hear each other's messages, in their order, however many, and not their own, also where
// a switch sends a frame back to its port.
func TestMessages(t *testing.T) {
	_, a, b := pair(t)
	s1, s2 := join(t, a, "eth0", node1), join(t, b, "eth0", node2)
	meet(t, s1, s2)
	var many []answering.Message
	for i := range 100 {
		many = append(many, asserts(node1, answering.Version(i+1)))
	}
	s1.say(many...)
	s2.hears(many...)
	payload, err := s1.codec.Load().Encode(netip.Addr{}, many[:1])
	if err != nil {
		t.Fatal(err)
	}
	b.SendFrame("eth0", frame.Datagram{SourceMAC: a.MAC("eth0"), Source: netip.MustParseAddr("10.0.60.11"), Port: datagram.Port, Payload: payload[0]}.ToAll())
	reply := answering.Message{Kind: answering.Deny, From: node2, To: node1, Address: addr6, Version: 7}
	s2.say(reply)
	s1.hears(reply)
	if len(s1.refused)+len(s2.refused) > 0 {
		t.Errorf("%d and %d are refused", len(s1.refused), len(s2.refused))
	}
}

// The bytes on the wire, from a node with an address on the link, with one elsewhere, and with
// none.
func TestFrame(t *testing.T) {
	_, a, b := pair(t)
	a.IP("link", "set", "eth0", "address", "02:00:00:00:00:01")
	s := join(t, a, "eth0", node1)
	meet(t, s, join(t, b, "eth0", node2))
	var wire *packet.Conn
	b.Run(func() error {
		link, err := net.InterfaceByName("eth0")
		if err == nil {
			wire, err = packet.Listen(link, packet.Raw, unix.ETH_P_IP, nil)
		}
		return err
	})
	defer wire.Close()
	// sent returns the next frame to the port.
	sent := func() string {
		buffer := make([]byte, 2000)
		if err := wire.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		for {
			n, _, err := wire.ReadFrom(buffer)
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := frame.ParseDatagram(buffer[:n]); ok {
				return hex.EncodeToString(buffer[:n])
			}
		}
	}
	// With a certificate that is always the same the checksums are, too.
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	authority, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	s.codec.Store(newCodecBy(t, authority, &x509.Certificate{Raw: []byte("cert"), PublicKey: key.Public(), Subject: agentca.Subject(node1.Name, node1.UID)}, key))
	const ethernet, udp = "ffffffffffff" + "020000000001" + "0800", "28192819" + "005c"
	const payload = "62746801" + "0004" + "63657274" + "00" + "00" + "01" + "04000000000000" +
		"bf631469dafce331db1b1d4241489c21c0f51fad3a7abf1f5afd3908b0a2ff9f" +
		"320f0e2ac1d63f6190da2df489a196c8de1332e6aa58bc2d2127304027df7c0c"
	for _, step := range []struct{ link, addr, ip, sum string }{
		{"", "", "4500007000004000" + "40113a7e" + "00000000" + "ffffffff", "f9e6"},
		{"lo", "10.0.60.11/32", "4500007000004000" + "4011f472" + "0a003c0b" + "ffffffff", "b3db"},
		{"eth0", "10.0.70.11/24", "4500007000004000" + "4011ea72" + "0a00460b" + "ffffffff", "a9db"},
	} {
		if step.link != "" {
			a.IP("addr", "add", step.addr, "dev", step.link)
		}
		s.say(answering.Message{Kind: answering.Call, From: node1})
		if got, want := sent(), ethernet+step.ip+udp+step.sum+payload; got != want {
			t.Errorf("with %q the frame is\n%s, want\n%s", step.addr, got, want)
		}
	}
}

// A datagram of another cluster, or of nobody, is counted, and not heard; without a codec nothing
// is. A clone of a cluster has another authority.
func TestRefused(t *testing.T) {
	_, a, b := pair(t)
	s1, s2 := join(t, a, "eth0", node1), join(t, b, "eth0", node2)
	meet(t, s1, s2)
	hears := func(want error) {
		t.Helper()
		if err := wait(t, s2.refused); !errors.Is(err, want) {
			t.Errorf("refused because of %v, want %v", err, want)
		}
	}
	clone, err := agentca.New("clone")
	if err != nil {
		t.Fatal(err)
	}
	s1.codec.Store(codecOf(t, clone, node1))
	s1.say(asserts(node1, 1))
	hears(datagram.ErrCertificate)
	for payload, want := range map[string]error{"hello": datagram.ErrMalformed, "bth\x02" + strings.Repeat("x", 90): datagram.ErrFormat} {
		a.SendFrame("eth0", frame.Datagram{SourceMAC: a.MAC("eth0"), Source: netip.IPv4Unspecified(), Port: datagram.Port, Payload: []byte(payload)}.ToAll())
		hears(want)
	}

	s1.codec.Store(nil)
	if err := a.Try(func() error { return s1.Send([]answering.Message{asserts(node1, 3)}) }); !errors.Is(err, errNone) {
		t.Errorf("without a certificate Send() = %v", err)
	}
	s2.codec.Store(nil)
	s1.codec.Store(newCodec(t, node1))
	before := s2.taken.Load()
	s1.say(asserts(node1, 4))
	netnstest.Eventually(t, func() error {
		if s2.taken.Load() == before {
			return errors.New("the message is not read yet")
		}
		return nil
	})
	s2.codec.Store(newCodec(t, node2))
	s1.say(asserts(node1, 5))
	s2.hears(asserts(node1, 5))
	if len(s2.refused) > 0 {
		t.Errorf("%d are refused", len(s2.refused))
	}
}

// strict makes a host's reverse path filter strict, and its firewall drop all at hooks.
func strict(t *testing.T, h *netnstest.Host, hooks []string, links ...string) {
	t.Helper()
	for _, link := range append(links, "all") {
		h.Run(func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/"+link+"/rp_filter", []byte("1"), 0o644) })
	}
	for _, hook := range hooks {
		if out, err := h.Command("nft", "add table inet strict; add chain inet strict "+hook+" { type filter hook "+hook+" priority -500; policy drop; }"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
}

// Nodes hear each other on a link without any address, a VLAN's or a bridge's, whatever their
// firewalls and their reverse path filters are. A VLAN's messages are not heard outside of it.
func TestFirewalls(t *testing.T) {
	for _, kind := range []string{"ethernet", "bridge", "vlan", "bond"} {
		t.Run(kind, func(t *testing.T) {
			_, a, b := pair(t)
			link, hooks := "pool0", []string{"prerouting", "input", "forward", "output", "postrouting"}
			for _, h := range []*netnstest.Host{a, b} {
				switch kind {
				case "ethernet":
					link = "eth0"
				case "bridge":
					// bridge-nf-call-iptables may be 1.
					hooks = []string{"input", "forward", "output"}
					h.IP("link", "add", link, "type", "bridge")
					h.IP("link", "set", "eth0", "master", link)
				case "vlan":
					netnstest.NeedLinks(t, "vlan")
					h.IP("link", "add", "link", "eth0", "name", link, "type", "vlan", "id", "7")
				case "bond":
					netnstest.NeedLinks(t, "bond")
					h.IP("link", "add", link, "type", "bond", "mode", "active-backup")
					h.IP("link", "set", "eth0", "down")
					h.IP("link", "set", "eth0", "master", link)
				}
				h.IP("link", "set", link, "up")
				strict(t, h, hooks, "eth0", link)
			}
			s1, s2 := join(t, a, link, node1), join(t, b, link, node2)
			meet(t, s1, s2)
			s1.say(asserts(node1, 1))
			s2.hears(asserts(node1, 1))
			s2.say(asserts(node2, 2))
			s1.hears(asserts(node2, 2))
		})
	}
}

// Where a node has no link for a VLAN, the VLAN's messages are not the link's below.
func TestOtherVLAN(t *testing.T) {
	_, a, b := pair(t)
	s1, s2 := join(t, a, "eth0", node1), join(t, b, "eth0", node2)
	meet(t, s1, s2)
	payload, err := s1.codec.Load().Encode(netip.Addr{}, []answering.Message{asserts(node1, 1)})
	if err != nil {
		t.Fatal(err)
	}
	f := frame.Datagram{SourceMAC: a.MAC("eth0"), Source: netip.IPv4Unspecified(), Port: datagram.Port, Payload: payload[0]}.ToAll()
	a.SendFrame("eth0", append(append(bytes.Clone(f[:12]), 0x81, 0, 0, 7), f[12:]...))
	s1.say(asserts(node1, 2))
	s2.hears(asserts(node1, 2))
}

// answersFor makes a node answer for the addresses of a pod by proxy.
func answersFor(t *testing.T, node *netnstest.Host, link string) {
	t.Helper()
	pod := netnstest.New(t)
	node.Run(func() error {
		_, err := wire.New("").Setup(wire.Spec{ContainerID: "c", IfName: "eth0", NetNS: pod.Path(), Uplink: link, MAC: v1alpha1.MACOf(addr4), Addresses: []api.Address{
			{Address: addr4, Subnet: netip.MustParsePrefix("10.0.70.0/24"), Gateway: netip.MustParseAddr("10.0.70.1")},
			{Address: addr6, Subnet: netip.MustParsePrefix("2001:db8:70::/64"), Gateway: netip.MustParseAddr("2001:db8:70::1")},
		}})
		return err
	})
}

// A question is answered by a node that answers by proxy, and by a host, with their MACs; the node
// does not hear itself.
func TestQuestion(t *testing.T) {
	netnstest.Need(t)
	w, a, b := netnstest.NewWire(t), netnstest.New(t), netnstest.New(t)
	for i, h := range []*netnstest.Host{a, b} {
		w.Plug(h, "eth0", netip.MustParsePrefix(fmt.Sprintf("10.0.60.1%d/24", i+1)), netip.MustParsePrefix(fmt.Sprintf("2001:db8:60::1%d/64", i+1)))
	}
	answersFor(t, b, "eth0")
	host := netnstest.New(t)
	host4, host6 := netip.MustParseAddr("10.0.60.99"), netip.MustParseAddr("2001:db8:60::99")
	w.Plug(host, "eth0", netip.PrefixFrom(host4, 24), netip.PrefixFrom(host6, 64))
	s1, s2 := join(t, a, "eth0", node1), join(t, b, "eth0", node2)
	meet(t, s1, s2)
	a.Run(func() error {
		return s1.Question([]netip.Addr{addr4, addr6, netip.MustParseAddr("10.0.70.11"), netip.MustParseAddr("2001:db8:70::11"), host4, host6})
	})
	want := map[string]bool{}
	for addr, h := range map[netip.Addr]*netnstest.Host{addr4: b, addr6: b, host4: host, host6: host} {
		want[fmt.Sprintf("%s %s", addr, h.MAC("eth0"))] = true
	}
	for len(want) > 0 {
		got := wait(t, s1.answered)
		if !want[got] {
			t.Errorf("answered: %s", got)
		}
		delete(want, got)
	}
	// An advertisement goes to all.
	for len(s2.answered) > 0 {
		if got := <-s2.answered; strings.HasSuffix(got, b.MAC("eth0").String()) {
			t.Errorf("the node heard itself: %s", got)
		}
	}
}

// Also where the pool's link has no address, so that the sender is another link's, and the reverse
// path filter is strict.
func TestQuestionWithoutAddress(t *testing.T) {
	netnstest.Need(t)
	between, pools, a, b := netnstest.NewWire(t), netnstest.NewWire(t), netnstest.New(t), netnstest.New(t)
	for i, h := range []*netnstest.Host{a, b} {
		between.Plug(h, "eth0", netip.MustParsePrefix(fmt.Sprintf("10.0.60.1%d/24", i+1)))
		pools.Plug(h, "pool0")
		strict(t, h, nil, "eth0", "pool0")
	}
	answersFor(t, b, "pool0")
	s := join(t, a, "pool0", node1)
	want := map[string]bool{addr4.String() + " " + b.MAC("pool0").String(): true, addr6.String() + " " + b.MAC("pool0").String(): true}
	// A link that has just come up answers for no IPv6 address before it has its own.
	netnstest.Eventually(t, func() error {
		a.Run(func() error { return s.Question([]netip.Addr{addr4, addr6}) })
		select {
		case got := <-s.answered:
			delete(want, got)
		case <-time.After(100 * time.Millisecond):
		}
		if len(want) > 0 {
			return fmt.Errorf("no answer is one of %v", want)
		}
		return nil
	})
}

// A link that goes down and comes up again is heard; what cannot be asked is an error, and keeps
// nothing else from it.
func TestLinks(t *testing.T) {
	w, a, b := pair(t)
	s1, s2 := join(t, a, "eth0", node1), join(t, b, "eth0", node2)
	meet(t, s1, s2)
	host := netnstest.New(t)
	host6 := netip.MustParseAddr("2001:db8:60::99")
	w.Plug(host, "eth0", netip.PrefixFrom(host6, 64))
	err := a.Try(func() error { return s1.Question([]netip.Addr{addr4, host6}) })
	if err == nil || !strings.Contains(err.Error(), "no IPv4 address") {
		t.Errorf("Question() of a node without IPv4 = %v", err)
	}
	if got := wait(t, s1.answered); got != host6.String()+" "+host.MAC("eth0").String() {
		t.Errorf("answered: %s", got)
	}
	b.IP("link", "set", "eth0", "down")
	if err := b.Try(func() error { return s2.Send([]answering.Message{asserts(node2, 1)}) }); err == nil || !strings.Contains(err.Error(), "eth0") {
		t.Errorf("Send() on a link that is down = %v", err)
	}
	b.IP("link", "set", "eth0", "up")
	netnstest.Eventually(t, func() error {
		s1.say(asserts(node1, 2))
		select {
		case <-s2.heard:
			return nil
		default:
			return errors.New("nothing is heard")
		}
	})
	a.Run(func() error {
		for _, link := range []int{1, 1000} {
			if _, err := Open(link, Options{}); err == nil || !strings.Contains(err.Error(), map[int]string{1: "no Ethernet", 1000: "find link"}[link]) {
				t.Errorf("Open(%d) = %v", link, err)
			}
		}
		return nil
	})
}

// One host is asked alone, by the MAC that it had, and answers; another one gets no frame.
func TestAskHost(t *testing.T) {
	netnstest.Need(t)
	w, a, b, third := netnstest.NewWire(t), netnstest.New(t), netnstest.New(t), netnstest.New(t)
	for i, h := range []*netnstest.Host{a, b, third} {
		w.Plug(h, "eth0", netip.MustParsePrefix(fmt.Sprintf("10.0.60.1%d/24", i+1)), netip.MustParsePrefix(fmt.Sprintf("2001:db8:60::1%d/64", i+1)))
	}
	a.Ping("2001:db8:60::12")
	s := join(t, a, "eth0", node1)
	var questions *packet.Conn
	third.Run(func() error {
		link, err := net.InterfaceByName("eth0")
		if err == nil {
			questions, err = packet.Listen(link, packet.Raw, unix.ETH_P_ARP, nil)
		}
		return err
	})
	defer questions.Close()
	for addr, want := range map[string]string{"10.0.60.12": "10.0.60.12 " + b.MAC("eth0").String(), "2001:db8:60::12": "2001:db8:60::12 " + b.MAC("eth0").String()} {
		a.Run(func() error { return s.AskHost(netip.MustParseAddr(addr), b.MAC("eth0")) })
		if got := wait(t, s.answered); got != want {
			t.Errorf("answered: %s, want %s", got, want)
		}
	}
	// The next question is for all, and the first one that the third host gets.
	a.Run(func() error { return s.Question([]netip.Addr{netip.MustParseAddr("10.0.60.99")}) })
	buffer := make([]byte, 2000)
	if err := questions.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	n, _, err := questions.ReadFrom(buffer)
	if err != nil {
		t.Fatal(err)
	}
	if got, _, ok := frame.ParseARP(buffer[:n]); !ok || got.Target != netip.MustParseAddr("10.0.60.99") {
		t.Errorf("the third host got a question for %s", got.Target)
	}
}
