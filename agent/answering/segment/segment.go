// SPDX-License-Identifier: Apache-2.0

// Package segment has the sockets by which a node takes part in package answering on a layer 2
// segment: it sends messages to all nodes, asks all hosts who answers for an address, and hears
// messages and answers. It decides nothing.
//
// # The way of the frames
//
// Messages are UDP datagrams in IP broadcast frames, which packet sockets send and hear on the
// pool's own link. So they go the way of clients' ARP questions: the link needs no address, and
// neither routes nor reverse path filters nor rules of iptables and nftables for IP packets see
// them. Only filters before packet sockets see them: XDP, tc, nftables chains of netdev and bridge
// and, for a bridge with net.bridge.bridge-nf-call-iptables=1, the prerouting and postrouting
// chains.
//
// The kernel drops all other frames, so that a busy segment costs nothing.
//
// A node that is cut off from the segment may have another network: messages to one node go to its
// InternalIP, too, as UDP datagrams to a socket of the node there.
package segment

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/answering/datagram"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/cni/frame"
)

// Options are the options of a Segment.
type Options struct {
	// Codec returns the present codec, nil while the node hears nobody, and an error while it cannot
	// send.
	Codec func() (*datagram.Codec, error)
	// Refused, if given, gets the error of each refused datagram, which wraps a reason of package
	// datagram. Anybody on the segment can cause calls at any rate.
	Refused func(err error)
	// Answers reports whether the node answers for an address on a link by proxy; see package
	// conflict.
	Answers func(link int, addr netip.Addr) (bool, error)
	// Unicast, if given, sends messages to one node to its InternalIP, too.
	Unicast *Unicast
}

// These limit how many unknown senders are checked in a second, and at once. On a segment all nodes
// speak when a switch is back, also to an agent that has just started. The socket for unicasts is
// open to strangers from anywhere.
const (
	segmentUnknown, segmentUnknownAtOnce = 2000, 10_000
	unicastUnknown, unicastUnknownAtOnce = 100, 1000
)

// read passes on the messages of a datagram if any of them is wanted, and learns the sender's
// address.
func (o *Options) read(payload []byte, unknown *rate.Limiter, wants func(answering.Message) bool, heard func(answering.Message)) {
	codec, _ := o.Codec() // A node that can say nothing hears.
	if codec == nil {
		return
	}
	internalIP, messages, err := codec.Decode(payload, unknown, wants)
	switch {
	case err != nil && o.Refused != nil:
		o.Refused(err)
	case len(messages) > 0 && o.Unicast != nil:
		o.Unicast.learn(messages[0].From, internalIP)
	}
	for _, m := range messages {
		heard(m)
	}
}

// Segment is a node's link to a segment. If the link is replaced or gets another MAC, the caller
// opens a new Segment. The methods may run in parallel.
type Segment struct {
	// Asker asks all hosts, and hears their answers and ARP claims.
	*conflict.Asker

	options Options
	conn    *packet.Conn
	unknown *rate.Limiter
}

// received is the size of the socket's buffer. When a switch is back, thousands of nodes send three
// datagrams each at once, and the check of each signature takes 50 µs. The kernel takes memory only
// for datagrams that wait.
const received = 16 << 20

// Open returns the Segment of a link, in the network namespace of this goroutine's thread. Frames
// wait for Run from now on. A link that is no Ethernet is an error.
func Open(link int, options Options) (*Segment, error) {
	s, err := open(link, options)
	if err != nil {
		return nil, fmt.Errorf("open the segment of link %d: %w", link, err)
	}
	return s, nil
}

func open(link int, options Options) (*Segment, error) {
	asker, err := conflict.OpenAsker(link, options.Answers)
	if err != nil {
		return nil, err
	}
	s := &Segment{options: options, Asker: asker, unknown: rate.NewLimiter(segmentUnknown, segmentUnknownAtOnce)}
	if s.conn, err = listen(asker.Link()); err != nil {
		return nil, errors.Join(fmt.Errorf("open a packet socket on link %s: %w", asker.Link().Name, err), asker.Close())
	}
	return s, nil
}

func listen(link *net.Interface) (*packet.Conn, error) {
	filter, err := bpf.Assemble(datagramsOfOthers(link.HardwareAddr))
	if err != nil {
		return nil, err
	}
	conn, err := packet.Listen(link, packet.Raw, unix.ETH_P_IP, &packet.Config{Filter: filter})
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		var set error
		err = raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, received) })
		err = errors.Join(err, set)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("set the size of its buffer: %w", err), conn.Close())
	}
	return conn, nil
}

