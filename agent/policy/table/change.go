// SPDX-License-Identifier: Apache-2.0

package table

import (
	"net/netip"
	"reflect"
	"slices"

	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/cni/nftables"
)

// whole returns the change from any table in the kernel to a ruleset's table: it makes new objects
// under other names, changes the base chains to them, and then removes the old objects.
func whole(have *nftables.Contents, rs *ruleset.Ruleset, anew bool) (*nftables.Change, *applied) {
	after := newApplied(rs, next(have))
	if anew {
		after.names = ""
	}
	return nftables.Replacement(have, after.table(), anew), after
}

// transition returns the change that turns the table of one ruleset into the table of another. It
// returns false if the table must be replaced: the kernel cannot change a hook, or the type of a
// set or map.
func transition(before *applied, rs *ruleset.Ruleset) (*nftables.Change, *applied, bool) {
	old, n := before.rs, before.names
	sets, maps, chains := compare(old.Sets, rs.Sets), compare(old.Maps, rs.Maps), compare(old.Chains, rs.Chains)
	if !slices.EqualFunc(old.Bases(), rs.Bases(), func(a, b *ruleset.Chain) bool { return a.Name == b.Name && a.Hook == b.Hook }) ||
		slices.ContainsFunc(sets.changed, func(c pair[*ruleset.Set]) bool { return c.old.Kind != c.new.Kind || c.old.Family != c.new.Family }) ||
		slices.ContainsFunc(maps.changed, func(c pair[*ruleset.Map]) bool { return c.old.Family != c.new.Family }) {
		return nil, nil, false
	}
	// The same rules, made anew.
	chains.changed = slices.DeleteFunc(chains.changed, func(c pair[*ruleset.Chain]) bool { return reflect.DeepEqual(c.old.Rules, c.new.Rules) })
	after := &applied{rs, n, before.constants, before.counters}
	if len(chains.changed)+len(chains.came)+len(chains.gone) > 0 {
		after = newApplied(rs, n)
	}
	all := &nftables.Change{Made: nftables.Table{Family: nftables.INet, Name: ruleset.TableName, Counters: missing(after.counters, before.counters)}}
	for _, s := range sets.came {
		all.Made.Sets = append(all.Made.Sets, n.setOf(s))
	}
	for _, name := range missing(after.constants, before.constants) {
		all.Made.Sets = append(all.Made.Sets, n.constant(after.constants[name]))
	}
	for _, m := range maps.came {
		all.Made.Sets = append(all.Made.Sets, n.mapOf(m))
	}
	for _, c := range chains.came {
		all.Made.Chains = append(all.Made.Chains, n.chainOf(c))
	}
	for _, c := range chains.changed {
		all.Chains = append(all.Chains, nftables.ChainChange{Chain: n.chainOf(c.new), Exists: true})
	}
	for _, c := range sets.changed {
		if change, ok := n.setChange(c.old, c.new); ok {
			all.Sets = append(all.Sets, change)
		}
	}
	for _, c := range maps.changed {
		all.Sets = append(all.Sets, n.mapChange(c.old, c.new))
	}
	for _, c := range chains.gone {
		all.Gone.Chains = append(all.Gone.Chains, n.chain(c))
	}
	for _, m := range maps.gone {
		all.Gone.Maps = append(all.Gone.Maps, n.of(m.Name))
	}
	for _, s := range sets.gone {
		all.Gone.Sets = append(all.Gone.Sets, n.of(s.Name))
	}
	for _, name := range missing(before.constants, after.constants) {
		all.Gone.Sets = append(all.Gone.Sets, n.of(name))
	}
	for _, name := range missing(before.counters, after.counters) {
		all.Gone.Objects = append(all.Gone.Objects, nftables.NewCounter(name))
	}
	return all, after, true
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

// setChange returns the elements that a set gets and loses, and false if there are none.
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
