// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"cmp"
	"net/netip"
	"slices"
)

// Additive reports whether a ruleset accepts all packets that an older ruleset accepts. It compares
// the rules in their order, so false may also mean that it cannot tell. Unchanged objects cost
// little.
func Additive(old, rs *Ruleset) bool {
	w := &widening{old: old, rs: rs, chains: map[[2]string]bool{}, sets: map[string]relation{}, only: map[reach]bool{}}
	for _, hook := range []Hook{Forward, Input, Output} {
		for _, base := range rs.Bases(hook) {
			// A packet passes if each base chain accepts it, in any order.
			if before := old.Chains[base.Name]; before == nil || before.Hook != hook || !w.chain(before, base) {
				return false
			}
		}
	}
	return true
}

// widening compares two rulesets and remembers the results by names.
type widening struct {
	old, rs *Ruleset
	chains  map[[2]string]bool
	sets    map[string]relation
	only    map[reach]bool
}

// reach is a chain of either ruleset, and a verdict that it may reach.
type reach struct {
	rs      *Ruleset
	chain   string
	verdict Verdict
}

// relation compares a condition with its older version: wider says that it matches at least the
// same packets, narrower that it matches at most the same packets.
type relation struct{ wider, narrower bool }

func (r relation) and(other relation) relation {
	return relation{r.wider && other.wider, r.narrower && other.narrower}
}

// chain reports whether no packet fares worse in a chain than in an older chain: a drop is worse
// than the end of the chain, which is worse than an accept.
func (w *widening) chain(old, c *Chain) bool {
	key := [2]string{old.Name, c.Name}
	if known, ok := w.chains[key]; ok {
		return known
	}
	w.chains[key] = w.rules(old, c)
	return w.chains[key]
}

// rules goes through both chains: each rule of a chain is paired with a rule of the other chain, or
// may be missing there. It pairs rules at both ends first, because most changes are in one place.
func (w *widening) rules(old, c *Chain) bool {
	pair := func(i, j int) bool {
		before, now := &old.Rules[i], &c.Rules[j]
		// A renamed chain may be compared unless the other side also leads to a chain of its name.
		if before.Target != now.Target && (leadsTo(c, before.Target) || leadsTo(old, now.Target)) {
			return false
		}
		return w.rule(before, now, c.Rules[j+1:], c.Hook != NoHook)
	}
	i, j, was, is := 0, 0, len(old.Rules), len(c.Rules)
	for i < was && j < is && pair(i, j) {
		i, j = i+1, j+1
	}
	for i < was && j < is && pair(was-1, is-1) {
		was, is = was-1, is-1
	}
	for i < was || j < is {
		switch {
		case i < was && j < is && pair(i, j):
			i, j = i+1, j+1
		case i < was && w.mayDiffer(w.old, &old.Rules[i], Drop, Accept):
			i++
		case j < is && w.mayDiffer(w.rs, &c.Rules[j], Accept, Drop):
			j++
		default:
			return false
		}
	}
	return true
}

func leadsTo(c *Chain, target string) bool {
	return slices.ContainsFunc(c.Rules, func(r Rule) bool { return r.Target == target })
}

// mayDiffer reports whether a rule may be missing in the other ruleset without harm for its
// packets: it reaches the verdict to, and never the verdict never.
func (w *widening) mayDiffer(rs *Ruleset, r *Rule, to, never Verdict) bool {
	return !r.isDispatch() && (r.Verdict == to || r.Verdict == Continue || r.Verdict == Jump && !w.comesTo(rs, r.Target, never))
}

// comesTo reports whether a chain, or a chain to which it leads, has a rule with the verdict.
func (w *widening) comesTo(rs *Ruleset, chain string, v Verdict) bool {
	key := reach{rs, chain, v}
	if known, ok := w.only[key]; ok {
		return known
	}
	w.only[key] = slices.ContainsFunc(rs.Chains[chain].Rules, func(r Rule) bool {
		// Nobody asks about chains that lead to maps; they may reach any verdict.
		return r.isDispatch() || r.Verdict == v || r.Target != "" && w.comesTo(rs, r.Target, v)
	})
	return w.only[key]
}

func (r *Rule) isDispatch() bool { return r.SourceMap != "" || r.DestinationMap != "" }

