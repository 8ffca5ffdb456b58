// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/frame"
)

// Defend defends exactly these targets from now on: Hear reports ARP claims of other hosts, in any
// ARP packet with an address as its sender, or in a neighbour advertisement with the flag
// "override". Such a claim proves nothing: when an address moves, its new node sends one, too.
// Hosts that probe for an address, such as DHCP clients, get an answer if the node answers for it
// by proxy, because the kernel does not answer probes by proxy.
func (a *Asker) Defend(targets []Target) error {
	a.defended.Store(&targets)
	var errs []error
	for _, s := range a.families {
		filter, err := s.filter(targets)
		if err == nil {
			err = s.conn.SetBPF(filter)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("hear claims on link %s: %w", a.link.Name, err)
	}
	return nil
}

// claim reads an ARP claim of another host to a target. ok is false for every other frame.
func (a *Asker) claim(s *segment, f []byte) (c Conflict, ok bool) {
	if s.is4 {
		arp, _, is := frame.ParseARP(f)
		c, ok = Conflict{arp.Sender, arp.SenderMAC, a.link.Name}, is
	} else {
		adv, is := frame.ParseAdvertisement(f)
		c, ok = Conflict{adv.Target, adv.MAC, a.link.Name}, is && adv.Flags&frame.FlagOverride != 0
	}
	t, is := a.target(c.Address)
	return c, ok && is && !bytes.Equal(c.MAC, t.Own) && !bytes.Equal(c.MAC, a.link.HardwareAddr)
}

func (a *Asker) target(addr netip.Addr) (t Target, ok bool) {
	defended := *a.defended.Load()
	i := slices.IndexFunc(defended, func(t Target) bool { return t.Address == addr })
	if i < 0 {
		return Target{}, false
	}
	return defended[i], true
}

// agentMark is the target's MAC address in an agent's probe; this field has no meaning in a
// request. Nodes do not answer such probes: an address that moves to the agent's node must not be
// in conflict because its former node still carries it.
func agentMark() net.HardwareAddr { return net.HardwareAddr{0x02, 'b', 'e', 'r', 't', 'h'} }

// respond answers a host's probe for a target for which the node answers, as Linux does for its own
// addresses. It asks the kernel each time, so that it does not answer for an address that was just
// withdrawn.
func (a *Asker) respond(s *segment, f []byte) {
	probe, _, ok := frame.ParseARP(f)
	if !s.is4 || !ok || probe.Operation != frame.ARPRequest || !probe.Sender.IsUnspecified() || bytes.Equal(probe.TargetMAC, agentMark()) {
		return
	}
	if _, is := a.target(probe.Target); !is {
		return
	}
	if ours, err := a.answers(a.link.Index, probe.Target); err != nil || !ours {
		return
	}
	reply := frame.ARP{Operation: frame.ARPReply, SenderMAC: a.link.HardwareAddr, Sender: probe.Target, TargetMAC: probe.SenderMAC, Target: probe.Sender}
	// Hosts repeat probes.
	_ = s.send(reply.To(probe.SenderMAC))
}

// Offsets in frames: of an ARP packet's sender and target.
const (
	arpSender = 14 + 14
	arpTarget = 14 + 24
)

// maxAddresses limits the filter's length. The kernel has 20 KiB for a socket's options and
// its filter, which takes 16 bytes for an address.
const maxAddresses = 512

// filter drops all frames except answers to the link, ARP claims to targets, and probes for
// targets.
func (s *segment) filter(targets []Target) ([]bpf.RawInstruction, error) {
	pass := bpf.RetConstant{Val: 1 << 16}
	program := frame.ToThisHost()
	if !s.is4 {
		// There are few of them.
		return bpf.Assemble(append(append(program, isAdvertisement()...), pass))
	}
	targets = slices.DeleteFunc(slices.Clone(targets), func(t Target) bool { return !t.Address.Is4() })
	if len(targets) > maxAddresses {
		return bpf.Assemble(append(program, pass))
	}
	program = append(program, repliesPass(s.link.HardwareAddr, pass)...)
	program = append(program, bpf.LoadAbsolute{Off: arpSender, Size: 4},
		// A probe has no sender.
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 1}, bpf.LoadAbsolute{Off: arpTarget, Size: 4})
	for _, t := range targets {
		b := t.Address.As4()
		value := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
		program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: value, SkipTrue: 1}, pass)
	}
	return bpf.Assemble(append(program, bpf.RetConstant{Val: 0}))
}

// isAdvertisement ends a filter's program for all IPv6 packets except neighbour advertisements.
func isAdvertisement() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: 14 + 6, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_ICMPV6, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.LoadAbsolute{Off: 14 + 40, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: frame.NeighborAdvertisement, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}
}
