// SPDX-License-Identifier: Apache-2.0

package table

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/ruleset/rulesettest"
)

// verify fails the test where the kernel's table is not exactly the applied one.
func verify(t *testing.T, table *Table) {
	t.Helper()
	table.verified = 0
	if err := table.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// random makes rulesets with each kind of object, each from the one before.
type random struct {
	*rand.Rand
	rs *ruleset.Ruleset
}

func (r *random) addr(f ruleset.Family) netip.Addr {
	if f == ruleset.IPv4 {
		return netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(2)), byte(r.IntN(40))})
	}
	return netip.AddrFrom16([16]byte{0xfd, 15: byte(r.IntN(40))})
}

func sortedSet[E any](n int, next func() E, compare func(a, b E) int) []E {
	var all []E
	for range n {
		all = append(all, next())
	}
	slices.SortFunc(all, compare)
	return slices.CompactFunc(all, func(a, b E) bool { return compare(a, b) == 0 })
}

func (r *random) set(name string) *ruleset.Set {
	// The name says kind and family, so that most changes are of elements.
	kind, f := ruleset.Kind(name[1]-'0'), ruleset.Family(name[2]-'0')
	s := &ruleset.Set{Name: name, Kind: kind, Family: f}
	n := r.IntN(20)
	switch kind {
	case ruleset.Addresses:
		s.Addresses = sortedSet(n, func() netip.Addr { return r.addr(f) }, netip.Addr.Compare)
	case ruleset.Ranges:
		bounds := sortedSet(2*n, func() netip.Addr { return r.addr(f) }, netip.Addr.Compare)
		for i := 0; i+1 < len(bounds); i += 2 {
			last := len(s.Ranges) - 1
			if last >= 0 && s.Ranges[last].Last.Next() == bounds[i] {
				s.Ranges[last].Last = bounds[i+1]
				continue
			}
			s.Ranges = append(s.Ranges, ruleset.AddressRange{First: bounds[i], Last: bounds[i+1]})
		}
		if r.IntN(4) == 0 {
			all := ruleset.AddressRange{First: netip.IPv4Unspecified(), Last: netip.AddrFrom4([4]byte{255, 255, 255, 255})}
			if f == ruleset.IPv6 {
				all = ruleset.AddressRange{First: netip.IPv6Unspecified(), Last: netip.MustParseAddr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")}
			}
			s.Ranges = []ruleset.AddressRange{all}
		}
	case ruleset.Endpoints:
		s.Endpoints = sortedSet(n, func() ruleset.Endpoint {
			return ruleset.Endpoint{Address: r.addr(f), Protocol: []ruleset.Protocol{ruleset.TCP, ruleset.UDP, ruleset.SCTP}[r.IntN(3)], Port: uint16(1 + r.IntN(3))}
		}, ruleset.Endpoint.Compare)
	case ruleset.Pairs:
		s.Pairs = sortedSet(n, func() ruleset.Pair { return ruleset.Pair{Source: r.addr(f), Destination: r.addr(f)} }, ruleset.Pair.Compare)
	case ruleset.Interfaces:
		s.Interfaces = sortedSet(n, func() string { return fmt.Sprintf("eth%d", r.IntN(30)) }, strings.Compare)
	}
	return s
}

func (r *random) rule() ruleset.Rule {
	f := ruleset.Family(1 + r.IntN(2))
	rule := ruleset.Rule{Family: f, Verdict: []ruleset.Verdict{ruleset.Accept, ruleset.Drop, ruleset.Return, ruleset.Continue}[r.IntN(4)]}
	for _, name := range slices.Sorted(maps.Keys(r.rs.Sets)) {
		s := r.rs.Sets[name]
		if s.Family != f && s.Kind != ruleset.Interfaces || r.IntN(3) > 0 {
			continue
		}
		switch s.Kind {
		case ruleset.Addresses, ruleset.Ranges:
			if r.IntN(2) == 0 {
				rule.Source = name
			} else {
				rule.Destination = name
			}
		case ruleset.Endpoints:
			rule.Endpoint = name
		case ruleset.Pairs:
			rule.Pair = name
		case ruleset.Interfaces:
			rule.InInterface = name
		}
	}
	if r.IntN(2) == 0 {
		rule.Protocol = ruleset.SCTP
		p := uint16(1)
		for range r.IntN(5) {
			p += uint16(2 + r.IntN(3))
			rule.Ports = append(rule.Ports, ruleset.PortRange{First: p, Last: p + uint16(r.IntN(2))})
			p = rule.Ports[len(rule.Ports)-1].Last
		}
	} else if f == ruleset.IPv6 && r.IntN(4) == 0 {
		rule.NeighborDiscovery = r.IntN(2) == 0
		rule.MulticastListener = !rule.NeighborDiscovery
	}
	if r.IntN(2) == 0 {
		rule.Counter = fmt.Sprintf("counter%d", r.IntN(10))
	}
	return rule
}

// leaves are chains that lead nowhere else.
func (r *random) leaves() []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(r.rs.Chains)) {
		if strings.HasPrefix(name, "leaf") {
			all = append(all, name)
		}
	}
	return all
}

