// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/frame"
)

// Asker asks a network which hosts have addresses, as any of its hosts would: proxies answer, too,
// which a probe does not find. An IPv4 question needs an address of this node as its sender; it
// does not make neighbour tables of hosts wrong. The node itself does not hear its own answers.
// Question, Probe and Hear may run in parallel.
type Asker struct {
	link     *net.Interface
	families []*segment
	// answers reports whether the node now answers for an IPv4 address on a link by proxy; an error
	// means no.
	answers  func(link int, addr netip.Addr) (bool, error)
	defended atomic.Pointer[[]Target]
}

// ErrNoEthernet is returned for a link without Ethernet, whose hosts cannot be asked for addresses.
var ErrNoEthernet = errors.New("it is no Ethernet")

// OpenAsker returns an Asker on a link with its present MAC. Answers wait for Hear from now on.
// answers may be nil if the Asker defends nothing.
func OpenAsker(link int, answers func(link int, addr netip.Addr) (bool, error)) (*Asker, error) {
	ether, err := ethernet(link)
	if err != nil {
		return nil, err
	}
	if ether == nil {
		return nil, ErrNoEthernet
	}
	a := &Asker{link: ether, answers: answers}
	a.defended.Store(&[]Target{})
	for _, is4 := range []bool{true, false} {
		s := &segment{link: ether, is4: is4}
		if s.conn, err = s.listen(); err != nil {
			return nil, errors.Join(fmt.Errorf("open a packet socket on link %s: %w", ether.Name, err), a.Close())
		}
		a.families = append(a.families, s)
	}
	return a, nil
}

func (a *Asker) Link() *net.Interface { return a.link }

// Check returns an error if the link is gone, or its MAC has changed since the Asker was opened:
// then the Asker hears no answers. It runs in the network namespace of the link.
func (a *Asker) Check() error {
	now, err := ethernet(a.link.Index)
	switch {
	case err != nil:
		return err
	case now == nil:
		return ErrNoEthernet
	case !bytes.Equal(now.HardwareAddr, a.link.HardwareAddr):
		return fmt.Errorf("link %s has the MAC %s, and had %s", now.Name, now.HardwareAddr, a.link.HardwareAddr)
	}
	return nil
}

// Close ends the Asker's sockets, and Hear.
func (a *Asker) Close() error {
	var errs []error
	for _, s := range a.families {
		errs = append(errs, s.conn.Close())
	}
	return errors.Join(errs...)
}

// Question asks once for each address. After an error it continues with the other addresses. It
// runs in the network namespace of the link.
func (a *Asker) Question(addrs []netip.Addr) error {
	var errs []error
	var senders []netip.Prefix
	if slices.ContainsFunc(addrs, netip.Addr.Is4) {
		var err error
		if senders, err = a.Senders(); err != nil {
			errs = append(errs, err)
		} else if len(senders) == 0 {
			errs = append(errs, errors.New("the node has no IPv4 address to ask with"))
		}
	}
	for _, s := range a.families {
		for _, addr := range addrs {
			if addr.Is4() != s.is4 || s.is4 && len(senders) == 0 {
				continue
			}
			if err := s.send(question(a.link.HardwareAddr, frame.Broadcast(), senders, addr)); err != nil {
				errs = append(errs, err)
				break
			}
		}
	}
	return errors.Join(errs...)
}

// Probe asks once for each IPv4 address whether a host has it itself. For IPv6 a Question does
// this, too. Agents of other nodes do not answer a Probe for their pods: an address that moves here
// is no conflict.
func (a *Asker) Probe(addrs []netip.Addr) error {
	for _, addr := range addrs {
		probe := frame.ARP{Operation: frame.ARPRequest, SenderMAC: a.link.HardwareAddr, TargetMAC: agentMark(), Sender: netip.IPv4Unspecified(), Target: addr}
		if err := a.families[0].send(probe.To(frame.Broadcast())); err != nil {
			return err
		}
	}
	return nil
}