// datagramsOfOthers passes IP broadcasts to the port that have another MAC as their source.
func datagramsOfOthers(mac net.HardwareAddr) []bpf.Instruction {
	const (
		source      = 6
		ip          = 14
		fragment    = ip + 6
		protocol    = ip + 9
		destination = ip + 16
		port        = ip + 20 + 2
	)
	drop := bpf.RetConstant{Val: 0}
	// must drops frames with another value.
	must := func(offset uint32, size int, value uint32) []bpf.Instruction {
		return []bpf.Instruction{bpf.LoadAbsolute{Off: offset, Size: size}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: value, SkipTrue: 1}, drop}
	}
	program := frame.ToThisHost()
	program = append(program, must(ip, 1, 0x45)...)
	program = append(program, must(protocol, 1, unix.IPPROTO_UDP)...)
	program = append(program, must(port, 2, datagram.Port)...)
	program = append(program, must(destination, 4, 0xffffffff)...)
	return append(program,
		bpf.LoadAbsolute{Off: fragment, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: 0x3fff, SkipTrue: 1},
		drop,
		bpf.LoadAbsolute{Off: source, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(mac), SkipTrue: 3},
		bpf.LoadAbsolute{Off: source + 4, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(binary.BigEndian.Uint16(mac[4:])), SkipTrue: 1},
		drop,
		bpf.RetConstant{Val: 1 << 16},
	)
}

// Close ends the sockets, and Run.
func (s *Segment) Close() error { return errors.Join(s.conn.Close(), s.Asker.Close()) }

// Send sends messages of this node to all nodes of the segment. A message with a receiver also goes
// to the receiver's InternalIP. It runs in the network namespace of the link.
func (s *Segment) Send(messages []answering.Message) error {
	codec, err := s.options.Codec()
	if err != nil {
		return err
	}
	if s.options.Unicast == nil {
		return s.broadcast(codec, netip.Addr{}, messages)
	}
	return errors.Join(s.options.Unicast.send(codec, messages), s.broadcast(codec, s.options.Unicast.own, messages))
}

func (s *Segment) broadcast(codec *datagram.Codec, internalIP netip.Addr, messages []answering.Message) error {
	datagrams, err := codec.Encode(internalIP, messages)
	if err != nil {
		return err
	}
	senders, err := s.Senders()
	if err != nil {
		return err
	}
	// Some hypervisors drop packets from no address.
	source := netip.IPv4Unspecified()
	if len(senders) > 0 {
		source = senders[0].Addr()
	}
	link := s.Link()
	for _, d := range datagrams {
		f := frame.Datagram{SourceMAC: link.HardwareAddr, Source: source, Port: datagram.Port, Payload: d}.ToAll()
		if _, err := s.conn.WriteTo(f, &packet.Addr{HardwareAddr: f[:6]}); err != nil {
			return fmt.Errorf("send on link %s: %w", link.Name, err)
		}
	}
	return nil
}

// Run calls heard with each message of other nodes, but skips datagrams without a message that
// wants accepts. It calls answered with each host's answer for an address, also to other hosts'
// IPv6 questions, and claimed with each ARP claim of another host to a defended address. It runs
// until ctx ends, and then returns nil. It is called once. Calls may be in parallel; calls of heard
// are in the order of the frames. Run continues after the link was down; after the link is removed
// it hears nothing.
func (s *Segment) Run(ctx context.Context, wants func(answering.Message) bool, heard func(answering.Message), answered func(conflict.Answer), claimed func(conflict.Conflict)) error {
	return s.Hear(ctx, answered, claimed, conflict.Socket{Conn: s.conn, Each: func(f []byte) {
		d, _ := frame.ParseDatagram(f) // Without a payload a frame is malformed.
		s.options.read(d.Payload, s.unknown, wants, heard)
	}})
}

// Own returns the MAC of the link and an IPv4 address of the link, or the zero Addr.
func (s *Segment) Own() (net.HardwareAddr, netip.Addr) {
	return s.Link().HardwareAddr, s.Asker.Own(func(addr netip.Addr) bool { return addr.Is4() && addr.IsGlobalUnicast() })
}
