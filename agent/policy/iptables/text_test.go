// SPDX-License-Identifier: Apache-2.0

package iptables_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/policy/iptables"
	"github.com/berth-dev/berth/agent/policy/iptables/iptablestest"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/ruleset/rulesettest"
	"github.com/berth-dev/berth/ipam/seedtest"
)

// The text of random rulesets decides as the rulesets.
func TestTextOfRandomRulesets(t *testing.T) {
	t.Parallel()
	accepted, dropped := 0, 0
	base, rulesets := seedtest.Seed(t), seedtest.Draws(t, 50, 200)
	for i := range rulesets {
		r := &rulesettest.Random{Rand: rand.New(rand.NewPCG(base+i, 0)), Ruleset: rulesettest.Of()}
		for range 5 {
			r.Next()
		}
		if err := rulesettest.Check(r.Ruleset); err != nil {
			t.Fatal(err)
		}
		kernel, err := iptablestest.Of(r.Ruleset)
		if err != nil {
			t.Fatalf("BERTH_TEST_SEED=%d: %v", base+i, err)
		}
		for range 300 {
			p := packet(r)
			want := ruleset.Walk(r.Ruleset, ruleset.Forward, p)
			have, err := kernel.Walk(ruleset.Forward, p)
			if err != nil || have != want.Verdict {
				text, _ := iptables.TextOf(r.Ruleset)
				t.Fatalf("BERTH_TEST_SEED=%d repeats this ruleset first, packet %+v: %v, %v, want %v by %+v\n%s", base+i, p, have, err, want.Verdict, want.Path, text.Rules)
			}
			if have == ruleset.Drop {
				dropped++
			} else {
				accepted++
			}
		}
	}
	if least := 5 * int(rulesets); accepted < least || dropped < least {
		t.Errorf("%d packets were accepted, %d dropped: too few to compare", accepted, dropped)
	}
}

// packet returns a packet near the addresses and ports of the random rules.
func packet(r *rulesettest.Random) ruleset.Packet {
	p := ruleset.Packet{
		Protocol: []ruleset.Protocol{ruleset.TCP, ruleset.UDP, ruleset.SCTP}[r.IntN(3)], Port: uint16(r.IntN(25)),
		InInterface: []string{"eth1", "eth7", "lo", "x"}[r.IntN(4)], Established: r.IntN(20) == 0,
	}
	for _, a := range []*netip.Addr{&p.Source, &p.Destination} {
		*a = netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(2)), byte(r.IntN(40))})
	}
	if r.IntN(2) == 0 {
		p.Source, p.Destination = netip.AddrFrom16([16]byte{0xfd, 15: byte(r.IntN(40))}), netip.AddrFrom16([16]byte{0xfd, 15: byte(r.IntN(40))})
		p.NeighborDiscovery, p.MulticastListener = r.IntN(4) == 0, r.IntN(4) == 0
	}
	return p
}

// The rules of pods that call themselves are linear in the pods and their links.
func TestPairsWithLinks(t *testing.T) {
	const pods = 200
	links, pairs := &ruleset.Set{Name: "ways", Kind: ruleset.Interfaces}, &ruleset.Set{Name: "self4", Family: ruleset.IPv4, Kind: ruleset.Pairs}
	for i := range byte(pods) {
		a := netip.AddrFrom4([4]byte{10, 0, 0, i})
		links.Interfaces = append(links.Interfaces, fmt.Sprintf("pod%03d", i))
		pairs.Pairs = append(pairs.Pairs, ruleset.Pair{Source: a, Destination: a})
	}
	rs := rulesettest.With(rulesettest.Of(rulesettest.Chain("base", ruleset.Forward,
		ruleset.Rule{Family: ruleset.IPv4, InInterface: "ways", Pair: "self4", Verdict: ruleset.Accept}, ruleset.Rule{Verdict: ruleset.Drop})), links, pairs)
	text, err := iptables.TextOf(rs)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(text.Rules[0], "\n-A "); n > 3*pods {
		t.Errorf("%d rules for %d pods", n, pods)
	}
	kernel, err := iptablestest.Of(rs)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []ruleset.Packet{
		{InInterface: "pod007", Source: pairs.Pairs[7].Source, Destination: pairs.Pairs[7].Source},
		{InInterface: "eth0", Source: pairs.Pairs[7].Source, Destination: pairs.Pairs[7].Source},
		{InInterface: "pod007", Source: pairs.Pairs[7].Source, Destination: pairs.Pairs[8].Source},
	} {
		if verdict, err := kernel.Walk(ruleset.Forward, p); err != nil || verdict != ruleset.Walk(rs, ruleset.Forward, p).Verdict {
			t.Errorf("%+v: %v, %v", p, verdict, err)
		}
	}
}

// Of many chains a packet meets some rules only, and the text decides as the ruleset.
func TestManyChains(t *testing.T) {
	const pods = 200
	rs := rulesettest.Of(rulesettest.Chain("base", ruleset.Forward, ruleset.Rule{Family: ruleset.IPv4, DestinationMap: "ingress4"}, ruleset.Rule{Verdict: ruleset.Accept}))
	m := &ruleset.Map{Name: "ingress4", Family: ruleset.IPv4, Chains: map[netip.Addr]string{}}
	for i := range byte(pods) {
		// Every second pod drops.
		chain := rulesettest.Chain(fmt.Sprintf("i4-%03d", i), ruleset.NoHook, ruleset.Rule{Verdict: ruleset.Accept})
		if i%2 == 0 {
			chain.Rules[0].Verdict = ruleset.Drop
		}
		m.Chains[netip.AddrFrom4([4]byte{10, 0, 0, i})] = chain.Name
		rs = rulesettest.With(rs, chain)
	}
	rs = rulesettest.With(rs, m)
	text, err := iptables.TextOf(rs)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(text.Rules[0], "\n-A BERTH-base "); n > 20 {
		t.Errorf("the base chain has %d rules", n)
	}
	kernel, err := iptablestest.Of(rs)
	if err != nil {
		t.Fatal(err)
	}
	for i := range byte(pods + 10) {
		p := ruleset.Packet{Source: netip.AddrFrom4([4]byte{10, 1, 0, 1}), Destination: netip.AddrFrom4([4]byte{10, 0, 0, i})}
		if verdict, err := kernel.Walk(ruleset.Forward, p); err != nil || verdict != ruleset.Walk(rs, ruleset.Forward, p).Verdict {
			t.Errorf("%s: %v, %v", p.Destination, verdict, err)
		}
	}
}
