// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"net"
	"net/netip"
	"testing"

	"golang.org/x/net/bpf"

	"github.com/berth-dev/berth/cni/frame"
)

// An Asker's socket gets the frames that can answer it, and is not woken for the ARP of others.
func TestRepliesOnly(t *testing.T) {
	own, other := net.HardwareAddr{2, 1, 2, 3, 4, 5}, net.HardwareAddr{2, 1, 2, 3, 4, 6}
	addr, asker := netip.MustParseAddr("10.0.70.10"), netip.MustParseAddr("10.0.60.11")
	s := &segment{link: &net.Interface{HardwareAddr: own}, is4: true}
	filter, err := bpf.NewVM(append(repliesPass(own, bpf.RetConstant{Val: 1 << 16}), bpf.RetConstant{Val: 0}))
	if err != nil {
		t.Fatal(err)
	}
	arp := func(operation uint16, to net.HardwareAddr) []byte {
		return frame.ARP{Operation: operation, SenderMAC: other, Sender: addr, TargetMAC: to, Target: asker}.To(to)
	}
	for name, c := range map[string]struct {
		frame []byte
		hears bool
	}{
		"a reply":                   {arp(frame.ARPReply, own), true},
		"a reply to another host":   {arp(frame.ARPReply, net.HardwareAddr{2, 1, 2, 3, 4, 4}), false},
		"another vendor's host":     {arp(frame.ARPReply, net.HardwareAddr{6, 1, 2, 3, 4, 5}), false},
		"a request to this host":    {arp(frame.ARPRequest, own), false},
		"an announcement, request":  {arp(frame.ARPRequest, frame.Broadcast()), false},
		"an announcement, as reply": {arp(frame.ARPReply, frame.Broadcast()), false},
		"half a frame":              {arp(frame.ARPReply, own)[:16], false},
	} {
		n, err := filter.Run(c.frame)
		if err != nil {
			t.Fatal(err)
		}
		if heard := n > 0; heard != c.hears {
			t.Errorf("%s comes to the socket: %t, want %t", name, heard, c.hears)
		}
		if _, answers := s.answer(c.frame); answers != c.hears {
			t.Errorf("%s is an answer: %t, want %t", name, answers, c.hears)
		}
	}
}
