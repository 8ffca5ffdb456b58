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
	"time"

	"github.com/mdlayher/packet"

	"github.com/berth-dev/berth/cni/frame"
)

// Answers are the hosts that answered for an address.
type Answers struct {
	Address netip.Addr
	// MACs are distinct, in the order of their first answers.
	MACs []net.HardwareAddr
}

// Questions and the time that answers are waited for after each.
const (
	questions    = 3
	questionWait = 300 * time.Millisecond
)

// Ask asks a network which hosts have addresses, as any of its hosts would: proxies answer, too,
// which a [Prober] does not find. An IPv4 question needs an address of this node as its sender; it
// leaves the neighbour tables of hosts as they are, or correct. The node itself does not hear its
// own answers. It returns an entry for each address, in their order. It takes a second.
func Ask(ctx context.Context, link int, addrs []netip.Addr) ([]Answers, error) {
	answers := make([]Answers, len(addrs))
	var targets []Target
	for i, addr := range addrs {
		answers[i].Address = addr
		targets = append(targets, Target{Address: addr, Link: link})
	}
	var errs []error
	for k, group := range group(targets) {
		ether, err := ethernet(link)
		if err == nil && ether == nil {
			err = errors.New("it is no Ethernet")
		}
		if err == nil {
			err = askOn(ctx, &segment{link: ether, is4: k.is4, targets: group}, answers)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("ask the network of link %d: %w", link, err))
		}
	}
	return answers, errors.Join(errs...)
}

func askOn(ctx context.Context, s *segment, answers []Answers) error {
	senders, err := sendersOn(s.link)
	if err != nil {
		return err
	}
	if s.conn, err = s.listen(); err != nil {
		return fmt.Errorf("open a packet socket: %w", err)
	}
	defer s.conn.Close()
	defer context.AfterFunc(ctx, func() { _ = s.conn.SetDeadline(time.Unix(1, 0)) })()
	for range questions {
		for _, t := range s.targets {
			f := frame.DuplicateProbe(s.link.HardwareAddr, t.Address)
			if s.is4 {
				sender, ok := senderFor(senders, t.Address)
				if !ok {
					return errors.New("the node has no IPv4 address to ask with")
				}
				f = frame.ARP{Operation: frame.ARPRequest, SenderMAC: s.link.HardwareAddr, Sender: sender, Target: t.Address}.To(frame.Broadcast())
			}
			if _, err := s.conn.WriteTo(f, &packet.Addr{HardwareAddr: f[:6]}); err != nil {
				return s.failed(ctx, "send on", err)
			}
		}
		if err := s.hear(ctx, time.Now().Add(questionWait), answers); err != nil {
			return err
		}
	}
	return nil
}

// hear notes answers until the time.
func (s *segment) hear(ctx context.Context, until time.Time, answers []Answers) error {
	return s.receive(ctx, until, func(f []byte) {
		addr, mac, ok := s.anyAnswer(f)
		if !ok {
			return
		}
		i := slices.IndexFunc(answers, func(a Answers) bool { return a.Address == addr })
		if i >= 0 && !slices.ContainsFunc(answers[i].MACs, func(known net.HardwareAddr) bool { return bytes.Equal(known, mac) }) {
			answers[i].MACs = append(answers[i].MACs, mac)
		}
	})
}

// anyAnswer is answer for which a proxy's counts, too.
func (s *segment) anyAnswer(f []byte) (addr netip.Addr, mac net.HardwareAddr, ok bool) {
	if s.is4 {
		return s.answer(f)
	}
	a, ok := frame.ParseAdvertisement(f)
	return a.Target, a.MAC, ok && !bytes.Equal(a.MAC, s.link.HardwareAddr)
}

// sendersOn returns the IPv4 addresses of a link, then of the node's other links.
func sendersOn(link *net.Interface) ([]netip.Prefix, error) {
	var senders []netip.Prefix
	own, err := link.Addrs()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of link %s: %w", link.Name, err)
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of the node: %w", err)
	}
	for _, address := range append(own, all...) {
		prefix, err := netip.ParsePrefix(address.String())
		if err == nil && prefix.Addr().Is4() && prefix.Addr().IsGlobalUnicast() {
			senders = append(senders, prefix)
		}
	}
	return senders, nil
}

// senderFor returns the address in the network of the target, or the first.
func senderFor(senders []netip.Prefix, target netip.Addr) (netip.Addr, bool) {
	if i := slices.IndexFunc(senders, func(p netip.Prefix) bool { return p.Contains(target) }); i >= 0 {
		return senders[i].Addr(), true
	}
	if len(senders) == 0 {
		return netip.Addr{}, false
	}
	return senders[0].Addr(), true
}
