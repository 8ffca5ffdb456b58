// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"net/netip"
	"testing"

	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/ruleset/rulesettest"
)

// large returns a function that makes the change of a set of 20,000 addresses to one that has
// another one more.
func large() (change func() *setChange) {
	var all []netip.Addr
	for i := range 20_000 {
		all = append(all, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}))
	}
	of := func(all []netip.Addr) *ruleset.Ruleset {
		return rulesettest.With(rulesettest.Isolated(), rulesettest.Addresses("peers4", ruleset.IPv4, all...))
	}
	before, after := of(all[1:]), of(all)
	n := names(".1")
	sets := n.setsOf(before, nil, nil)
	return func() *setChange { return changeOf(sets, n.setsOf(after, before, sets)) }
}

// An element that comes to a large set is written, and no other one.
func TestElementOfLargeSet(t *testing.T) {
	change := large()
	if got, want := change().before.String(), "add "+names(".1").set("peers4")+" 10.0.0.0\n"; got != want {
		t.Errorf("commands %q, want %q", got, want)
	}
	if n := testing.AllocsPerRun(1, func() { change() }); n > 1000 {
		t.Errorf("an element takes %v allocations", n)
	}
}

func BenchmarkElementOfLargeSet(b *testing.B) {
	change := large()
	for b.Loop() {
		change()
	}
}
