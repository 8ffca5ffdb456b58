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

// steps are the transactions of a change. What packets meet changes in the second one alone: rules
// of a chain change for packets that come after it, but elements of sets and maps for all packets, also
// for those that are on their way through the rules of before. These must not be led to
// a chain whose rules are not there yet for them, and must find maps as they were.
type steps struct {
	// prepare makes what nothing leads to yet, turn leads to it, and clear removes what nothing
	// leads to any more.
	prepare, turn, clear *netfilter.Transaction
	// undo removes what prepare made, for where the kernel refuses turn.
	undo *netfilter.Transaction
}

func (t *Table) newSteps() steps {
	return steps{netfilter.NewTransaction(t.table), netfilter.NewTransaction(t.table), netfilter.NewTransaction(t.table), netfilter.NewTransaction(t.table)}
}

// objects are some of the kernel's, by their names there.
type objects struct {
	chains, maps, sets []string
	objects            []netfilter.Object
}

// delete deletes objects that only others of them name.
func (o objects) delete(tx *netfilter.Transaction) {
	for _, name := range o.chains {
		tx.FlushChain(name)
	}
	for _, name := range o.maps {
		// Older kernels take a chain for used to which a deleted map leads.
		tx.FlushSet(name)
		tx.DeleteSet(name)
	}
	for _, name := range o.chains {
		tx.DeleteChain(name)
	}
	for _, name := range o.sets {
		tx.DeleteSet(name)
	}
	for _, object := range o.objects {
		tx.DeleteObject(object.Name, object.Kind)
	}
}

func counter(name string) netfilter.Object {
	return netfilter.Object{Name: name, Kind: netfilter.CounterKind}
}