func (r *random) addressMap(name string) *ruleset.Map {
	m := &ruleset.Map{Name: name, Family: ruleset.Family(name[1] - '0'), Chains: map[netip.Addr]string{}}
	leaves := r.leaves()
	for range r.IntN(20) {
		m.Chains[r.addr(m.Family)] = leaves[r.IntN(len(leaves))]
	}
	return m
}

// next changes a few objects and returns a ruleset that shares the others.
func (r *random) next() *ruleset.Ruleset {
	r.rs = with(r.rs)
	for range 1 + r.IntN(4) {
		name := fmt.Sprintf("s%d%d-%d", 1+r.IntN(4), 1+r.IntN(2), r.IntN(3))
		if r.IntN(6) == 0 {
			name = fmt.Sprintf("s50-%d", r.IntN(3))
		}
		r.rs.Sets[name] = r.set(name)
		leaf := chain(fmt.Sprintf("leaf%d", r.IntN(12)), ruleset.NoHook)
		for range r.IntN(5) {
			leaf.Rules = append(leaf.Rules, r.rule())
		}
		r.rs.Chains[leaf.Name] = leaf
		m := fmt.Sprintf("m%d-%d", 1+r.IntN(2), r.IntN(3))
		r.rs.Maps[m] = r.addressMap(m)
	}
	base := chain("base", ruleset.Forward, ruleset.Rule{Established: true, Verdict: ruleset.Accept})
	for _, name := range slices.Sorted(maps.Keys(r.rs.Maps)) {
		base.Rules = append(base.Rules, ruleset.Rule{Family: r.rs.Maps[name].Family, SourceMap: name})
	}
	for _, leaf := range r.leaves() {
		if r.IntN(3) > 0 {
			base.Rules = append(base.Rules, ruleset.Rule{Verdict: ruleset.Jump, Target: leaf})
		}
	}
	r.rs.Chains["base"] = base
	r.rs.Chains["second"] = chain("second", ruleset.Forward)
	r.rs.Chains["output"] = chain("output", ruleset.Output, ruleset.Rule{Loopback: true, Verdict: ruleset.Accept})
	r.sweep()
	return r.rs
}

// sweep removes some of the objects that nothing needs.
func (r *random) sweep() {
	used := map[string]bool{}
	for _, c := range r.rs.Chains {
		for _, rule := range c.Rules {
			for _, name := range []string{rule.Source, rule.Destination, rule.Endpoint, rule.Pair, rule.InInterface, rule.SourceMap, rule.Target} {
				used[name] = true
			}
		}
	}
	for _, m := range r.rs.Maps {
		for _, name := range m.Chains {
			used[name] = true
		}
	}
	drop := func(name string) bool { return !used[name] && r.IntN(2) == 0 }
	maps.DeleteFunc(r.rs.Sets, func(name string, _ *ruleset.Set) bool { return drop(name) })
	maps.DeleteFunc(r.rs.Chains, func(name string, _ *ruleset.Chain) bool { return strings.HasPrefix(name, "leaf") && drop(name) })
}

// neverRefused returns a context that fails the test where Apply replaces all, because the kernel
// refused a difference.
func neverRefused(t *testing.T) context.Context {
	return klog.NewContext(t.Context(), funcr.New(func(_, text string) { t.Error(text) }, funcr.Options{}))
}

// However the kernel came to a ruleset, it has that ruleset and nothing else, and counters stay as long
// as rules name them.
func TestDifferences(t *testing.T) {
	netnstest.Need(t)
	node := netnstest.New(t)
	table := New(node.Path())
	for seed := range uint64(4) {
		r := &random{rand.New(rand.NewPCG(seed, 0)), of()}
		for step := range 60 {
			rs := r.next()
			if err := rulesettest.Check(rs); err != nil {
				t.Fatalf("seed %d, step %d: the test makes a wrong ruleset: %v", seed, step, err)
			}
			if before := table.applied; before != nil {
				if _, _, ok := transition(before, rs); !ok {
					t.Fatalf("seed %d, step %d: no difference", seed, step)
				}
			}
			if err := table.Apply(neverRefused(t), rs); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			verify(t, table)
			counters, err := table.Counters(t.Context())
			if err != nil || len(counters) != len(table.applied.counters) {
				t.Fatalf("seed %d, step %d: %d counters, want %d, error %v", seed, step, len(counters), len(table.applied.counters), err)
			}
			if r.IntN(10) == 0 {
				// The agent begins anew.
				table = New(node.Path())
			}
		}
	}
}

