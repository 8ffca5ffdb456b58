// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/speaker/status"
)

// routerBIRD is a router by BIRD with BFD.
const routerBIRD = `
router id 10.11.0.254;
protocol device {}
protocol kernel { ipv4 { export where source = RTS_BGP; }; }
protocol kernel { ipv6 { export where source = RTS_BGP; }; }
protocol bfd { interface "nodes" { interval 300 ms; multiplier 3; }; }
protocol bgp {
	local as 65101;
	neighbor range 10.11.0.0/24 as 65200;
	dynamic name "node";
	passive;
	ttl security on;
	bfd on;
	error wait time 1, 5; # after BFD has lost a node; BIRD has 60, 300
	ipv4 { import all; export none; };
	ipv6 { import all; export none; };
}
`

// Two routers at two nodes, which both announce an address, the second as the newest. Without BFD
// the routers would lose it after three minutes, the hold time, which is longer than the test
// waits.
func TestBFD(t *testing.T) {
	t.Parallel()
	netnstest.Need(t)
	c := newCluster(t)
	wire, frr, bird, forger := netnstest.NewWire(t), netnstest.New(t), netnstest.New(t), netnstest.New(t)
	plug := func(host *netnstest.Host, link, last string) {
		wire.Plug(host, link, netip.MustParsePrefix("10.11.0."+last+"/24"), netip.MustParsePrefix("2001:db8:11::"+last+"/64"))
	}
	plug(frr, "nodes", "1")
	plug(bird, "nodes", "254")
	plug(forger, "eth0", "77")
	var calls []*Caller
	labels := map[string]string{"bfd": "yes"}
	for n, router := range []*netnstest.Host{frr, bird} {
		forwards(router)
		peer := &v1alpha1.BGPPeer{ObjectMeta: metav1.ObjectMeta{Name: []string{"frr", "bird"}[n]}, Spec: v1alpha1.BGPPeerSpec{
			NodeSelector: &metav1.LabelSelector{MatchLabels: labels}, LocalASN: 65200, HoldTime: &metav1.Duration{Duration: time.Hour},
			Peer: v1alpha1.BGPRouter{Address: []string{"10.11.0.1", "10.11.0.254"}[n], ASN: 65101}, BFD: &v1alpha1.BGPBFD{},
			GracefulRestart: v1alpha1.BGPGracefulRestart{Time: &metav1.Duration{Duration: time.Hour}},
			Export:          []v1alpha1.BGPExport{{Prefixes: []string{"10.99.0.0/24", "2001:db8:99::/64"}, Newest: true}},
		}}
		c.peer(peer)
	}
	page := strings.Replace(config(t, "router-frr.conf"), " neighbor nodes remote-as 65200\n", " neighbor nodes remote-as 65200\n neighbor nodes bfd 3 300 300\n", 1)
	daemons := &Fabric{t: t}
	daemons.keep(StartFRR(t.Context(), frr.Try, page))
	daemons.keep(StartBIRD(t.Context(), bird.Try, routerBIRD))
	var speakers []*speaker
	for n, name := range []string{"old", "new"} {
		node, last := netnstest.New(t), []string{"2", "3"}[n]
		plug(node, "eth0", last)
		forwards(node)
		for _, way := range []struct{ to, by string }{{"default", "10.11.0.1"}, {"10.13.0.0/24", "10.11.0.254"}} {
			node.IP("route", "add", way.to, "via", way.by)
		}
		s := c.speak(t, node, name, "10.11.0."+last, labels)
		podOn(t, node, name, since.Add(time.Duration(n)*time.Second), "10.99.0.5")
		speakers = append(speakers, s)
	}
	up := func(peers []status.Peer) bool {
		return len(peers) == 2 && !slices.ContainsFunc(peers, func(p status.Peer) bool { return !p.Established || p.BFD == nil || p.BFD.State != "Up" })
	}
	for _, s := range speakers {
		s.awaitPeers(up)
	}
	for n, router := range []*netnstest.Host{frr, bird} {
		client := netnstest.New(t)
		subnet := []string{"10.12.0.", "10.13.0."}[n]
		join(router, client, "client", "eth0", subnet, []string{"2001:db8:12::", "2001:db8:13::"}[n], "2")
		client.IP("route", "add", "default", "via", subnet+"1")
		calls = append(calls, Call(t, client, "10.99.0.5"))
	}
	by := []string{"FRR", "BIRD"}
	answers := func(name string) {
		t.Helper()
		for _, each := range calls {
			each.Await(name)
			each.Only(name)
		}
	}
	type moment struct {
		time  time.Time
		marks []uint64
	}
	now := func() (m moment) {
		m.time = time.Now()
		for _, each := range calls {
			m.marks = append(m.marks, each.Sent())
		}
		return m
	}
	// lost logs how many calls the clients lost since a moment.
	lost := func(what string, from moment) (total int) {
		for n, each := range calls {
			lost, longest := each.Lost(from.marks[n])
			t.Logf("%s, %s: lost %d calls, %d at a time at most", what, by[n], lost, longest)
			total += lost
		}
		return total
	}
	answers("new")
	newest := speakers[1]

	for name, end := range map[string]syscall.Signal{"the speaker is replaced": syscall.SIGTERM, "the speaker crashes": syscall.SIGKILL} {
		before := now()
		newest.end(end)
		newest.start()
		newest.awaitPeers(up)
		answers("new")
		for n, each := range calls {
			// BIRD takes BFD's word also where the session had ended before.
			if end == syscall.SIGTERM || by[n] == "FRR" {
				each.OnlySince(before.marks[n], "new")
			}
		}
		if lost(name, before) > 0 {
			t.Errorf("%s: calls were lost", name)
		}
	}

	// Of another host, as the routers': they have the wrong TTL.
	before := newest.awaitPeers(up)
	for _, state := range []byte{1, 0} { // Down, AdminDown
		// RFC 5880, section 4.1: version 1, multiplier 3, a discriminator of the router's alone, a packet
		// a second.
		packet := []byte{1 << 5, state << 6, 3, 24, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0x0f, 0x42, 0x40, 0, 0, 0, 1, 0, 0, 0, 0}
		for _, router := range []string{"10.11.0.1", "10.11.0.254"} {
			frame := slices.Concat(newest.host.MAC("eth0"), forger.MAC("eth0"), []byte{8, 0}, netnstest.Datagram(netip.MustParseAddr(router), netip.MustParseAddr("10.11.0.3"), 3784, string(packet)))
			forger.SendFrame("eth0", frame)
		}
	}
	answers("new")
	for n, p := range newest.awaitPeers(up) {
		if !p.BFD.Since.Equal(before[n].BFD.Since) {
			t.Errorf("%s: BFD was lost by forged packets", p.Name)
		}
	}

	elsewhere := func(what string, begin, end func()) {
		t.Helper()
		before := now()
		begin()
		for n, each := range calls {
			each.Await("old")
			t.Logf("%s, %s: the other node answers after %v", what, by[n], each.First(before.marks[n], "old").Sub(before.time).Round(time.Millisecond))
		}
		answers("old")
		lost(what, before)
		began := time.Now()
		end()
		newest.awaitPeers(up)
		answers("new")
		t.Logf("%s: all flows are back after %v", what, time.Since(began).Round(time.Millisecond))
	}
	const cable = 5 // the routers', the forger's and the old node's come before
	elsewhere("the cable is cut", func() { wire.Block(cable, true) }, func() { wire.Block(cable, false) })
	elsewhere("the speaker hangs", func() { _ = newest.run.Process.Signal(syscall.SIGSTOP) }, func() { _ = newest.run.Process.Signal(syscall.SIGCONT) })
}
