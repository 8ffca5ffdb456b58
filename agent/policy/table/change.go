// SPDX-License-Identifier: Apache-2.0

package table

import (
	"net/netip"
	"reflect"
	"slices"

	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/cni/nftables"
)

// whole returns the change of any table in the kernel to a ruleset's: new objects are made by other
// names, then the base chains lead to them, and then the old objects go.
func whole(have *nftables.Contents, rs *ruleset.Ruleset, anew bool) (*nftables.Change, *applied) {
	after := newApplied(rs, next(have))
	if anew {
		after.names = ""
	}
	return nftables.Replacement(have, after.table(), anew), after
}

// transition returns the change that turns the table of one ruleset into the table of another. It
// returns false where the table must be replaced.
func transition(before *applied, rs *ruleset.Ruleset) (*nftables.Change, *applied, bool) {
	d, ok := deltaOf(before.rs, rs)
	if !ok {
		return nil, nil, false
	}
	n := before.names
	after := &applied{rs, n, before.constants, before.counters}
	if len(d.chains.changed)+len(d.chains.came)+len(d.chains.gone) > 0 {
		after = newApplied(rs, n)
	}
	all := &nftables.Change{Made: nftables.Table{Family: nftables.INet, Name: ruleset.TableName, Counters: missing(after.counters, before.counters)}}
	for _, s := range d.sets.came {
		all.Made.Sets = append(all.Made.Sets, n.setOf(s))
	}
	for _, name := range missing(after.constants, before.constants) {
		all.Made.Sets = append(all.Made.Sets, n.constant(after.constants[name]))
	}
	for _, m := range d.maps.came {
		all.Made.Sets = append(all.Made.Sets, n.mapOf(m))
	}
	for _, c := range d.chains.came {
		all.Made.Chains = append(all.Made.Chains, n.chainOf(c))
	}
	d.turn(n, all)
	d.clear(n, &all.Gone)
	for _, name := range missing(before.constants, after.constants) {
		all.Gone.Sets = append(all.Gone.Sets, n.of(name))
	}
	for _, name := range missing(before.counters, after.counters) {
		all.Gone.Objects = append(all.Gone.Objects, nftables.NewCounter(name))
	}
	return all, after, true
}

// delta is the difference of two rulesets whose tables differ in content only.
type delta struct {
	sets   comparison[*ruleset.Set]
	maps   comparison[*ruleset.Map]
	chains comparison[*ruleset.Chain]
}

// deltaOf returns the differences of two rulesets. It returns false where the kernel cannot turn the
// table of one into the table of the other: it changes no hook, and no type of a set or map.
func deltaOf(old, rs *ruleset.Ruleset) (delta, bool) {
	if !slices.EqualFunc(old.Bases(), rs.Bases(), func(a, b *ruleset.Chain) bool { return a.Name == b.Name && a.Hook == b.Hook }) {
		return delta{}, false
	}
	d := delta{compare(old.Sets, rs.Sets), compare(old.Maps, rs.Maps), compare(old.Chains, rs.Chains)}
	if slices.ContainsFunc(d.sets.changed, func(c pair[*ruleset.Set]) bool { return c.old.Kind != c.new.Kind || c.old.Family != c.new.Family }) ||
		slices.ContainsFunc(d.maps.changed, func(c pair[*ruleset.Map]) bool { return c.old.Family != c.new.Family }) ||
		slices.ContainsFunc(d.chains.changed, func(c pair[*ruleset.Chain]) bool {
			return (c.old.Hook == ruleset.NoHook) != (c.new.Hook == ruleset.NoHook)
		}) {
		return delta{}, false
	}
	// The same rules, made anew.
	d.chains.changed = slices.DeleteFunc(d.chains.changed, func(c pair[*ruleset.Chain]) bool { return reflect.DeepEqual(c.old.Rules, c.new.Rules) })
	return d, true
}

// turn adds to the change the chains, sets and maps that stay, with their new content.
func (d *delta) turn(n names, all *nftables.Change) {
	for _, c := range d.chains.changed {
		all.Chains = append(all.Chains, nftables.ChainChange{Chain: n.chainOf(c.new), Exists: true})
	}
	for _, c := range d.sets.changed {
		if change, ok := n.setChange(c.old, c.new); ok {
			all.Sets = append(all.Sets, change)
		}
	}
	for _, c := range d.maps.changed {
		all.Sets = append(all.Sets, n.mapChange(c.old, c.new))
	}
}

// clear adds the chains, maps and sets that nothing leads to any more.
func (d *delta) clear(n names, gone *nftables.Gone) {
	for _, c := range d.chains.gone {
		gone.Chains = append(gone.Chains, n.chain(c))
	}
	for _, m := range d.maps.gone {
		gone.Maps = append(gone.Maps, n.of(m.Name))
	}
	for _, s := range d.sets.gone {
		gone.Sets = append(gone.Sets, n.of(s.Name))
	}
}

// missing lists the names that are in from and not in the other, in order.
func missing[V any](from, in map[string]V) []string {
	var all []string
	for name := range from {
		if _, ok := in[name]; !ok {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// setChange returns the elements that a set gets and loses, and false where there are none.
func (n names) setChange(old, want *ruleset.Set) (nftables.SetChange, bool) {
	gone, came := ruleset.Difference(old, want)
	changed := old.Kind != ruleset.Ranges || !slices.Equal(old.Ranges, want.Ranges)
	return nftables.SetChange{Set: n.setOf(want), Gone: elementsOf(gone), Came: elementsOf(came)}, changed
}

func (n names) mapChange(old, want *ruleset.Map) nftables.SetChange {
	without := func(all, other map[netip.Addr]string) map[netip.Addr]string {
		some := map[netip.Addr]string{}
		for a, chain := range all {
			if have, ok := other[a]; !ok || have != chain {
				some[a] = chain
			}
		}
		return some
	}
	return nftables.SetChange{
		Set: n.mapOf(want), Gone: n.elementsOfMap(without(old.Chains, want.Chains)), Came: n.elementsOfMap(without(want.Chains, old.Chains)),
	}
}

type pair[V any] struct{ old, new V }

// comparison has the differences of two rulesets in one kind of objects, each list in the order of
// names.
type comparison[V any] struct {
	came, gone []V
	changed    []pair[V]
}

// compare finds the objects that are not the same pointer.
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