// Verify notices another program's changes of the table, and the next Apply repairs them.
func TestVerify(t *testing.T) {
	netnstest.Need(t)
	node := netnstest.New(t)
	rs := with(isolated(),
		&ruleset.Set{Name: "blocks", Family: ruleset.IPv4, Kind: ruleset.Ranges, Ranges: []ruleset.AddressRange{{First: netip.MustParseAddr("10.1.0.0"), Last: netip.MustParseAddr("10.1.0.9")}}},
		chain("p-more", ruleset.NoHook,
			ruleset.Rule{Family: ruleset.IPv4, Source: "blocks", Protocol: ruleset.TCP, Ports: []ruleset.PortRange{{First: 1, Last: 2}, {First: 9, Last: 9}}, Verdict: ruleset.Accept},
			ruleset.Rule{Family: ruleset.IPv6, NeighborDiscovery: true, Verdict: ruleset.Accept}))
	for _, tc := range []struct{ name, command, found string }{
		{"everything flushed", "flush ruleset", "is missing"},
		{"table deleted", "delete table inet berth-policy", "is missing"},
		{"rules of a chain flushed", "flush chain inet berth-policy p-web", "chain p-web has other rules"},
		{"rule added", "add rule inet berth-policy i-server accept", "chain i-server has other rules"},
		{"rule inserted", "insert rule inet berth-policy ingress accept", "chain ingress has other rules"},
		{"chain added", "add chain inet berth-policy more", "chain more is new"},
		{"set added", "add set inet berth-policy more { type ipv4_addr; }", "set more is new"},
		{"element deleted", "delete element inet berth-policy peers4 { 10.0.1.2 }", "set peers4 lacks elements"},
		{"element added", "add element inet berth-policy peers6 { fd00::66 }", "set peers6 has other elements"},
		{"interval added", "add element inet berth-policy blocks { 10.2.0.0/24 }", "set blocks has other elements"},
		{"interval deleted", "delete element inet berth-policy blocks { 10.1.0.0-10.1.0.9 }", "set blocks lacks elements"},
		{"map flushed", "flush map inet berth-policy ingress4", "set ingress4 lacks elements"},
		{"map leads elsewhere", "delete element inet berth-policy ingress4 { 10.0.2.2 }; add element inet berth-policy ingress4 { 10.0.2.2 : goto p-web }", "set ingress4 has other elements"},
		{"map has another verdict", "delete element inet berth-policy ingress4 { 10.0.2.2 }; add element inet berth-policy ingress4 { 10.0.2.2 : jump i-server }", "set ingress4 has other elements"},
		{"map accepts", "delete element inet berth-policy ingress4 { 10.0.2.2 }; add element inet berth-policy ingress4 { 10.0.2.2 : accept }", "set ingress4 has other elements"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			table := New(node.Path())
			for _, known := range []bool{false, true} {
				// All names are as in the ruleset.
				if err := table.Remove(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := table.Apply(t.Context(), rs); err != nil {
					t.Fatal(err)
				}
				if !known {
					table.verified = 0
				} else if table.verified == 0 {
					t.Error("after Apply it is not known that nobody else changed anything")
				}
				if err := table.Verify(t.Context()); err != nil {
					t.Fatal(err)
				}
				if out, err := node.Command("nft", tc.command); err != nil {
					t.Fatal(err, out)
				}
				err := table.Verify(t.Context())
				if !errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), tc.found) {
					t.Errorf("Verify() = %v, want %q", err, tc.found)
				}
			}
			if err := table.Apply(t.Context(), rs); err != nil {
				t.Fatal(err)
			}
			verify(t, table)
		})
	}
}

