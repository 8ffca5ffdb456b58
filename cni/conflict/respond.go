// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"bytes"
	"net"
	"slices"

	"github.com/mdlayher/packet"

	"github.com/berth-dev/berth/cni/frame"
)

// agentMark is in the field of an agent's probe that has no meaning in a request, the target's MAC
// address. Nodes do not answer such probes: an address that moves to the agent's node must not be in
// conflict because its former node still carries it.
func agentMark() net.HardwareAddr { return net.HardwareAddr{0x02, 'b', 'e', 'r', 't', 'h'} }

// answer answers a host's probe for a target that the node answers for, as Linux answers one for its
// own addresses. The kernel is asked each time, so that nobody hears of an address that was just
// withdrawn.
func (e *ear) answer(f []byte) {
	h := e.hears.Load()
	reply, to, ok := replyTo(f, h)
	if !ok {
		return
	}
	if ours, err := e.answers(h.link.Index, reply.Sender); err != nil || !ours {
		return
	}
	// Hosts repeat probes.
	_, _ = e.conn.WriteTo(reply.To(to), &packet.Addr{HardwareAddr: to})
}

// replyTo returns the reply to a frame that is a host's probe for one of the targets.
func replyTo(f []byte, h *hearing) (reply frame.ARP, to net.HardwareAddr, ok bool) {
	a, _, ok := frame.ParseARP(f)
	if !ok || a.Operation != frame.ARPRequest || !a.Sender.IsUnspecified() || bytes.Equal(a.TargetMAC, agentMark()) {
		return frame.ARP{}, nil, false
	}
	if !slices.ContainsFunc(h.targets, func(t Target) bool { return t.Address == a.Target }) {
		return frame.ARP{}, nil, false
	}
	return frame.ARP{Operation: frame.ARPReply, SenderMAC: h.link.HardwareAddr, Sender: a.Target, TargetMAC: a.SenderMAC, Target: a.Sender}, a.SenderMAC, true
}
