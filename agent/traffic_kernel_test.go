// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// Real packets to a pod, and connections with it, are told when somebody asks; nothing before the
// agent's first look has a time.
func TestTraffic(t *testing.T) {
	netnstest.Need(t)
	node, pod, client := netnstest.New(t), netnstest.New(t), netnstest.New(t)
	network := netnstest.NewWire(t)
	network.Plug(node, "eth0", netip.MustParsePrefix("10.0.70.11/24"))
	network.Plug(client, "eth0", netip.MustParsePrefix("10.0.70.50/24"))
	a, w := newAgent(t)
	driver := nettype.Drivers(nettype.Kernel{Wirer: wire.New("")})[nettype.Veth]
	a.Drivers = Drivers{nettype.Veth: driver}
	put(t, a, "c", state.Added, pod.Path(), w.addrs)
	record := a.Store.List()[0]
	record.Attachments[0].Uplink, record.Attachments[0].MAC = "eth0", "0a:58:0a:00:46:05"
	must(t, a.Store.Put(record))
	node.Run(func() error { _, err := driver.Setup(nettype.InterfaceOf(record, 0)); return err })
	ask := func(check bool) (c inquiry.InspectedContainer) {
		t.Helper()
		node.Run(func() error {
			in, err := a.Inspect(t.Context(), "ns/p", check)
			if err == nil && len(in.Containers) != 1 {
				err = errors.New("there is no container")
			}
			if err == nil {
				c = in.Containers[0]
			}
			return err
		})
		return c
	}
	if c := ask(false); c.Interfaces[0].Traffic != nil || c.Peers != nil {
		t.Errorf("without a look at the kernel: %+v", c)
	}
	client.Ping("10.0.70.5")
	first := time.Now()
	node.Run(func() error { a.noteTraffic(t.Context(), a.Store.List()); return nil })

	client.Ping("10.0.70.5")
	node.Ping("10.0.70.5")
	connection := netnstest.Dial(t, client, pod, "10.0.70.5")
	connection.Rate(2)
	c := ask(true)
	if len(c.Interfaces[0].Traffic) != 1 {
		t.Fatalf("traffic is %+v", c.Interfaces[0].Traffic)
	}
	seen := c.Interfaces[0].Traffic[0]
	if seen.Link != "eth0" || len(seen.Addresses) != 1 || seen.Addresses[0] != w.addrs[0].Address || seen.Error != "" || seen.Since.Before(first) {
		t.Errorf("traffic is %+v", seen)
	}
	for direction, counted := range map[string]inquiry.Counted{"received": seen.Received, "sent": seen.Sent} {
		if counted.Packets < 4 || counted.Bytes < 4*64 || counted.Last.Before(seen.Since) {
			t.Errorf("%s: %+v since %v", direction, counted, seen.Since)
		}
	}
	addr := w.addrs[0].Address
	want := []inquiry.InspectedPeer{
		{Address: addr, Peer: netip.MustParseAddr("10.0.70.11"), OwnNode: true, Connections: 1},
		{Address: addr, Peer: netip.MustParseAddr("10.0.70.50"), Connections: 3}, // two pings and a TCP connection
	}
	byPeer := cmpopts.SortSlices(func(a, b inquiry.InspectedPeer) bool { return a.Peer.Less(b.Peer) })
	if diff := cmp.Diff(want, c.Peers, byPeer, cmpopts.EquateComparable(netip.Addr{})); diff != "" || c.PeersUnknown != "" {
		t.Errorf("peers (-want +got):\n%s%s", diff, c.PeersUnknown)
	}

	// An agent that has just started knows the counters, and no times.
	a.traffic.Keep(nil)
	if again := ask(true).Interfaces[0].Traffic[0]; !again.Received.Last.IsZero() || !again.Sent.Last.IsZero() || again.Received.Packets < seen.Received.Packets {
		t.Errorf("after a restart: %+v", again)
	}
	// Of a pod whose packets do not pass the node nobody can say who its peers are.
	record.Attachments[0].Driver, record.Attachments[0].Network = nettype.Vlan, []byte(`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"berth-vlan","mode":"macvlan"}]}`)
	must(t, a.Store.Put(record))
	if c := ask(true); c.Peers != nil || c.PeersUnknown != "interface eth0: "+errPast.Error() || c.Interfaces[0].Traffic[0].Received.Packets < seen.Received.Packets {
		t.Errorf("of a macvlan link: %+v", c)
	}
}
