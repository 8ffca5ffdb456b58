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
	ingress := func(all map[string]string) *ruleset.Map {
		m := &ruleset.Map{Name: "ingress4", Family: ruleset.IPv4, Chains: map[netip.Addr]string{}}
		for a, chain := range all {
			m.Chains[addr(a)] = chain
		}
		return m
	}
	jump := ruleset.Rule{Verdict: ruleset.Jump, Target: "p-web"}
	drop, accept := ruleset.Rule{Verdict: ruleset.Drop}, ruleset.Rule{Verdict: ruleset.Accept}
	to := func(ports ...uint16) ruleset.Rule {
		r := ruleset.Rule{Family: ruleset.IPv4, Source: "peers4", Protocol: ruleset.TCP, Verdict: ruleset.Accept}
		for _, p := range ports {
			r.Ports = append(r.Ports, ruleset.PortRange{First: p, Last: p})
		}
		return r
	}
	denied := to(22)
	denied.Verdict = ruleset.Drop
	returned := to(22)
	returned.Verdict = ruleset.Return
	web := func(all ...ruleset.Rule) *ruleset.Chain { return rules("p-web", ruleset.NoHook, all...) }
	server := func(all ...ruleset.Rule) *ruleset.Chain { return rules("i-server", ruleset.NoHook, all...) }
	more := rules("p-more", ruleset.NoHook, to(81))
	deny := rules("p-more", ruleset.NoHook, denied)
	for _, tc := range []struct {
		name string
		// old and now have the changes of isolated; back says whether the change of now to old is
		// additive.
		old, now   []any
		want, back bool
	}{
		{name: "nothing", want: true, back: true},
		{name: "the same anew", now: []any{server(isolated.Chains["i-server"].Rules...)}, want: true, back: true},
		{name: "another counter", now: []any{server(jump, ruleset.Rule{Counter: "other", Verdict: ruleset.Drop})}, want: true, back: true},
		{name: "a peer", old: []any{peers("10.0.1.2")}, now: []any{peers("10.0.1.2", "10.0.1.3")}, want: true},
		{name: "another peer", old: []any{peers("10.0.1.2")}, now: []any{peers("10.0.1.3")}},
		{name: "a denied peer", old: []any{web(denied), peers("10.0.1.2")}, now: []any{web(denied), peers("10.0.1.2", "10.0.1.3")}, back: true},
		{name: "a peer that is passed to the next tier", old: []any{web(returned, to(80)), peers("10.0.1.2")}, now: []any{web(returned, to(80)), peers("10.0.1.2", "10.0.1.3")}},
		{name: "a peer that is allowed and denied", old: []any{web(to(80), denied), peers("10.0.1.2")}, now: []any{web(to(80), denied), peers("10.0.1.2", "10.0.1.3")}},
		{name: "a wider block", old: []any{ranges("10.0.1.0", "10.0.1.9")}, now: []any{ranges("10.0.0.0", "10.0.1.9", "10.0.3.0", "10.0.3.9")}, want: true},
		{name: "an exception of a block", old: []any{ranges("10.0.1.0", "10.0.1.9")}, now: []any{ranges("10.0.1.0", "10.0.1.4", "10.0.1.6", "10.0.1.9")}, back: true},
		{name: "a block that moves", old: []any{ranges("10.0.1.0", "10.0.1.9")}, now: []any{ranges("10.0.1.1", "10.0.1.10")}},
		{name: "a block in place of peers", old: []any{peers("10.0.1.2")}, now: []any{ranges("10.0.0.0", "10.0.1.9")}},
		{name: "a port", old: []any{web(to(80))}, now: []any{web(to(80, 443))}, want: true},
		{name: "another port", old: []any{web(to(80))}, now: []any{web(to(443))}},
		{name: "all ports", old: []any{web(to(80))}, now: []any{web(to())}, want: true},
		{name: "all peers", old: []any{web(to(80))}, now: []any{web(ruleset.Rule{Family: ruleset.IPv4, Protocol: ruleset.TCP, Ports: to(80).Ports, Verdict: ruleset.Accept})}, want: true},
		{name: "a rule that accepts", old: []any{web(to(80))}, now: []any{web(to(81), to(80))}, want: true},
		{name: "a rule that drops", old: []any{web(to(80))}, now: []any{web(denied, to(80))}, back: true},
		{name: "a rule that passes to the next tier", old: []any{web(to(80))}, now: []any{web(returned, to(80))}},
		{name: "rules in another order, of which nobody can tell", old: []any{web(denied, to(22))}, now: []any{web(to(22), denied)}},
		{name: "a policy that accepts", old: []any{more}, now: []any{more, server(jump, ruleset.Rule{Verdict: ruleset.Jump, Target: "p-more"}, drop)}, want: true},
		{name: "a policy that drops", old: []any{deny}, now: []any{deny, server(ruleset.Rule{Verdict: ruleset.Jump, Target: "p-more"}, jump, drop)}, back: true},
		{name: "isolation", old: []any{server(jump, accept)}, now: []any{server(jump, drop)}, back: true},
		{name: "a governed pod", now: []any{ingress(map[string]string{"10.0.2.2": "i-server", "10.0.2.3": "i-server"})}, back: true},
		{name: "a governed pod to which everything may go", old: []any{server(jump)}, now: []any{server(jump), ingress(map[string]string{"10.0.2.2": "i-server", "10.0.2.3": "i-server"})}, want: true, back: true},
		{name: "another chain of a pod", old: []any{rules("i-other", ruleset.NoHook, drop)}, now: []any{rules("i-other", ruleset.NoHook, drop), ingress(map[string]string{"10.0.2.2": "i-other"})}, back: true},
		{name: "a base chain that drops", now: []any{rules("second", ruleset.Forward, drop)}, back: true},
		{name: "an established connection", old: []any{rules("second", ruleset.Forward, ruleset.Rule{Established: true, Verdict: ruleset.Accept}, drop)}, now: []any{rules("second", ruleset.Forward, drop)}, back: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			old, now := rulesettest.With(isolated, tc.old...), rulesettest.With(isolated, tc.now...)
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

// Each condition of a rule and each kind of elements counts.
func TestAdditiveFields(t *testing.T) {
	of := func(rule ruleset.Rule, set *ruleset.Set) *ruleset.Ruleset {
		rs := of(rules("forward", ruleset.Forward, rule, ruleset.Rule{Verdict: ruleset.Drop}))
		rs.Sets[set.Name] = set
		return rs
	}
	for field := range reflect.TypeFor[ruleset.Rule]().Fields() {
		rule := ruleset.Rule{Verdict: ruleset.Accept}
		switch f := reflect.ValueOf(&rule).Elem().FieldByIndex(field.Index); {
		case slices.Contains([]string{"SourceMap", "DestinationMap", "Verdict", "Target", "Counter", "Origin"}, field.Name):
			continue
		case f.Kind() == reflect.String:
			f.SetString("set")
		case f.Kind() == reflect.Bool:
			f.SetBool(true)
		case f.CanUint():
			f.SetUint(1)
		case f.Kind() == reflect.Slice:
			f.Set(reflect.MakeSlice(field.Type, 1, 1))
		}
		set := &ruleset.Set{Name: "set"}
		wide, narrow := of(ruleset.Rule{Verdict: ruleset.Accept}, set), of(rule, set)
		if ruleset.Additive(wide, narrow) || !ruleset.Additive(narrow, wide) {
			t.Errorf("%s does not count", field.Name)
		}
	}
	for field := range reflect.TypeFor[ruleset.Set]().Fields() {
		if field.Type.Kind() != reflect.Slice {
			continue
		}
		some, none := &ruleset.Set{Name: "set"}, &ruleset.Set{Name: "set"}
		f := reflect.ValueOf(some).Elem().FieldByIndex(field.Index)
		f.Set(reflect.MakeSlice(field.Type, 1, 1))
		rule := ruleset.Rule{Source: "set", Verdict: ruleset.Accept}
		if ruleset.Additive(of(rule, some), of(rule, none)) {
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

// No packet that a ruleset accepts is dropped after an additive change, and most changes after
// which none is are known to be additive.
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
	if harmful < 200 || additive < harmless {
		t.Errorf("%d changes are additive, %d have packets dropped, and %d do not", additive, harmful, harmless)
	}
}
