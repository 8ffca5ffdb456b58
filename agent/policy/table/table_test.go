// SPDX-License-Identifier: Apache-2.0

package table

import (
	"net/netip"
	"testing"

	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// Packets meet the applied rules, changes and replacements alike, and all pass when the table is
// gone.
func TestApply(t *testing.T) {
	w := newTopology(t)
	w.serve(openPort, otherPort)
	check := func(open, other bool) {
		t.Helper()
		for _, e := range both {
			for _, protocol := range []string{"tcp", "udp"} {
				for p, may := range map[uint16]bool{openPort: open, otherPort: other} {
					to := netip.AddrPortFrom(e.server, p)
					if may {
						w.must(protocol, to)
					} else {
						w.mustNot(protocol, to)
					}
				}
			}
		}
	}
	check(true, true)
	w.apply(isolated())
	check(true, false)
	rs := closed()
	w.apply(rs)
	check(false, false)
	// A difference of one set.
	rs = with(rs, addresses("peers4", ruleset.IPv4, both[0].client), addresses("peers6", ruleset.IPv6, both[1].client))
	w.apply(rs)
	check(true, false)
	// One of a chain.
	rs = with(rs, chain("p-web", ruleset.NoHook, ruleset.Rule{Protocol: ruleset.TCP, Ports: []ruleset.PortRange{{First: 7, Last: 7}, {First: 9, Last: 79}}, Verdict: ruleset.Accept}))
	w.apply(rs)
	check(false, false)
	// A process that knows nothing.
	w.table = New(w.node.Path())
	w.apply(isolated())
	check(true, false)
	for range 2 {
		if err := w.table.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		check(true, true)
	}
	w.apply(closed())
	check(false, false)
}

// Counters go on through changes and replacements, by processes that know nothing of each other, and
// go with the last rule that names them.
func TestCounters(t *testing.T) {
	w := newTopology(t)
	w.serve(openPort)
	to := netip.AddrPortFrom(both[0].server, openPort)
	packets := func(name string) uint64 {
		t.Helper()
		all, err := w.table.Counters(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := all[name]; !ok {
			t.Errorf("there is no counter %s", name)
		}
		return all[name].Packets
	}
	rs := isolated()
	w.apply(rs)
	for n := range uint64(4) {
		switch n {
		case 1:
			w.apply(with(rs, chain("i-server", ruleset.NoHook, ruleset.Rule{Verdict: ruleset.Jump, Target: "p-web"})))
		case 2:
			w.table = New(w.node.Path())
			w.apply(rs)
		case 3:
			w.table = New(w.node.Path())
			w.apply(variants()[1])
		}
		if have := packets("web"); have != n {
			t.Errorf("step %d: the counter is %d", n, have)
		}
		// The first packet of a connection is counted.
		w.must("tcp", to)
	}
	w.apply(with(rs, chain("i-server", ruleset.NoHook), chain("p-web", ruleset.NoHook)))
	if all, err := w.table.Counters(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("Counters() = %v, %v, want none", all, err)
	}
	verify(t, w.table)
}
