// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"net/netip"
	"testing"

	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/ruleset/rulesettest"
)

// Packets meet the applied rules, changes and replacements alike, and all pass when the table is
// gone.
func TestApply(t *testing.T) { forEach(t, testApply) }

func testApply(t *testing.T, b backend) {
	w := newTopology(t, b)
	w.serve(rulesettest.OpenPort, rulesettest.OtherPort)
	check := func(open, other bool) {
		t.Helper()
		for _, e := range rulesettest.Both {
			for _, protocol := range []string{"tcp", "udp"} {
				for p, may := range map[uint16]bool{rulesettest.OpenPort: open, rulesettest.OtherPort: other} {
					to := netip.AddrPortFrom(e.Server, p)
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
	w.apply(rulesettest.Isolated())
	check(true, false)
	rs := rulesettest.Closed()
	w.apply(rs)
	check(false, false)
	// A difference of one set.
	rs = rulesettest.With(rs, rulesettest.Addresses("peers4", ruleset.IPv4, rulesettest.Both[0].Client), rulesettest.Addresses("peers6", ruleset.IPv6, rulesettest.Both[1].Client))
	w.apply(rs)
	check(true, false)
	// One of a chain.
	rs = rulesettest.With(rs, rulesettest.Chain("p-web", ruleset.NoHook, ruleset.Rule{Protocol: ruleset.TCP, Ports: []ruleset.PortRange{{First: 7, Last: 7}, {First: 9, Last: 79}}, Verdict: ruleset.Accept}))
	w.apply(rs)
	check(false, false)
	// A process that knows nothing.
	w.table = b.Open(w.node.Path())
	w.apply(rulesettest.Isolated())
	check(true, false)
	for range 2 {
		if err := w.table.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		check(true, true)
	}
	w.apply(rulesettest.Closed())
	check(false, false)
}

// Counters go on through changes, and with backends that keep them through replacements by
// processes that know nothing of each other, and go with the last rule that names them.
func TestCounters(t *testing.T) { forEach(t, testCounters) }

func testCounters(t *testing.T, b backend) {
	w := newTopology(t, b)
	w.serve(rulesettest.OpenPort)
	to := netip.AddrPortFrom(rulesettest.Both[0].Server, rulesettest.OpenPort)
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
	rs := rulesettest.Isolated()
	w.apply(rs)
	for n := range uint64(4) {
		switch n {
		case 1:
			w.apply(rulesettest.With(rs, rulesettest.Chain("i-server", ruleset.NoHook, ruleset.Rule{Verdict: ruleset.Jump, Target: "p-web"})))
		case 2:
			w.table = b.Open(w.node.Path())
			w.apply(rs)
		case 3:
			w.table = b.Open(w.node.Path())
			w.apply(rulesettest.Variants()[1])
		}
		want := n
		if n > 1 && !b.keepsCounts {
			want = 0
		}
		if have := packets("web"); have != want {
			t.Errorf("step %d: the counter is %d", n, have)
		}
		// The first packet of a connection is counted.
		w.must("tcp", to)
	}
	w.apply(rulesettest.With(rs, rulesettest.Chain("i-server", ruleset.NoHook), rulesettest.Chain("p-web", ruleset.NoHook)))
	if all, err := w.table.Counters(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("Counters() = %v, %v, want none", all, err)
	}
	if err := w.table.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
}
