// SPDX-License-Identifier: Apache-2.0

package table

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/cni/netfilter"
)

// whole returns the transaction that makes a table of a ruleset. It keeps the base chains that the
// kernel has, the counters with their values and the connections that were ended; but nothing
// where anew is true.
func (t *Table) whole(have *netfilter.TableContents, rs *ruleset.Ruleset, anew bool) (*netfilter.Transaction, *applied) {
	tx := netfilter.NewTransaction(t.table)
	tx.AddTable()
	if anew {
		tx.DeleteTable()
		tx.AddTable()
		have = &netfilter.TableContents{}
	}
	after := &applied{rs: rs, constants: map[string]int{}, counters: map[string]int{}}
	constants := map[string]constant{}
	for _, c := range rs.Chains {
		after.count(c, 1, constants)
	}

	tx.FlushRules()
	for _, set := range have.Sets {
		if set.Name == families[0].cut || set.Name == families[1].cut {
			continue
		}
		if set.IsMap {
			// Older kernels take a chain for used to which a deleted map leads.
			tx.FlushSet(set.Name)
		}
		tx.DeleteSet(set.Name)
	}
	chains := chainsOf(t.table, rs)
	for _, c := range have.Chains {
		if want := chains[c.Name]; want == nil || !sameHook(want, c) {
			tx.DeleteChain(c.Name)
		}
	}
	counted := map[string]bool{}
	for _, o := range have.Objects {
		if counted[o.Name] = o.IsCounter() && after.counters[o.Name] > 0; !counted[o.Name] {
			tx.DeleteObject(o.Name, o.Kind)
		}
	}

	for _, f := range families {
		tx.AddSet(f.cutSet(t.table))
	}
	for _, name := range slices.Sorted(maps.Keys(chains)) {
		tx.AddChain(chains[name])
	}
	for _, name := range slices.Sorted(maps.Keys(after.counters)) {
		if !counted[name] {
			tx.AddCounter(name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(constants)) {
		t.addConstant(tx, constants[name])
	}
	for _, name := range slices.Sorted(maps.Keys(rs.Sets)) {
		t.addSet(tx, rs.Sets[name])
	}
	for _, name := range slices.Sorted(maps.Keys(rs.Maps)) {
		t.addMap(tx, rs.Maps[name])
	}
	for _, name := range slices.Sorted(maps.Keys(rs.Chains)) {
		addRules(tx, chains[name], rs.Chains[name])
	}
	return tx, after
}

// sameHook returns whether two chains are run at the same place.
func sameHook(a, b *nftables.Chain) bool {
	if a.Hooknum == nil || b.Hooknum == nil {
		return a.Hooknum == nil && b.Hooknum == nil
	}
	return *a.Hooknum == *b.Hooknum && *a.Priority == *b.Priority && a.Type == b.Type && b.Policy != nil && *a.Policy == *b.Policy
}

// change returns the transaction that makes the table of one ruleset that of another, and
// false where it must be replaced.
func (t *Table) change(before *applied, rs *ruleset.Ruleset) (*netfilter.Transaction, *applied, bool) {
	old := before.rs
	if !slices.EqualFunc(baseChains(old), baseChains(rs), func(a, b *ruleset.Chain) bool { return a.Name == b.Name && a.Hook == b.Hook }) {
		return nil, nil, false
	}
	sets, verdicts, chains := compare(old.Sets, rs.Sets), compare(old.Maps, rs.Maps), compare(old.Chains, rs.Chains)
	for _, c := range sets.changed {
		if c.old.Kind != c.new.Kind || c.old.Family != c.new.Family {
			return nil, nil, false
		}
	}
	for _, c := range verdicts.changed {
		if c.old.Family != c.new.Family {
			return nil, nil, false
		}
	}
	for _, c := range chains.changed {
		if (c.old.Hook == ruleset.NoHook) != (c.new.Hook == ruleset.NoHook) {
			return nil, nil, false
		}
	}
	// The same rules, made anew.
	chains.changed = slices.DeleteFunc(chains.changed, func(c pair[*ruleset.Chain]) bool { return reflect.DeepEqual(c.old.Rules, c.new.Rules) })

	after := &applied{rs: rs, constants: before.constants, counters: before.counters}
	constants := map[string]constant{}
	if len(chains.changed)+len(chains.came)+len(chains.gone) > 0 {
		after.constants, after.counters = maps.Clone(before.constants), maps.Clone(before.counters)
		for _, c := range chains.changed {
			after.count(c.old, -1, nil)
			after.count(c.new, 1, constants)
		}
		for _, c := range chains.came {
			after.count(c, 1, constants)
		}
		for _, c := range chains.gone {
			after.count(c, -1, nil)
		}
	}

	tx := netfilter.NewTransaction(t.table)
	for _, s := range sets.came {
		t.addSet(tx, s)
	}
	for _, c := range chains.came {
		tx.AddChain(&nftables.Chain{Table: t.table, Name: c.Name})
	}
	for _, m := range verdicts.came {
		t.addMap(tx, m)
	}
	for _, name := range slices.Sorted(maps.Keys(constants)) {
		if before.constants[name] == 0 {
			t.addConstant(tx, constants[name])
		}
	}
	for _, name := range missing(after.counters, before.counters) {
		tx.AddCounter(name)
	}
	for _, c := range chains.changed {
		tx.FlushChain(c.old.Name)
	}
	for _, c := range chains.gone {
		tx.FlushChain(c.Name)
	}
	for _, c := range sets.changed {
		changeSet(tx, c.old, c.new)
	}
	for _, c := range verdicts.changed {
		changeMap(tx, c.old, c.new)
	}
	for _, c := range chains.changed {
		addRules(tx, t.chain(c.new.Name), c.new)
	}
	for _, c := range chains.came {
		addRules(tx, t.chain(c.Name), c)
	}
	for _, m := range verdicts.gone {
		tx.FlushSet(m.Name)
		tx.DeleteSet(m.Name)
	}
	for _, c := range chains.gone {
		tx.DeleteChain(c.Name)
	}
	for _, s := range sets.gone {
		tx.DeleteSet(s.Name)
	}
	for _, name := range missing(before.constants, after.constants) {
		tx.DeleteSet(name)
	}
	for _, name := range missing(before.counters, after.counters) {
		tx.DeleteObject(name, netfilter.CounterKind)
	}
	return tx, after, true
}

// chain is one as its rules name it.
func (t *Table) chain(name string) *nftables.Chain {
	return &nftables.Chain{Table: t.table, Name: name}
}

// count adds n for each rule of a chain to what it names, and notes the sets that follow from
// rules.
func (a *applied) count(c *ruleset.Chain, n int, constants map[string]constant) {
	for i := range c.Rules {
		r := &c.Rules[i]
		if r.Counter != "" {
			add(a.counters, r.Counter, n)
		}
		for c := range constantsOf(r) {
			add(a.constants, c.name, n)
			if constants != nil {
				constants[c.name] = c
			}
		}
	}
}

func add(counts map[string]int, name string, n int) {
	if counts[name] += n; counts[name] == 0 {
		delete(counts, name)
	}
}

// missing lists what is counted in one and not in the other, in order.
func missing(from, in map[string]int) []string {
	var all []string
	for name := range from {
		if in[name] == 0 {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

func (t *Table) addConstant(tx *netfilter.Transaction, c constant) {
	tx.AddSet(c.set(t.table))
	tx.AddElements(c.name, c.elements())
}

func (t *Table) addSet(tx *netfilter.Transaction, s *ruleset.Set) {
	tx.AddSet(setOf(t.table, s))
	tx.AddElements(s.Name, elementsOf(s))
}

func (t *Table) addMap(tx *netfilter.Transaction, m *ruleset.Map) {
	tx.AddSet(mapOf(t.table, m))
	tx.AddElements(m.Name, elementsOfMap(m.Chains))
}

func addRules(tx *netfilter.Transaction, chain *nftables.Chain, c *ruleset.Chain) {
	for _, r := range rulesOf(chain, c) {
		tx.AddRule(r)
	}
}

// changeSet gives a set other elements.
func changeSet(tx *netfilter.Transaction, old, want *ruleset.Set) {
	gone := &ruleset.Set{Name: old.Name, Kind: old.Kind}
	came := &ruleset.Set{Name: old.Name, Kind: old.Kind}
	switch old.Kind {
	case ruleset.Addresses:
		gone.Addresses, came.Addresses = difference(old.Addresses, want.Addresses, netip.Addr.Compare)
	case ruleset.Ranges:
		if slices.Equal(old.Ranges, want.Ranges) {
			return
		}
		// The end of one may be the beginning of another.
		tx.FlushSet(old.Name)
		came = want
	case ruleset.Endpoints:
		gone.Endpoints, came.Endpoints = difference(old.Endpoints, want.Endpoints, ruleset.Endpoint.Compare)
	case ruleset.Pairs:
		gone.Pairs, came.Pairs = difference(old.Pairs, want.Pairs, ruleset.Pair.Compare)
	case ruleset.Interfaces:
		gone.Interfaces, came.Interfaces = difference(old.Interfaces, want.Interfaces, strings.Compare)
	}
	tx.DeleteElements(old.Name, elementsOf(gone))
	tx.AddElements(old.Name, elementsOf(came))
}

func changeMap(tx *netfilter.Transaction, old, want *ruleset.Map) {
	without := func(all, other map[netip.Addr]string) map[netip.Addr]string {
		some := map[netip.Addr]string{}
		for a, chain := range all {
			if have, ok := other[a]; !ok || have != chain {
				some[a] = chain
			}
		}
		return some
	}
	tx.DeleteElements(old.Name, elementsOfMap(without(old.Chains, want.Chains)))
	tx.AddElements(old.Name, elementsOfMap(without(want.Chains, old.Chains)))
}

// difference returns what only one of two sorted lists has.
func difference[E any](old, want []E, compare func(a, b E) int) (gone, came []E) {
	for len(old) > 0 && len(want) > 0 {
		switch c := compare(old[0], want[0]); {
		case c < 0:
			gone, old = append(gone, old[0]), old[1:]
		case c > 0:
			came, want = append(came, want[0]), want[1:]
		default:
			old, want = old[1:], want[1:]
		}
	}
	return append(gone, old...), append(came, want...)
}

type pair[V any] struct{ old, new V }

// comparison is what two rulesets have of one kind, each list in the order of names.
type comparison[V any] struct {
	came, gone []V
	changed    []pair[V]
}

// compare finds what is not the same pointer.
func compare[V comparable](old, want map[string]V) comparison[V] {
	var c comparison[V]
	var changed, came, gone []string
	for name, v := range want {
		if have, ok := old[name]; !ok {
			came = append(came, name)
		} else if have != v {
			changed = append(changed, name)
		}
	}
	if len(old)+len(came) != len(want) {
		for name := range old {
			if _, ok := want[name]; !ok {
				gone = append(gone, name)
			}
		}
	}
	slices.Sort(changed)
	slices.Sort(came)
	slices.Sort(gone)
	for _, name := range changed {
		c.changed = append(c.changed, pair[V]{old[name], want[name]})
	}
	for _, name := range came {
		c.came = append(c.came, want[name])
	}
	for _, name := range gone {
		c.gone = append(c.gone, old[name])
	}
	return c
}
