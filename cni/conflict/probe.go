// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/frame"
)

// Target is an address that a pod is about to get, or has.
type Target struct {
	Address netip.Addr
	// Link is the index of the node's link to the network of the address.
	Link int
	// Own, if given, is the MAC that the pod's interface has on every node: its answer is no
	// conflict.
	Own net.HardwareAddr
}

// Conflict is a host that has an address, or says so.
type Conflict struct {
	Address netip.Addr
	MAC     net.HardwareAddr
	// Link is the name of the link that the answer came from.
	Link string
}

func (c Conflict) String() string {
	return fmt.Sprintf("%s is in use by the host with MAC %s on %s", c.Address, c.MAC, c.Link)
}

// Prober asks the networks of addresses. It has no state; calls may run in parallel.
type Prober struct {
	// Probes is how many probes are sent for an address, and Interval how long answers are
	// waited for after each. Without probes there are no conflicts.
	Probes   int
	Interval time.Duration
	// Patience is how long an address may go on being answered for before it is a conflict.
	Patience time.Duration
}

// Defaults.
const (
	Probes   = 2
	Interval = 100 * time.Millisecond
	Patience = 3 * time.Second
)

// Probe returns the conflicts of targets, sorted by address. It takes Probes times Interval
// if nobody answers, and at most Patience and one more round if somebody does. Where a
// network cannot be asked it returns an error beside the conflicts of the others. A link
// that is no Ethernet has no conflicts. It ends with ctx, with the cause.
func (p *Prober) Probe(ctx context.Context, targets []Target) ([]Conflict, error) {
	if p.Probes == 0 {
		return nil, nil
	}
	// Sockets are opened in the network namespace of this goroutine's thread.
	segments, err := p.open(targets)
	var group sync.WaitGroup
	found, errs := make([][]Conflict, len(segments)), make([]error, len(segments))
	for i, s := range segments {
		group.Go(func() {
			defer s.conn.Close()
			// A read that waits ends with ctx.
			defer context.AfterFunc(ctx, func() { _ = s.conn.SetDeadline(time.Unix(1, 0)) })()
			found[i], errs[i] = p.probe(ctx, s)
		})
	}
	group.Wait()
	conflicts := slices.Concat(found...)
	slices.SortFunc(conflicts, func(x, y Conflict) int { return x.Address.Compare(y.Address) })
	return conflicts, errors.Join(errors.Join(errs...), err)
}

// segment is a link and a family, with the socket for it.
type segment struct {
	link *net.Interface
	is4  bool
	conn *packet.Conn
	// targets have distinct addresses.
	targets []Target
}

// segmentKey is a link and a family.
type segmentKey struct {
	link int
	is4  bool
}

func group(targets []Target) map[segmentKey][]Target {
	groups := map[segmentKey][]Target{}
	type place struct {
		segmentKey
		addr netip.Addr
	}
	known := map[place]bool{}
	for _, t := range targets {
		k := segmentKey{t.Link, t.Address.Is4()}
		if p := (place{k, t.Address}); !known[p] {
			known[p] = true
			groups[k] = append(groups[k], t)
		}
	}
	return groups
}

// ethernet returns a link, nil for one that is no Ethernet. Package net would list the links of all pods.
func ethernet(index int) (*net.Interface, error) {
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return nil, fmt.Errorf("find link %d: %w", index, err)
	}
	a := link.Attrs()
	if len(a.HardwareAddr) != 6 || a.Flags&net.FlagBroadcast == 0 {
		return nil, nil
	}
	return &net.Interface{Index: a.Index, MTU: a.MTU, Name: a.Name, HardwareAddr: a.HardwareAddr, Flags: a.Flags}, nil
}

