// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/ruleset/rulesettest"
)

// services lead to the server, by family.
var services = map[ruleset.Family]string{ruleset.IPv4: "10.96.0.1", ruleset.IPv6: "fd00:96::1"}

// A pod with a link of its own calls itself through a Service, and nobody else reaches it by its
// address: not by another link, and not where the pod has no element.
func TestHairpin(t *testing.T) { forEach(t, testHairpin) }

func testHairpin(t *testing.T, b backend) {
	w := newTopology(t, b)
	w.serve(rulesettest.OpenPort)
	for _, e := range rulesettest.Both {
		for _, port := range []uint16{rulesettest.OpenPort, 7, 9} {
			w.node.Run(func() error { return netnstest.Redirect(services[e.Family], port, e.Server.String()) })
		}
		// The client is able to send from the server's address.
		w.client.IP("addr", "add", netip.PrefixFrom(e.Server, e.Server.BitLen()).String(), "dev", "lo")
	}
	w.node.Run(netnstest.Masquerade)
	base := rulesettest.Chain("base", ruleset.Forward, ruleset.Rule{Established: true, Verdict: ruleset.Accept})
	sets := []any{base}
	for i, e := range rulesettest.Both {
		name := []string{"own4", "own6"}[i]
		sets = append(sets, &ruleset.Set{Name: name, Family: e.Family, Kind: ruleset.Links, Links: []ruleset.Link{{Address: e.Server, Interface: "pod2"}}})
		base.Rules = append(base.Rules, ruleset.Rule{Family: e.Family, SourceIn: name, SourceOut: name, Verdict: ruleset.Accept})
	}
	// It comes behind denied packets, and says that they had their time.
	fence := ruleset.Rule{Protocol: ruleset.UDP, Ports: []ruleset.PortRange{{First: 9, Last: 9}}, Verdict: ruleset.Accept}
	base.Rules = append(base.Rules, fence, ruleset.Rule{Verdict: ruleset.Drop})
	closed := rulesettest.With(rulesettest.Of(), sets...)
	w.apply(closed)
	for i, e := range rulesettest.Both {
		to := netip.AddrPortFrom(netip.MustParseAddr(services[e.Family]), rulesettest.OpenPort)
		for _, protocol := range []string{"tcp", "udp"} {
			if err := w.callsItself(protocol, to, patience); err != nil {
				t.Errorf("a pod calls itself by %s: %v", to, err)
			}
			w.mustNot(protocol, to)
		}
		forged := w.sink(netip.AddrPortFrom(e.Server, 7))
		behind := w.sink(netip.AddrPortFrom(e.Server, 9))
		forge := func() {
			t.Helper()
			arrived := behind.Load()
			for _, port := range []uint16{7, 9} {
				w.sendFrom(e.Server, netip.AddrPortFrom(to.Addr(), port))
			}
			if !awaits(behind, arrived+1) {
				t.Fatal("a packet that the rules allow does not arrive")
			}
		}
		if forge(); forged.Load() > 0 {
			t.Errorf("%v: a packet from the pod's address that came by another link passes", e.Family)
		}
		// The element is by what it passes.
		name := []string{"own4", "own6"}[i]
		w.apply(rulesettest.With(closed, &ruleset.Set{Name: name, Family: e.Family, Kind: ruleset.Links, Links: []ruleset.Link{
			{Address: e.Server, Interface: "pod1"}, {Address: e.Server, Interface: "pod2"}}}))
		if forge(); !awaits(forged, 1) {
			t.Errorf("%v: a packet by a link of the pod does not pass", e.Family)
		}
		w.apply(rulesettest.With(closed, &ruleset.Set{Name: name, Family: e.Family, Kind: ruleset.Links}))
		if w.callsItself("tcp", to, brief) == nil {
			t.Errorf("%v: a pod without an element calls itself", e.Family)
		}
		w.apply(closed)
	}
}

// callsItself returns nil where the server gets an answer from itself.
func (w *topology) callsItself(protocol string, service netip.AddrPort, wait time.Duration) error {
	var conn net.Conn
	err := w.server.Try(func() (err error) {
		conn, err = net.DialTimeout(protocol, service.String(), wait)
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	return ask(conn, "am I there?", wait)
}

// sendFrom has the client send a datagram from an address.
func (w *topology) sendFrom(source netip.Addr, to netip.AddrPort) {
	w.t.Helper()
	netnstest.Eventually(w.t, func() error {
		return w.client.Try(func() error {
			conn, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(source, 0)), net.UDPAddrFromAddrPort(to))
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write([]byte("x"))
			return err
		})
	})
}
