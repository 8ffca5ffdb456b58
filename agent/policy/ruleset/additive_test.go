// SPDX-License-Identifier: Apache-2.0

package ruleset_test

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/ruleset/rulesettest"
	"github.com/berth-dev/berth/ipam/seedtest"
)

func TestAdditive(t *testing.T) {
	isolated := rulesettest.Isolated()
	peers := func(all ...string) *ruleset.Set {
		s := &ruleset.Set{Name: "peers4", Family: ruleset.IPv4, Kind: ruleset.Addresses}
		for _, text := range all {
			s.Addresses = append(s.Addresses, addr(text))
		}
		return s
	}
	ranges := func(all ...string) *ruleset.Set {
		s := &ruleset.Set{Name: "peers4", Family: ruleset.IPv4, Kind: ruleset.Ranges}
		for i := 0; i < len(all); i += 2 {
			s.Ranges = append(s.Ranges, ruleset.AddressRange{First: addr(all[i]), Last: addr(all[i+1])})
		}
		return s
	}
	rule := func(v ruleset.Verdict) *ruleset.Chain {
		return rules("p-web", ruleset.NoHook, ruleset.Rule{Family: ruleset.IPv4, Source: "peers4", Protocol: ruleset.TCP, Verdict: v})
	}
	both := rules("p-web", ruleset.NoHook, rule(ruleset.Accept).Rules[0], rule(ruleset.Drop).Rules[0])
	governed := &ruleset.Map{Name: "ingress4", Family: ruleset.IPv4, Chains: map[netip.Addr]string{addr("10.0.2.2"): "i-server", addr("10.0.2.3"): "i-server"}}
	for _, tc := range []struct {
		name string
		// on has the changes of isolated that both rulesets have; old and now have what differs.
		// back says whether the change of now to old is additive.
		on         *ruleset.Chain
		old, now   []any
		want, back bool
	}{
		{name: "nothing", want: true, back: true},
		{name: "a peer", old: []any{peers("10.0.1.2")}, now: []any{peers("10.0.1.2", "10.0.1.3")}, want: true},
		{name: "another peer", old: []any{peers("10.0.1.2")}, now: []any{peers("10.0.1.3")}},
		{name: "the same peer anew", old: []any{peers("10.0.1.2")}, now: []any{peers("10.0.1.2")}, want: true, back: true},
		{name: "a denied peer", on: rule(ruleset.Drop), old: []any{peers("10.0.1.2")}, now: []any{peers("10.0.1.2", "10.0.1.3")}, back: true},
		{name: "a peer that is passed to the next tier", on: rule(ruleset.Return), old: []any{peers("10.0.1.2")}, now: []any{peers("10.0.1.2", "10.0.1.3")}},
		{name: "a peer that is allowed and denied", on: both, old: []any{peers("10.0.1.2")}, now: []any{peers("10.0.1.2", "10.0.1.3")}},
		{name: "a block, of which nobody can tell", old: []any{ranges("10.0.1.0", "10.0.1.9")}, now: []any{ranges("10.0.0.0", "10.0.1.9")}},
		{name: "a block in place of peers", old: []any{peers("10.0.1.2")}, now: []any{ranges("10.0.0.0", "10.0.1.9")}},
		{name: "a rule, of which nobody can tell", now: []any{rule(ruleset.Accept)}},
		{name: "a governed pod", now: []any{governed}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			base := isolated
			if tc.on != nil {
				base = rulesettest.With(base, tc.on)
			}
			old, now := rulesettest.With(base, tc.old...), rulesettest.With(base, tc.now...)
			for _, rs := range []*ruleset.Ruleset{old, now} {
				if err := rulesettest.Check(rs); err != nil {
					t.Fatal(err)
				}
			}
			if got := ruleset.Additive(old, now); got != tc.want {
				t.Errorf("Additive() = %t, want %t", got, tc.want)
			}
			if got := ruleset.Additive(now, old); got != tc.back {
				t.Errorf("back: Additive() = %t, want %t", got, tc.back)
			}
		})
	}
}

