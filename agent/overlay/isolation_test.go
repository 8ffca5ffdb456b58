// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/frame"
)

// Every packet between two pods of a node is routed by it: nothing comes from one to the other that
// the node's hook forward does not see.
func TestPastTheNode(t *testing.T) {
	t.Parallel()
	w := newTopology(t, VXLAN, 1)
	a, b := w.pod(w.nodes[0]), w.pod(w.nodes[0])
	w.expectReached(a, b)
	const port = 4789
	heard := b.Hear(t, "eth0", port)
	header, tag := slices.Concat(b.MAC("eth0"), a.MAC("eth0")), []byte{0x81, 0x00, 0, 0}
	ipv4 := []byte{0x08, 0x00}
	a.SendFrame("eth0", slices.Concat(header, tag, ipv4, netnstest.Datagram(a.v4, b.v4, port, "tagged")))
	a.SendFrame("eth0", slices.Concat(frame.Broadcast(), a.MAC("eth0"), tag, ipv4, netnstest.Datagram(a.v4, b.v4, port, "tagged broadcast")))
	a.SendFrame("eth0", slices.Concat(header, ipv4, netnstest.Datagram(a.v4, b.v4, port, "bridged")))
	a.Say("255.255.255.255", port, "broadcast")
	a.Say("224.0.0.77", port+1, "multicast")
	a.Say("ff02::77%eth0", port+1, "IPv6 multicast")
	// It comes last.
	a.Say(b.v4.String(), port, "routed")
	for text := range heard {
		if text == "routed" {
			return
		}
		t.Errorf("the %s datagram came past the node", text)
	}
}

// A pod has the addresses that it was given: with others it can neither send nor be found.
func TestUnassignedAddress(t *testing.T) {
	t.Parallel()
	w := newTopology(t, VXLAN, 2)
	n := w.nodes[0]
	a, b, remote := w.pod(n), w.pod(n), w.pod(w.nodes[1])
	w.expectReached(a, b)
	w.expectReached(a, remote)
	for _, key := range []string{"all", "default"} {
		n.Run(func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/"+key+"/rp_filter", []byte("0"), 0o644) })
	}
	for _, source := range []netip.Addr{netip.MustParseAddr("10.244.1.200"), netip.MustParseAddr("fd00:244:0:1::200"), b.v4, b.v6} {
		to := remote.v4
		if source.Is6() {
			to = remote.v6
		}
		a.IP("addr", "replace", netip.PrefixFrom(source, source.BitLen()).String(), "dev", "eth0", "nodad")
		if arrives(t, a, source, remote.Host, to) {
			t.Errorf("packets from %s arrive", source)
		}
		if source != b.v4 && source != b.v6 && ping(n.Host, source.String()) == nil {
			t.Errorf("the node finds %s", source)
		}
	}
	if err := ping(n.Host, b.v4.String()); err != nil {
		t.Error("the node does not find the pod whose address another pod uses:", err)
	}
}

// The tunnel takes packets of the other nodes alone: who may wrap packets sends them with any
// source, past every rule of its own node.
func TestStrangersInTheTunnel(t *testing.T) {
	t.Parallel()
	w := newTopology(t, VXLAN, 2)
	a, b := w.pod(w.nodes[0]), w.pod(w.nodes[1])
	w.expectReached(a, b)
	w.expectReached(b, a)
	const port = 4789
	heard := a.Hear(t, "eth0", port)
	wrapped := func(text string) string {
		header := slices.Concat([]byte{0x08, 0, 0, 0, 0, 0, vni, 0}, w.nodes[0].MAC(link4), w.nodes[1].MAC(link4), []byte{0x08, 0x00})
		return string(append(header, netnstest.Datagram(netip.MustParseAddr("10.244.2.200"), a.v4, port, text)...))
	}
	w.outside.Say("10.0.60.11", 8472, wrapped("outside host's"))
	// This node masquerades it.
	b.Say("10.0.60.11", 8472, wrapped("other node's pod's"))
	w.pod(w.nodes[0]).Say("10.0.60.11", 8472, wrapped("own node's pod's"))
	b.Say(a.v4.String(), port, "tunnel's")
	for text := range heard {
		if text == "tunnel's" {
			return
		}
		t.Errorf("the %s datagram came", text)
	}
}