// onEthernet calls do with each group whose link is Ethernet. Errors begin with the text in what. A
// group that fails keeps no other from its call.
func onEthernet(groups map[segmentKey][]Target, what string, do func(k segmentKey, link *net.Interface, targets []Target) error) error {
	var errs []error
	for k, targets := range groups {
		link, err := ethernet(k.link)
		if err == nil && link != nil {
			if err = do(k, link, targets); err != nil {
				err = fmt.Errorf("%s on link %s: %w", what, link.Name, err)
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// open groups the targets. It leaves out links that are no Ethernet.
func (p *Prober) open(targets []Target) (segments []*segment, err error) {
	err = onEthernet(group(targets), "open a packet socket", func(k segmentKey, link *net.Interface, targets []Target) (err error) {
		s := &segment{link: link, is4: k.is4, targets: targets}
		if s.conn, err = s.listen(); err == nil {
			segments = append(segments, s)
		}
		return err
	})
	return segments, err
}

func (s *segment) listen() (*packet.Conn, error) {
	program, protocol := isAdvertisement(), unix.ETH_P_IPV6
	if s.is4 {
		program, protocol = isReplyTo(s.link.HardwareAddr), unix.ETH_P_ARP
	}
	filter, err := bpf.Assemble(slices.Concat(frame.ToThisHost(), program, []bpf.Instruction{bpf.RetConstant{Val: 1 << 16}}))
	if err != nil {
		return nil, err
	}
	return packet.Listen(s.link, packet.Raw, protocol, &packet.Config{Filter: filter})
}

// isReplyTo ends a filter's program for all ARP packets but replies to a MAC: each node announces its pods to all, and each
// probe that waits would read it.
func isReplyTo(mac net.HardwareAddr) []bpf.Instruction {
	const arpOperation = 14 + 6
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: 0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(mac), SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.LoadAbsolute{Off: 4, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(binary.BigEndian.Uint16(mac[4:])), SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.LoadAbsolute{Off: arpOperation, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(frame.ARPReply), SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}
}

// again times the interval is the interval of later rounds, which wait for the end of answers.
const again = 5

// probe asks until nobody answers, or the patience is over.
func (p *Prober) probe(ctx context.Context, s *segment) ([]Conflict, error) {
	began := time.Now()
	asked, interval := s.targets, p.Interval
	for {
		answers, err := p.round(ctx, s, asked, interval)
		if err != nil || len(answers) == 0 {
			return nil, err
		}
		if time.Since(began) >= p.Patience {
			var all []Conflict
			for addr, mac := range answers {
				all = append(all, Conflict{Address: addr, MAC: mac, Link: s.link.Name})
			}
			return all, nil
		}
		asked = slices.DeleteFunc(slices.Clone(asked), func(t Target) bool { return answers[t.Address] == nil })
		interval = again * p.Interval
	}
}

// round sends the probes and collects their answers.
func (p *Prober) round(ctx context.Context, s *segment, asked []Target, interval time.Duration) (map[netip.Addr]net.HardwareAddr, error) {
	answers := map[netip.Addr]net.HardwareAddr{}
	for range p.Probes {
		for _, t := range asked {
			f, to := s.question(t.Address)
			if _, err := s.conn.WriteTo(f, &packet.Addr{HardwareAddr: to}); err != nil {
				return nil, s.failed(ctx, "send on", err)
			}
		}
		if err := s.collect(ctx, time.Now().Add(interval), asked, answers); err != nil {
			return nil, err
		}
	}
	return answers, nil
}

func (s *segment) question(addr netip.Addr) (f []byte, to net.HardwareAddr) {
	if addr.Is4() {
		f = frame.ARP{Operation: frame.ARPRequest, SenderMAC: s.link.HardwareAddr, TargetMAC: agentMark(), Sender: netip.IPv4Unspecified(), Target: addr}.To(frame.Broadcast())
	} else {
		f = frame.DuplicateProbe(s.link.HardwareAddr, addr)
	}
	return f, f[:6]
}

// collect notes answers until the time.
func (s *segment) collect(ctx context.Context, until time.Time, asked []Target, answers map[netip.Addr]net.HardwareAddr) error {
	return s.receive(ctx, until, func(f []byte) {
		addr, mac, ok := s.answer(f)
		if !ok || s.is4 && !toProbe(f, addr) {
			return
		}
		i := slices.IndexFunc(asked, func(t Target) bool { return t.Address == addr })
		if i >= 0 && !bytes.Equal(mac, asked[i].Own) {
			answers[addr] = mac
		}
	})
}

// receive reads frames until the time.
func (s *segment) receive(ctx context.Context, until time.Time, each func(f []byte)) error {
	if err := s.conn.SetReadDeadline(until); err != nil {
		return s.failed(ctx, "wait on", err)
	}
	buffer := make([]byte, 2048)
	for {
		// SetReadDeadline may have come after the end of ctx.
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, _, err := s.conn.ReadFrom(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
			return nil
		}
		if err != nil {
			return s.failed(ctx, "receive on", err)
		}
		each(buffer[:n])
	}
}

// answer reads an address and the MAC that has it. ok is false for frames of this link itself and
// for frames that prove nothing.
func (s *segment) answer(f []byte) (addr netip.Addr, mac net.HardwareAddr, ok bool) {
	if s.is4 {
		// Announcements go to all. Nodes of Berth repeat theirs, maybe a moment too long.
		a, to, ok := frame.ParseARP(f)
		ok = ok && a.Operation == frame.ARPReply && bytes.Equal(to, s.link.HardwareAddr)
		addr, mac = a.Sender, a.SenderMAC
		return addr, mac, ok && !bytes.Equal(mac, s.link.HardwareAddr)
	}
	a, ok := frame.ParseAdvertisement(f)
	return a.Target, a.MAC, ok && a.Flags&frame.FlagOverride != 0 && !bytes.Equal(a.MAC, s.link.HardwareAddr)
}

// toProbe returns whether an ARP reply about an address answers a probe. A reply has the address of the host that asked as its
// target (RFC 826), and a probe has none (RFC 5227, section 2.1.1). A question of an [Asker] of this node has one, and proxies
// answer it.
func toProbe(f []byte, addr netip.Addr) bool {
	a, _, ok := frame.ParseARP(f)
	return ok && (a.Target.IsUnspecified() || a.Target == addr)
}

// failed says why ctx ended, if it did.
func (s *segment) failed(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%s link %s: %w", what, s.link.Name, err)
}