// whole returns the change of the kernel's table to that of a ruleset, whatever it is now: all is
// made anew by other names, then the base chains lead to it, and then the rest goes. The base
// chains, counters with their values and ended connections stay; but nothing where anew is
// true.
func (t *Table) whole(have *netfilter.TableContents, rs *ruleset.Ruleset, anew bool) (steps, *applied) {
	s := t.newSteps()
	first := s.prepare
	if anew {
		// The table cannot go after the new one is made.
		first = s.turn
		have = &netfilter.TableContents{}
		first.AddTable()
		first.DeleteTable()
	}
	first.AddTable()
	n := next(have)
	after := &applied{rs: rs, names: n, constants: map[string]int{}, counters: map[string]int{}}
	constants := map[string]constant{}
	for _, c := range rs.Chains {
		after.count(c, 1, constants)
	}
	counted := map[string]bool{}
	for _, o := range have.Objects {
		counted[o.Name] = counted[o.Name] || o.IsCounter()
	}

	var made, gone objects
	for _, f := range families {
		first.AddSet(f.cutSet(t.table))
	}
	for _, name := range slices.Sorted(maps.Keys(after.counters)) {
		if !counted[name] {
			first.AddCounter(name)
			made.objects = append(made.objects, counter(name))
		}
	}
	chains := n.chainsOf(t.table, rs)
	order := slices.Sorted(maps.Keys(chains))
	for _, name := range order {
		if rs.Chains[name].Hook == ruleset.NoHook {
			first.AddChain(chains[name])
			made.chains = append(made.chains, chains[name].Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(constants)) {
		t.addConstant(first, n, constants[name])
		made.sets = append(made.sets, n.of(name))
	}
	for _, name := range slices.Sorted(maps.Keys(rs.Sets)) {
		t.addSet(first, n, rs.Sets[name])
		made.sets = append(made.sets, n.of(name))
	}
	for _, name := range slices.Sorted(maps.Keys(rs.Maps)) {
		t.addMap(first, n, rs.Maps[name])
		made.maps = append(made.maps, n.of(name))
	}
	for _, name := range order {
		if rs.Chains[name].Hook == ruleset.NoHook {
			addRules(first, n, chains[name], rs.Chains[name])
		}
	}

	for _, c := range have.Chains {
		if want := rs.Chains[c.Name]; want == nil || want.Hook == ruleset.NoHook {
			gone.chains = append(gone.chains, c.Name)
			continue
		}
		s.turn.FlushChain(c.Name)
		if !sameHook(chains[c.Name], c) {
			s.turn.DeleteChain(c.Name)
		}
	}
	for _, c := range baseChains(rs) {
		s.turn.AddChain(chains[c.Name])
		addRules(s.turn, n, chains[c.Name], c)
	}

	for _, set := range have.Sets {
		switch {
		case isCut(set.Name):
		case set.IsMap:
			gone.maps = append(gone.maps, set.Name)
		default:
			gone.sets = append(gone.sets, set.Name)
		}
	}
	for _, o := range have.Objects {
		if !o.IsCounter() || after.counters[o.Name] == 0 {
			gone.objects = append(gone.objects, o)
		}
	}
	gone.delete(s.clear)
	if !anew {
		made.delete(s.undo)
	}
	return s, after
}

// sameHook returns whether two chains are run at the same place.
func sameHook(a, b *nftables.Chain) bool {
	if a.Hooknum == nil || b.Hooknum == nil {
		return a.Hooknum == nil && b.Hooknum == nil
	}
	return *a.Hooknum == *b.Hooknum && *a.Priority == *b.Priority && a.Type == b.Type && b.Policy != nil && *a.Policy == *b.Policy
}

// change returns the change of the table of one ruleset to that of another, and false where it must
// be replaced.
func (t *Table) change(before *applied, rs *ruleset.Ruleset) (steps, *applied, bool) {
	old := before.rs
	if !slices.EqualFunc(baseChains(old), baseChains(rs), func(a, b *ruleset.Chain) bool { return a.Name == b.Name && a.Hook == b.Hook }) {
		return steps{}, nil, false
	}
	sets, verdicts, chains := compare(old.Sets, rs.Sets), compare(old.Maps, rs.Maps), compare(old.Chains, rs.Chains)
	for _, c := range sets.changed {
		if c.old.Kind != c.new.Kind || c.old.Family != c.new.Family {
			return steps{}, nil, false
		}
	}
	for _, c := range verdicts.changed {
		if c.old.Family != c.new.Family {
			return steps{}, nil, false
		}
	}
	for _, c := range chains.changed {
		if (c.old.Hook == ruleset.NoHook) != (c.new.Hook == ruleset.NoHook) {
			return steps{}, nil, false
		}
	}
	// The same rules, made anew.
	chains.changed = slices.DeleteFunc(chains.changed, func(c pair[*ruleset.Chain]) bool { return reflect.DeepEqual(c.old.Rules, c.new.Rules) })

	n := before.names
	after := &applied{rs: rs, names: n, constants: before.constants, counters: before.counters}
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

	all := t.newSteps()
	var made, gone objects
	for _, s := range sets.came {
		t.addSet(all.prepare, n, s)
		made.sets = append(made.sets, n.of(s.Name))
	}
	for _, name := range missing(after.constants, before.constants) {
		t.addConstant(all.prepare, n, constants[name])
		made.sets = append(made.sets, n.of(name))
	}
	for _, name := range missing(after.counters, before.counters) {
		all.prepare.AddCounter(name)
		made.objects = append(made.objects, counter(name))
	}
	for _, c := range chains.came {
		all.prepare.AddChain(t.chain(n, c))
		made.chains = append(made.chains, n.chain(c))
	}
	for _, m := range verdicts.came {
		t.addMap(all.prepare, n, m)
		made.maps = append(made.maps, n.of(m.Name))
	}
	for _, c := range chains.came {
		addRules(all.prepare, n, t.chain(n, c), c)
	}
	made.delete(all.undo)

	for _, c := range chains.changed {
		all.turn.FlushChain(n.chain(c.old))
		addRules(all.turn, n, t.chain(n, c.new), c.new)
	}
	for _, c := range sets.changed {
		changeSet(all.turn, n, c.old, c.new)
	}
	for _, c := range verdicts.changed {
		changeMap(all.turn, n, c.old, c.new)
	}

	for _, c := range chains.gone {
		gone.chains = append(gone.chains, n.chain(c))
	}
	for _, m := range verdicts.gone {
		gone.maps = append(gone.maps, n.of(m.Name))
	}
	for _, s := range sets.gone {
		gone.sets = append(gone.sets, n.of(s.Name))
	}
	for _, name := range missing(before.constants, after.constants) {
		gone.sets = append(gone.sets, n.of(name))
	}
	for _, name := range missing(before.counters, after.counters) {
		gone.objects = append(gone.objects, counter(name))
	}
	gone.delete(all.clear)
	return all, after, true
}

// chain is one as its rules name it, without its hook.
func (t *Table) chain(n names, c *ruleset.Chain) *nftables.Chain {
	return &nftables.Chain{Table: t.table, Name: n.chain(c)}
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

func (t *Table) addConstant(tx *netfilter.Transaction, n names, c constant) {
	tx.AddSet(n.constant(t.table, c))
	tx.AddElements(n.of(c.name), c.elements())
}

func (t *Table) addSet(tx *netfilter.Transaction, n names, s *ruleset.Set) {
	tx.AddSet(n.setOf(t.table, s))
	tx.AddElements(n.of(s.Name), elementsOf(s))
}

func (t *Table) addMap(tx *netfilter.Transaction, n names, m *ruleset.Map) {
	tx.AddSet(n.mapOf(t.table, m))
	tx.AddElements(n.of(m.Name), n.elementsOfMap(m.Chains))
}

func addRules(tx *netfilter.Transaction, n names, chain *nftables.Chain, c *ruleset.Chain) {
	for _, r := range n.rulesOf(chain, c) {
		tx.AddRule(r)
	}
}

// changeSet gives a set other elements.
func changeSet(tx *netfilter.Transaction, n names, old, want *ruleset.Set) {
	gone, came := &ruleset.Set{}, &ruleset.Set{}
	switch old.Kind {
	case ruleset.Addresses:
		gone.Addresses, came.Addresses = difference(old.Addresses, want.Addresses, netip.Addr.Compare)
	case ruleset.Ranges:
		if slices.Equal(old.Ranges, want.Ranges) {
			return
		}
		// The end of one may be the beginning of another.
		tx.FlushSet(n.of(old.Name))
		came = want
	case ruleset.Endpoints:
		gone.Endpoints, came.Endpoints = difference(old.Endpoints, want.Endpoints, ruleset.Endpoint.Compare)
	case ruleset.Pairs:
		gone.Pairs, came.Pairs = difference(old.Pairs, want.Pairs, ruleset.Pair.Compare)
	case ruleset.Interfaces:
		gone.Interfaces, came.Interfaces = difference(old.Interfaces, want.Interfaces, strings.Compare)
	}
	tx.DeleteElements(n.of(old.Name), elementsOf(gone))
	tx.AddElements(n.of(old.Name), elementsOf(came))
}

func changeMap(tx *netfilter.Transaction, n names, old, want *ruleset.Map) {
	without := func(all, other map[netip.Addr]string) map[netip.Addr]string {
		some := map[netip.Addr]string{}
		for a, chain := range all {
			if have, ok := other[a]; !ok || have != chain {
				some[a] = chain
			}
		}
		return some
	}
	tx.DeleteElements(n.of(old.Name), n.elementsOfMap(without(old.Chains, want.Chains)))
	tx.AddElements(n.of(old.Name), n.elementsOfMap(without(want.Chains, old.Chains)))
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