// question returns the frame that asks for an address; an IPv4 question goes to the host to. The
// sender is the sender in the network of the address, or the first.
func question(mac, to net.HardwareAddr, senders []netip.Prefix, addr netip.Addr) []byte {
	if addr.Is6() {
		return frame.DuplicateProbe(mac, addr)
	}
	i := max(0, slices.IndexFunc(senders, func(p netip.Prefix) bool { return p.Contains(addr) }))
	return frame.ARP{Operation: frame.ARPRequest, SenderMAC: mac, Sender: senders[i].Addr(), Target: addr}.To(to)
}

// AskHost asks only the host with a MAC once whether it has an address. If the node has no address
// of the family as sender, it asks all hosts, like Question. It runs in the network namespace of
// the link.
func (a *Asker) AskHost(addr netip.Addr, mac net.HardwareAddr) error {
	if addr.Is4() {
		senders, err := a.Senders()
		if err != nil {
			return err
		}
		if len(senders) > 0 {
			return a.families[0].send(question(a.link.HardwareAddr, mac, senders, addr))
		}
	} else if own := a.Own(func(addr netip.Addr) bool { return addr.Is6() && addr.IsLinkLocalUnicast() }); own.IsValid() {
		return a.families[1].send(frame.Solicitation(a.link.HardwareAddr, mac, own, addr))
	}
	return a.Question([]netip.Addr{addr})
}

// Own returns an address of the link that matches, or the zero Addr. It runs in the network
// namespace of the link.
func (a *Asker) Own(matches func(netip.Addr) bool) netip.Addr {
	all, _ := a.link.Addrs() // There may be no link any more.
	for _, one := range all {
		if prefix, err := netip.ParsePrefix(one.String()); err == nil && matches(prefix.Addr()) {
			return prefix.Addr()
		}
	}
	return netip.Addr{}
}

// Socket is a further socket that Hear reads, by the function each.
type Socket struct {
	Conn *packet.Conn
	Each func(f []byte)
}

// Hear calls answered with each answer, also to other hosts' IPv6 questions, claimed with each ARP
// claim of another host to a defended address, and the functions of further sockets with their
// frames. It runs until ctx ends, and then returns nil. It is called once. Calls may be in
// parallel, except for the same socket. Hear continues after the link was down.
func (a *Asker) Hear(ctx context.Context, answered func(Answer), claimed func(Conflict), further ...Socket) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	sockets := further
	for _, s := range a.families {
		sockets = append(sockets, Socket{s.conn, func(f []byte) {
			if answer, ok := s.answer(f); ok {
				answered(answer)
			}
			if claim, ok := a.claim(s, f); ok {
				claimed(claim)
			}
			a.respond(s, f)
		}})
	}
	var group sync.WaitGroup
	errs := make([]error, len(sockets))
	for i, s := range sockets {
		group.Go(func() {
			defer stop()
			if err := read(ctx, s); err != nil {
				errs[i] = fmt.Errorf("receive on link %s: %w", a.link.Name, err)
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// read reads a socket until ctx ends, and then returns nil. A frame is valid until Each returns.
// read continues after the link was down.
func read(ctx context.Context, s Socket) error {
	defer context.AfterFunc(ctx, func() { _ = s.Conn.SetReadDeadline(time.Unix(1, 0)) })()
	buffer := make([]byte, 2048)
	for {
		n, _, err := s.Conn.ReadFrom(buffer)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			s.Each(buffer[:n])
		case !errors.Is(err, unix.ENETDOWN):
			return err
		}
	}
}

// Senders returns the IPv4 addresses of the link, then of the node's other links. It runs in the
// network namespace of the link. It asks the kernel for IPv4 addresses only, because a node has
// few, while a list of all addresses includes addresses of each pod's link.
func (a *Asker) Senders() ([]netip.Prefix, error) {
	all, err := netlinksafe.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list the IPv4 addresses of the node: %w", err)
	}
	var own, others []netip.Prefix
	for _, one := range all {
		addr, ok := netip.AddrFromSlice(one.IP)
		if !ok || !addr.Unmap().IsGlobalUnicast() {
			continue
		}
		length, _ := one.Mask.Size()
		prefix := netip.PrefixFrom(addr.Unmap(), length)
		if one.LinkIndex == a.link.Index {
			own = append(own, prefix)
		} else {
			others = append(others, prefix)
		}
	}
	return append(own, others...), nil
}