// Each set that a rule can name counts, and each kind of elements.
func TestAdditiveFields(t *testing.T) {
	additive := func(rule ruleset.Rule, old, set *ruleset.Set) bool {
		rs := of(rules("forward", ruleset.Forward, rule))
		return ruleset.Additive(rulesettest.With(rs, old), rulesettest.With(rs, set))
	}
	named := 0
	for field := range reflect.TypeFor[ruleset.Rule]().Fields() {
		rule := ruleset.Rule{Verdict: ruleset.Accept}
		f := reflect.ValueOf(&rule).Elem().FieldByIndex(field.Index)
		if f.Kind() != reflect.String || slices.Contains([]string{"SourceMap", "DestinationMap", "Target", "Counter"}, field.Name) {
			continue
		}
		named++
		f.SetString("set")
		none, some := &ruleset.Set{Name: "set"}, &ruleset.Set{Name: "set", Addresses: []netip.Addr{addr("10.0.0.1")}}
		if additive(rule, some, none) || !additive(rule, none, some) {
			t.Errorf("%s does not count", field.Name)
		}
	}
	if named != 8 {
		t.Errorf("%d fields name sets", named)
	}
	for field := range reflect.TypeFor[ruleset.Set]().Fields() {
		if field.Type.Kind() != reflect.Slice {
			continue
		}
		some, none := &ruleset.Set{Name: "set"}, &ruleset.Set{Name: "set"}
		if field.Name == "Ranges" {
			some.Kind, none.Kind = ruleset.Ranges, ruleset.Ranges
		}
		f := reflect.ValueOf(some).Elem().FieldByIndex(field.Index)
		f.Set(reflect.MakeSlice(field.Type, 1, 1))
		if additive(ruleset.Rule{Source: "set", Verdict: ruleset.Accept}, some, none) {
			t.Errorf("elements of %s do not count", field.Name)
		}
	}
}

// small makes rulesets for few packets, so that all can be tried.
type small struct {
	*rand.Rand
	*ruleset.Ruleset
}

func (r small) address() netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(5))}) }

func (r small) set(name string) *ruleset.Set {
	s := &ruleset.Set{Name: name, Family: ruleset.IPv4, Kind: ruleset.Addresses}
	if name == "ranges" {
		first := r.address()
		s.Kind, s.Ranges = ruleset.Ranges, []ruleset.AddressRange{{First: first, Last: first.Next()}}
		return s
	}
	for range r.IntN(5) {
		s.Addresses = append(s.Addresses, r.address())
	}
	slices.SortFunc(s.Addresses, netip.Addr.Compare)
	s.Addresses = slices.Compact(s.Addresses)
	return s
}

func (r small) rule(targets ...string) ruleset.Rule {
	sets := []string{"", "a", "b", "ranges"}
	rule := ruleset.Rule{
		Family: ruleset.IPv4, Source: sets[r.IntN(4)], Destination: sets[r.IntN(4)],
		Verdict: []ruleset.Verdict{ruleset.Accept, ruleset.Drop, ruleset.Accept, ruleset.Drop, ruleset.Return, ruleset.Continue}[r.IntN(6)],
	}
	if r.IntN(2) == 0 {
		rule.Protocol = ruleset.TCP
		for port := uint16(1); port <= 5; port += 2 {
			if r.IntN(2) == 0 {
				rule.Ports = append(rule.Ports, ruleset.PortRange{First: port, Last: port})
			}
		}
	}
	if len(targets) > 0 && r.IntN(2) == 0 {
		rule.Verdict, rule.Target = []ruleset.Verdict{ruleset.Jump, ruleset.Goto}[r.IntN(2)], targets[r.IntN(len(targets))]
	}
	return rule
}

// targets are the chains to which the rules of a chain may lead.
var targets = map[string][]string{"base": {"pod1", "pod2", "leaf1"}, "pod1": {"leaf1", "leaf2"}, "pod2": {"leaf1", "leaf2"}, "leaf1": nil, "leaf2": nil}

