// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/frame"
	"github.com/berth-dev/berth/test/lab"
)

// askEvery is the time between two questions for an address.
const askEvery = 100 * time.Millisecond

// listening is how long the kernel waits for a frame before its reader looks whether it is to end.
const listening = 100 * time.Millisecond

// Answers are the answers that nodes give the client host, which asks ten times a second by ARP or
// neighbour solicitation who has each of some addresses, as if it had never heard of them. They are
// told apart by the ports of the switch that they come in by, so that also nodes whose pods have
// the same MAC address are. Safe for concurrent use.
type Answers struct {
	cancel context.CancelFunc
	group  sync.WaitGroup

	mu    sync.Mutex
	asked map[netip.Addr]int
	turns map[netip.Addr][]Turn
	err   error
}

// Turn is a number of answers, one after another, for an address by the same node.
type Turn struct {
	Node        string
	Count       int
	First, Last time.Time
}

// Answers begins to ask for addresses of the client host's subnets. The caller must call Stop.
func (w *Witness) Answers(ctx context.Context, addresses ...string) (*Answers, error) {
	ctx, cancel := context.WithCancel(ctx)
	a := &Answers{cancel: cancel, asked: map[netip.Addr]int{}, turns: map[netip.Addr][]Turn{}}
	for _, text := range addresses {
		address, err := netip.ParseAddr(text)
		if err != nil {
			cancel()
			return nil, err
		}
		a.asked[address] = 0
	}
	client, err := openAsker(w.Cluster.Client())
	if err != nil {
		cancel()
		return nil, err
	}
	ports, err := w.Cluster.Host("switch")
	if err != nil {
		cancel()
		return nil, errors.Join(err, client.close())
	}
	ready := make(chan struct{})
	a.group.Go(func() {
		a.fail(ports.Do(func() error { return a.listen(ctx, client.mac, ready) }))
		cancel()
	})
	a.group.Go(func() {
		select {
		case <-ready:
			a.fail(a.ask(ctx, client))
		case <-ctx.Done():
		}
		a.fail(client.close())
		cancel()
	})
	return a, nil
}

func (a *Answers) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = errors.Join(a.err, err)
}

// Stop ends the questions. It returns why they ended before.
func (a *Answers) Stop() error {
	a.cancel()
	a.group.Wait()
	return a.err
}

// Turns returns which nodes have answered for an address, in the order of their answers. A node
// that answers beside another one has several.
func (a *Answers) Turns(address string) []Turn {
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.turns[addr])
}

// Nodes returns the nodes of the turns of an address, in their order.
func (a *Answers) Nodes(address string) (nodes []string) {
	for _, turn := range a.Turns(address) {
		nodes = append(nodes, turn.Node)
	}
	return nodes
}

// String returns, for each address, how often who answered.
func (a *Answers) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var lines []string
	for address, asked := range a.asked {
		var turns []string
		for _, t := range a.turns[address] {
			turns = append(turns, fmt.Sprintf("%s %d times in %.1f s", t.Node, t.Count, t.Last.Sub(t.First).Seconds()))
		}
		lines = append(lines, fmt.Sprintf("%s, asked %d times: %s", address, asked, strings.Join(turns, ", ")))
	}
	slices.Sort(lines)
	return strings.Join(lines, "; ")
}

// note notes an answer that came in by a node's port.
func (a *Answers) note(address netip.Addr, node string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ours := a.asked[address]; !ours {
		return
	}
	turns := a.turns[address]
	if n := len(turns); n > 0 && turns[n-1].Node == node {
		turns[n-1].Count, turns[n-1].Last = turns[n-1].Count+1, now
		return
	}
	a.turns[address] = append(turns, Turn{Node: node, Count: 1, First: now, Last: now})
}