// rule reports whether a rule may replace an older rule, before the rest of its chain.
func (w *widening) rule(old, r *Rule, rest []Rule, isBase bool) bool {
	if old.isDispatch() || r.isDispatch() {
		return old.SourceMap == r.SourceMap && old.DestinationMap == r.DestinationMap && old.Family == r.Family &&
			w.lookup(cmp.Or(r.SourceMap, r.DestinationMap), rest, isBase)
	}
	if old.Verdict != r.Verdict {
		return false
	}
	match := w.match(old, r)
	switch r.Verdict {
	case Continue:
		return true
	case Accept:
		return match.wider
	case Drop:
		return match.narrower
	case Jump, Goto:
		return match.wider && match.narrower && w.chain(w.old.Chains[old.Target], w.rs.Chains[r.Target])
	}
	return match.wider && match.narrower
}

// lookup reports whether no packet fares worse with a map than before. A packet without an element
// in the map goes through the rest of its chain.
func (w *widening) lookup(name string, rest []Rule, isBase bool) bool {
	was, is := w.old.Maps[name], w.rs.Maps[name]
	if was.Family != is.Family {
		return false
	}
	// At the end of a base chain packets are accepted.
	passes := isBase && !slices.ContainsFunc(rest, func(r Rule) bool {
		return (r.Family == AnyFamily || r.Family == is.Family) && r.Verdict != Accept && (r.isDispatch() || r.Verdict != Continue)
	})
	for a, before := range was.Chains {
		now, stays := is.Chains[a]
		if !stays && !passes || stays && !w.chain(w.old.Chains[before], w.rs.Chains[now]) {
			return false
		}
	}
	for a, now := range is.Chains {
		if _, was := was.Chains[a]; !was && (!isBase || w.comesTo(w.rs, now, Drop)) {
			return false
		}
	}
	return true
}

// match compares the conditions of two rules.
func (w *widening) match(old, r *Rule) relation {
	all := relation{true, true}
	for _, flags := range [][2]bool{
		{old.Established, r.Established},
		{old.NeighborDiscovery, r.NeighborDiscovery},
		{old.MulticastListener, r.MulticastListener},
		{old.Loopback, r.Loopback},
		{old.LocalSource, r.LocalSource},
	} {
		all = all.and(relation{flags[0] || !flags[1], flags[1] || !flags[0]})
	}
	for _, names := range [][2]string{
		{old.InInterface, r.InInterface},
		{old.OutInterface, r.OutInterface},
		{old.Source, r.Source},
		{old.Destination, r.Destination},
		{old.Endpoint, r.Endpoint},
		{old.Pair, r.Pair},
		{old.SourceIn, r.SourceIn},
		{old.SourceOut, r.SourceOut},
	} {
		if names[0] == names[1] && names[0] != "" {
			all = all.and(w.set(names[0]))
		} else {
			all = all.and(values(names[0], names[1]))
		}
	}
	return all.and(values(old.Family, r.Family)).and(values(old.Protocol, r.Protocol)).and(relation{havePorts(r.Ports, old.Ports), havePorts(old.Ports, r.Ports)})
}

// values compares conditions whose zero value matches everything.
func values[V comparable](old, v V) relation {
	var everything V
	return relation{v == old || v == everything, v == old || old == everything}
}

// havePorts reports whether ports have all of others.
func havePorts(all, some []PortRange) bool {
	if len(all) == 0 || len(some) == 0 {
		return len(all) == 0
	}
	return !slices.ContainsFunc(some, func(s PortRange) bool {
		return !slices.ContainsFunc(all, func(a PortRange) bool { return a.First <= s.First && s.Last <= a.Last })
	})
}

// set compares the sets of a name in both rulesets.
func (w *widening) set(name string) relation {
	known, ok := w.sets[name]
	if !ok {
		known = compareSets(w.old.Sets[name], w.rs.Sets[name])
		w.sets[name] = known
	}
	return known
}

func compareSets(old, s *Set) relation {
	if old == s {
		return relation{true, true}
	}
	if old.Kind != s.Kind || old.Family != s.Family {
		return relation{}
	}
	gone, came := Difference(old, s)
	return relation{gone.isEmpty() && s.hasRanges(old.Ranges), came.isEmpty() && old.hasRanges(s.Ranges)}
}

// hasRanges reports whether a set of Ranges has all of others.
func (s *Set) hasRanges(all []AddressRange) bool {
	return !slices.ContainsFunc(all, func(r AddressRange) bool { return !s.has(r.First) || !s.hasRange(r) })
}

// hasRange reports whether a set of Ranges has a whole range, given that it has the first address.
func (s *Set) hasRange(r AddressRange) bool {
	i, found := slices.BinarySearchFunc(s.Ranges, r.First, func(have AddressRange, a netip.Addr) int { return have.First.Compare(a) })
	if !found {
		i--
	}
	return r.Last.Compare(s.Ranges[i].Last) <= 0
}
