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
	var n names
	if !anew {
		n = next(have)
	}
	after := newApplied(rs, n)
	return nftables.Replacement(have, after.table(), anew), after
}

// transition returns the change that turns the table of one ruleset into the table of another. It
// returns false if the table must be replaced: the kernel cannot change a hook, or the type of a
// set or map.
func transition(before *applied, rs *ruleset.Ruleset) (*nftables.Change, *applied, bool) {
	old, n := before.rs, before.names
	newSets, sets, goneSets := compare(old.Sets, rs.Sets)
	newMaps, maps, goneMaps := compare(old.Maps, rs.Maps)
	newChains, chains, goneChains := compare(old.Chains, rs.Chains)
	if !slices.EqualFunc(old.Bases(), rs.Bases(), func(a, b *ruleset.Chain) bool { return a.Name == b.Name && a.Hook == b.Hook }) ||
		slices.ContainsFunc(sets, func(name string) bool {
			return old.Sets[name].Kind != rs.Sets[name].Kind || old.Sets[name].Family != rs.Sets[name].Family
		}) ||
		slices.ContainsFunc(maps, func(name string) bool { return old.Maps[name].Family != rs.Maps[name].Family }) {
		return nil, nil, false
	}
	// The same rules, made anew.
	chains = slices.DeleteFunc(chains, func(name string) bool { return reflect.DeepEqual(old.Chains[name].Rules, rs.Chains[name].Rules) })
	after := &applied{rs, n, before.constants, before.counters}
	if len(chains)+len(newChains)+len(goneChains) > 0 {
		after = newApplied(rs, n)
	}
	all := &nftables.Change{Made: nftables.Table{Family: nftables.INet, Name: ruleset.TableName, Counters: missing(after.counters, before.counters)}}
	for _, name := range newSets {
		all.Made.Sets = append(all.Made.Sets, n.setOf(rs.Sets[name]))
	}
	for _, name := range missing(after.constants, before.constants) {
		all.Made.Sets = append(all.Made.Sets, after.constants[name])
	}
	for _, name := range newMaps {
		all.Made.Sets = append(all.Made.Sets, n.mapOf(rs.Maps[name]))
	}
	for _, name := range newChains {
		all.Made.Chains = append(all.Made.Chains, n.chainOf(rs.Chains[name]))
	}
	for _, name := range chains {
		all.Chains = append(all.Chains, nftables.ChainChange{Chain: n.chainOf(rs.Chains[name]), Exists: true})
	}
	for _, name := range sets {
		if change, ok := n.setChange(old.Sets[name], rs.Sets[name]); ok {
			all.Sets = append(all.Sets, change)
		}
	}
	for _, name := range maps {
		all.Sets = append(all.Sets, n.mapChange(old.Maps[name], rs.Maps[name]))
	}
	for _, name := range goneChains {
		all.Gone.Chains = append(all.Gone.Chains, n.chain(old.Chains[name]))
	}
	for _, name := range goneMaps {
		all.Gone.Maps = append(all.Gone.Maps, n.of(name))
	}
	for _, name := range goneSets {
		all.Gone.Sets = append(all.Gone.Sets, n.of(name))
	}
	all.Gone.Sets = append(all.Gone.Sets, missing(before.constants, after.constants)...)
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

// compare lists the names of objects that came, are another pointer and went, in order.
func compare[V any](old, want map[string]*V) (came, changed, gone []string) {
	for name, v := range want {
		if have := old[name]; have == nil {
			came = append(came, name)
		} else if have != v {
			changed = append(changed, name)
		}
	}
	if len(old)+len(came) != len(want) {
		gone = missing(old, want)
	}
	slices.Sort(came)
	slices.Sort(changed)
	return came, changed, gone
}
