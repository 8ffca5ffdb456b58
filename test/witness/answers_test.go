// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/berth-dev/berth/cni/frame"
)

// A node that answers beside another one has two turns, and one whose address nobody asks for has
// none.
func TestTurns(t *testing.T) {
	asked, other := netip.MustParseAddr("10.0.70.5"), netip.MustParseAddr("10.0.70.6")
	a := &Answers{asked: map[netip.Addr]int{asked: 1}, turns: map[netip.Addr][]Turn{}}
	for _, node := range []string{"node1", "node1", "node2", "node1"} {
		a.note(asked, node, time.Now())
		a.note(other, node, time.Now())
	}
	if got := a.Nodes("10.0.70.5"); !slices.Equal(got, []string{"node1", "node2", "node1"}) || a.Turns("10.0.70.5")[0].Count != 2 {
		t.Errorf("turns %+v", a.Turns("10.0.70.5"))
	}
	if got := a.Nodes("10.0.70.6"); len(got) > 0 {
		t.Errorf("turns %v of an address that nobody asks for", got)
	}
}

// Of ARP only replies are answers.
func TestAnswerIn(t *testing.T) {
	mac, client := net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	packet := frame.ARP{Operation: frame.ARPReply, SenderMAC: mac, Sender: netip.MustParseAddr("10.0.70.5"), TargetMAC: client, Target: netip.MustParseAddr("10.0.70.250")}
	if address, to, ok := answerIn(packet.To(client)); !ok || address != packet.Sender || to.String() != client.String() {
		t.Errorf("a reply: %s to %s, %t", address, to, ok)
	}
	packet.Operation = frame.ARPRequest
	if _, _, ok := answerIn(packet.To(frame.Broadcast())); ok {
		t.Error("a request is taken for an answer")
	}
	target := netip.MustParseAddr("fd00:70::5")
	message := append([]byte{frame.NeighborAdvertisement, 0, 0, 0, 0x60, 0, 0, 0}, target.AsSlice()...)
	if address, to, ok := answerIn(frame.ICMPv6(mac, client, target, netip.MustParseAddr("fd00:70::fa"), message)); !ok || address != target || to.String() != client.String() {
		t.Errorf("an advertisement: %s to %s, %t", address, to, ok)
	}
	if _, _, ok := answerIn(solicitation(client, netip.MustParseAddr("fd00:70::fa"), target)); ok {
		t.Error("a solicitation is taken for an answer")
	}
}