// ask asks for all addresses until ctx ends.
func (a *Answers) ask(ctx context.Context, client *asker) error {
	questions := map[netip.Addr][]byte{}
	for address := range a.asked { // its keys do not change
		question, err := client.question(address)
		if err != nil {
			return err
		}
		questions[address] = question
	}
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		for address, question := range questions {
			if err := client.send(question); err != nil {
				return fmt.Errorf("ask for %s: %w", address, err)
			}
			a.mu.Lock()
			a.asked[address]++
			a.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// listen notes, in the switch's namespace, the answers to mac until ctx ends. It closes ready when
// it hears.
func (a *Answers) listen(ctx context.Context, mac net.HardwareAddr, ready chan<- struct{}) error {
	// Only a socket for all protocols gets what a bridge takes from its ports.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(bits.ReverseBytes16(unix.ETH_P_ALL)))
	if err != nil {
		return fmt.Errorf("open packet socket: %w", err)
	}
	defer unix.Close(fd)
	if err := filterAnswers(fd); err != nil {
		return err
	}
	wait := unix.NsecToTimeval(listening.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return fmt.Errorf("limit the wait for answers: %w", err)
	}
	close(ready)
	buffer := make([]byte, 256)
	for ctx.Err() == nil {
		n, from, err := unix.Recvfrom(fd, buffer, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENETDOWN) {
			continue
		}
		if err != nil {
			return fmt.Errorf("receive answers: %w", err)
		}
		address, to, ok := answerIn(buffer[:n])
		if !ok || !bytes.Equal(to, mac) {
			continue
		}
		// A port may be new: a node's goes and comes with its power.
		port, err := net.InterfaceByIndex(from.(*unix.SockaddrLinklayer).Ifindex)
		if err != nil {
			continue // it went since
		}
		a.note(address, port.Name, time.Now())
	}
	return nil
}

// answerIn returns the address that a frame is an answer for, and the host to which it goes.
func answerIn(f []byte) (address netip.Addr, to net.HardwareAddr, ok bool) {
	if reply, to, ok := frame.ParseARP(f); ok {
		return reply.Sender, to, reply.Operation == frame.ARPReply
	}
	advertisement, ok := frame.ParseAdvertisement(f)
	if !ok {
		return netip.Addr{}, nil, false
	}
	return advertisement.Target, f[:6], true
}

// filterAnswers has a packet socket get ARP and ICMPv6 alone, and nothing that leaves by a port: a
// frame comes in once, and may leave by several ports.
func filterAnswers(fd int) error {
	const (
		etherType  = 12
		nextHeader = 14 + 6
		all        = 1 << 16
	)
	program, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PACKET_OUTGOING, SkipTrue: 6},
		bpf.LoadAbsolute{Off: etherType, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_ARP, SkipTrue: 3},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.ETH_P_IPV6, SkipTrue: 3},
		bpf.LoadAbsolute{Off: nextHeader, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_ICMPV6, SkipTrue: 1},
		bpf.RetConstant{Val: all},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return fmt.Errorf("filter answers: %w", err)
	}
	filter := make([]unix.SockFilter, len(program))
	for i, instruction := range program {
		filter[i] = unix.SockFilter{Code: instruction.Op, Jt: instruction.Jt, Jf: instruction.Jf, K: instruction.K}
	}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}); err != nil {
		return fmt.Errorf("filter answers: %w", err)
	}
	return nil
}

// asker is the client host's link, by which it asks.
type asker struct {
	fd    int
	index int
	mac   net.HardwareAddr
	own   []netip.Prefix
}

// openAsker opens a socket on the client host that gets ARP.
func openAsker(host *lab.Host) (*asker, error) {
	c := &asker{fd: -1}
	err := host.Do(func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		c.index, c.mac = link.Index, link.HardwareAddr
		addrs, err := link.Addrs()
		if err != nil {
			return err
		}
		for _, addr := range addrs {
			if prefix, err := netip.ParsePrefix(addr.String()); err == nil {
				c.own = append(c.own, prefix)
			}
		}
		c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(bits.ReverseBytes16(unix.ETH_P_ARP)))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open packet socket on the client host: %w", err)
	}
	return c, nil
}

func (c *asker) close() error { return unix.Close(c.fd) }

// question returns the frame by which a host asks all others who has an address of one of its
// subnets.
func (c *asker) question(target netip.Addr) ([]byte, error) {
	for _, own := range c.own {
		switch {
		case !own.Contains(target):
		case target.Is4():
			return frame.ARP{Operation: frame.ARPRequest, SenderMAC: c.mac, Sender: own.Addr(), Target: target}.To(frame.Broadcast()), nil
		default:
			return solicitation(c.mac, own.Addr(), target), nil
		}
	}
	return nil, fmt.Errorf("%s is in no subnet of the client host", target)
}

// solicitation returns the neighbour solicitation to all that may have an address (RFC 4861,
// section 7.2.2).
func solicitation(mac net.HardwareAddr, source, target netip.Addr) []byte {
	tgt := target.As16()
	group := [16]byte{0xff, 0x02, 11: 0x01, 12: 0xff, 13: tgt[13], 14: tgt[14], 15: tgt[15]}
	message := append([]byte{frame.NeighborSolicitation, 0, 0, 0, 0, 0, 0, 0}, tgt[:]...)
	return frame.ICMPv6(mac, net.HardwareAddr{0x33, 0x33, 0xff, tgt[13], tgt[14], tgt[15]}, source, netip.AddrFrom16(group), append(append(message, 1, 1), mac...))
}

func (c *asker) send(f []byte) error {
	to := &unix.SockaddrLinklayer{Ifindex: c.index, Protocol: bits.ReverseBytes16(unix.ETH_P_ALL), Halen: 6}
	copy(to.Addr[:], f[:6])
	return unix.Sendto(c.fd, f, 0, to)
}