func (r small) first() *ruleset.Ruleset {
	rs := of()
	for name, to := range targets {
		rs.Chains[name] = rules(name, ruleset.NoHook)
		for range r.IntN(4) {
			rs.Chains[name].Rules = append(rs.Chains[name].Rules, r.rule(to...))
		}
	}
	for _, name := range []string{"a", "b", "ranges"} {
		rs.Sets[name] = r.set(name)
	}
	rs.Maps["pods"] = &ruleset.Map{Name: "pods", Family: ruleset.IPv4, Chains: map[netip.Addr]string{r.address(): "pod1", r.address(): "pod2"}}
	rs.Chains["base"].Hook = ruleset.Forward
	dispatch := ruleset.Rule{Family: ruleset.IPv4, SourceMap: "pods"}
	rs.Chains["base"].Rules = slices.Insert(rs.Chains["base"].Rules, r.IntN(len(rs.Chains["base"].Rules)+1), dispatch)
	return rs
}

// next returns a ruleset with a small change.
func (r small) next() *ruleset.Ruleset {
	switch name := slices.Sorted(maps.Keys(targets))[r.IntN(len(targets))]; r.IntN(6) {
	case 0, 1:
		return rulesettest.With(r.Ruleset, r.set([]string{"a", "b", "ranges"}[r.IntN(3)]))
	case 2:
		m := *r.Maps["pods"]
		m.Chains = maps.Clone(m.Chains)
		if a := r.address(); r.IntN(2) == 0 {
			delete(m.Chains, a)
		} else {
			m.Chains[a] = []string{"pod1", "pod2"}[r.IntN(2)]
		}
		return rulesettest.With(r.Ruleset, &m)
	default:
		c := *r.Chains[name]
		c.Rules = slices.Clone(c.Rules)
		switch at := r.IntN(len(c.Rules) + 1); {
		case at == len(c.Rules) || c.Rules[at].SourceMap != "" || r.IntN(3) == 0:
			c.Rules = slices.Insert(c.Rules, at, r.rule(targets[name]...))
		case r.IntN(2) == 0:
			c.Rules = slices.Delete(c.Rules, at, at+1)
		default:
			c.Rules[at] = r.rule(targets[name]...)
		}
		return rulesettest.With(r.Ruleset, &c)
	}
}

// worse returns a packet that one ruleset accepts and another drops.
func worse(old, rs *ruleset.Ruleset) (p ruleset.Packet, found bool) {
	before, after := ruleset.NewWalker(old, ruleset.Forward), ruleset.NewWalker(rs, ruleset.Forward)
	for source := range byte(6) {
		for destination := range byte(6) {
			for port := range uint16(6) {
				p = ruleset.Packet{Source: netip.AddrFrom4([4]byte{10, 0, 0, source}), Destination: netip.AddrFrom4([4]byte{10, 0, 0, destination}), Protocol: ruleset.TCP, Port: port}
				if port == 0 {
					p.Protocol = ruleset.UDP
				}
				if before.Walk(p).Verdict == ruleset.Accept && after.Walk(p).Verdict == ruleset.Drop {
					return p, true
				}
			}
		}
	}
	return p, false
}

// No packet that a ruleset accepts is dropped after an additive change.
func TestAdditiveWalk(t *testing.T) {
	r := small{Rand: rand.New(rand.NewPCG(seedtest.Seed(t), 0))}
	additive, harmless, harmful := 0, 0, 0
	for range 800 {
		r.Ruleset = r.first()
		for range 5 {
			next := r.next()
			p, isWorse := worse(r.Ruleset, next)
			is := ruleset.Additive(r.Ruleset, next)
			switch {
			case is && isWorse:
				t.Fatalf("an additive change has %+v dropped:\n%s\n%s", p, rulesettest.Text(r.Ruleset), rulesettest.Text(next))
			case is:
				additive++
			case isWorse:
				harmful++
			default:
				harmless++
			}
			r.Ruleset = next
		}
	}
	t.Logf("%d changes are additive, %d have packets dropped, and %d do not", additive, harmful, harmless)
	if harmful < 200 || additive < 20 {
		t.Errorf("%d changes are additive, %d have packets dropped, and %d do not", additive, harmful, harmless)
	}
}