// Changes of other tables are no changes of this one.
func TestVerifyOthers(t *testing.T) {
	netnstest.Need(t)
	node := netnstest.New(t)
	table := New(node.Path())
	if err := table.Verify(t.Context()); !errors.Is(err, ErrChanged) {
		t.Errorf("before Apply: %v", err)
	}
	for i := range 3 {
		if err := table.Apply(t.Context(), with(isolated(), addresses("peers4", ruleset.IPv4, both[0].server.Next()))); err != nil {
			t.Fatal(err)
		}
		if out, err := node.Command("nft", fmt.Sprintf("add table ip other%d", i)); err != nil {
			t.Fatal(err, out)
		}
		if err := table.Verify(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// An Apply that the kernel refuses changes nothing, says which object it was, and the next one
// is whole.
func TestRefused(t *testing.T) {
	netnstest.Need(t)
	node := netnstest.New(t)
	table := New(node.Path())
	if err := table.Apply(t.Context(), isolated()); err != nil {
		t.Fatal(err)
	}
	// A loop of chains, which only the kernel knows to refuse in all ways.
	wrong := with(isolated(), chain("p-web", ruleset.NoHook, ruleset.Rule{Verdict: ruleset.Jump, Target: "i-server"}))
	for range 2 {
		if err := table.Apply(t.Context(), wrong); err == nil || !strings.Contains(err.Error(), "chain ") {
			t.Errorf("Apply() = %v, want an error that names the chain", err)
		}
		missing := with(isolated(), chain("p-web", ruleset.NoHook, ruleset.Rule{Family: ruleset.IPv4, Source: "nowhere", Verdict: ruleset.Accept}))
		if err := table.Apply(t.Context(), missing); err == nil || !strings.Contains(err.Error(), "a rule of chain p-web") {
			t.Errorf("Apply() = %v, want an error that names the chain", err)
		}
		table.applied = &applied{rs: isolated(), constants: map[string]int{}, counters: map[string]int{"web": 6, "denied": 1}}
		verify(t, table)
		table.applied = nil
	}
	if err := table.Apply(t.Context(), closed()); err != nil {
		t.Fatal(err)
	}
	verify(t, table)
}

// Apply replaces a table of our name that another program left.
func TestReplaceAnything(t *testing.T) {
	netnstest.Need(t)
	for _, tc := range []struct{ name, commands string }{
		{"another hook", "add table inet berth-policy; add chain inet berth-policy ingress { type filter hook input priority 5; policy drop; }"},
		{"no base chain", "add table inet berth-policy; add chain inet berth-policy ingress; add chain inet berth-policy x; add rule inet berth-policy x jump ingress"},
		{"sets of other types", "add table inet berth-policy; add set inet berth-policy peers4 { type ipv6_addr; }; add set inet berth-policy cut4 { type ipv4_addr; }; add chain inet berth-policy x; add rule inet berth-policy x ip saddr @cut4 drop"},
		{"other objects", "add table inet berth-policy; add quota inet berth-policy web { 10 mbytes; }; add map inet berth-policy m { type ipv4_addr : quota; }"},
		{"dormant", "add table inet berth-policy { flags dormant; }"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			node := netnstest.New(t)
			if out, err := node.Command("nft", tc.commands); err != nil {
				t.Fatal(err, out)
			}
			table := New(node.Path())
			if err := table.Apply(t.Context(), isolated()); err != nil {
				t.Fatal(err)
			}
			verify(t, table)
		})
	}
}

// A ruleset with sets far beyond the size of one message, and with more than the usual buffers
// have room for.
func TestBig(t *testing.T) {
	netnstest.Need(t)
	node := netnstest.New(t)
	table := New(node.Path())
	big := addresses("peers6", ruleset.IPv6)
	addr := netip.MustParseAddr("fd00:1::2")
	for range 300_000 {
		big.Addresses = append(big.Addresses, addr)
		addr = addr.Next()
	}
	ranges := &ruleset.Set{Name: "blocks", Family: ruleset.IPv4, Kind: ruleset.Ranges}
	for four := netip.MustParseAddr("11.0.0.0"); len(ranges.Ranges) < 5000; four = four.Next().Next().Next() {
		ranges.Ranges = append(ranges.Ranges, ruleset.AddressRange{First: four, Last: four.Next()})
	}
	rs := with(isolated(), big, ranges)
	for _, step := range []struct {
		name string
		rs   *ruleset.Ruleset
	}{
		{"all", rs},
		{"half", with(rs, addresses("peers6", ruleset.IPv6, big.Addresses[150_000:]...), &ruleset.Set{Name: "blocks", Family: ruleset.IPv4, Kind: ruleset.Ranges, Ranges: ranges.Ranges[7:]})},
		{"all again", rs},
		{"none", closed()},
	} {
		if err := table.Apply(t.Context(), step.rs); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		verify(t, table)
	}
}
