// SPDX-License-Identifier: Apache-2.0

package table

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/google/nftables"

	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/cni/netfilter"
)

// ErrChanged is returned by Verify where the kernel does not have what was applied.
var ErrChanged = errors.New("the kernel's table of policies is not what was applied")

// Verify returns ErrChanged, with the first object that differs, where another program took
// something of the table away, changed it or added to it. Apply then replaces all. Where nobody has
// changed any nftables of the namespace since the last call, it costs one question to the kernel.
func (t *Table) Verify(context.Context) error {
	if t.applied == nil {
		return fmt.Errorf("%w: nothing was applied", ErrChanged)
	}
	return t.do(func() error {
		before, err := netfilter.Generation()
		if err != nil {
			return err
		}
		if before == t.verified {
			return nil
		}
		err = t.compare()
		if errors.Is(err, ErrChanged) {
			t.applied = nil
		}
		if err != nil {
			return err
		}
		t.verified = 0
		if after, err := netfilter.Generation(); err == nil && after == before {
			t.verified = after
		}
		return nil
	})
}

func changed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrChanged, fmt.Sprintf(format, args...))
}

// compare reads all of the table.
func (t *Table) compare() error {
	have, err := netfilter.Contents(t.table)
	if err != nil {
		return err
	}
	if err := t.compareChains(have.Chains, t.applied); err != nil {
		return err
	}
	counters := map[string]bool{}
	for _, o := range have.Objects {
		counters[o.Name] = o.IsCounter()
	}
	for name := range t.applied.counters {
		if !counters[name] {
			return changed("counter %s is missing", name)
		}
	}
	return t.compareSets(have.Sets, t.applied)
}

func (t *Table) compareChains(have []*nftables.Chain, want *applied) error {
	marks, err := netfilter.Marks(t.table)
	if err != nil {
		return err
	}
	type chain struct {
		*nftables.Chain
		rules *ruleset.Chain
	}
	chains := map[string]chain{}
	for name, c := range want.names.chainsOf(t.table, want.rs) {
		chains[c.Name] = chain{c, want.rs.Chains[name]}
	}
	for _, c := range have {
		wanted, ok := chains[c.Name]
		switch {
		case !ok:
			return changed("chain %s is new", c.Name)
		case !sameHook(wanted.Chain, c):
			return changed("chain %s is at another hook", c.Name)
		}
		rules := want.names.rulesOf(wanted.Chain, wanted.rules)
		if !slices.EqualFunc(marks[c.Name], rules, func(have []byte, want *nftables.Rule) bool { return bytes.Equal(have, want.UserData) }) {
			return changed("chain %s has other rules", c.Name)
		}
		delete(chains, c.Name)
	}
	for name := range chains {
		return changed("chain %s is missing", name)
	}
	return nil
}

// wantedSet is a set or map with its elements; those of ended connections come and go.
type wantedSet struct {
	*nftables.Set
	elements iter.Seq[netfilter.Element]
}

func (t *Table) wantedSets(rs *ruleset.Ruleset, n names) map[string]wantedSet {
	all := map[string]wantedSet{}
	for _, f := range families {
		all[f.cut] = wantedSet{f.cutSet(t.table), nil}
	}
	for _, c := range rs.Chains {
		for i := range c.Rules {
			for c := range constantsOf(&c.Rules[i]) {
				if _, ok := all[n.of(c.name)]; !ok {
					all[n.of(c.name)] = wantedSet{n.constant(t.table, c), c.elements()}
				}
			}
		}
	}
	for name, s := range rs.Sets {
		all[n.of(name)] = wantedSet{n.setOf(t.table, s), elementsOf(s)}
	}
	for name, m := range rs.Maps {
		all[n.of(name)] = wantedSet{n.mapOf(t.table, m), n.elementsOfMap(m.Chains)}
	}
	return all
}

func (t *Table) compareSets(have []*nftables.Set, want *applied) error {
	wanted := t.wantedSets(want.rs, want.names)
	for _, s := range have {
		want, ok := wanted[s.Name]
		switch {
		case !ok:
			return changed("set %s is new", s.Name)
		case s.IsMap != want.IsMap || s.Interval != want.Interval || s.KeyType.GetNFTMagic() != want.KeyType.GetNFTMagic():
			return changed("set %s is of another type", s.Name)
		}
		delete(wanted, s.Name)
		if want.elements == nil {
			continue
		}
		if err := t.compareElements(s.Name, want.elements); err != nil {
			return err
		}
	}
	for name := range maps.Keys(wanted) {
		return changed("set %s is missing", name)
	}
	return nil
}

// lists is how often a set is listed that the kernel seems to have less of than it should: it
// may only be making room.
const lists = 3

func (t *Table) compareElements(set string, elements iter.Seq[netfilter.Element]) error {
	type place struct {
		key string
		end bool
	}
	type element struct {
		leads string
		seen  bool
	}
	want := map[place]element{}
	for e := range elements {
		want[place{string(e.Key), e.End}] = element{leads: e.Goto}
	}
	missing := len(want)
	for attempt := 0; attempt == 0 || missing > 0 && attempt < lists; attempt++ {
		same := true
		err := netfilter.Elements(t.table, set, func(e netfilter.Element) {
			at := place{string(e.Key), e.End}
			wanted, ok := want[at]
			switch {
			case !ok || wanted.leads != e.Goto:
				same = false
			case !wanted.seen:
				want[at] = element{wanted.leads, true}
				missing--
			}
		})
		if err != nil {
			return err
		}
		if !same {
			return changed("set %s has other elements", set)
		}
	}
	for at, wanted := range want {
		if wanted.seen {
			continue
		}
		e, found, err := netfilter.Find(t.table, set, []byte(at.key))
		if err != nil {
			return err
		}
		if !found || e.End != at.end || e.Goto != wanted.leads {
			return changed("set %s lacks elements", set)
		}
	}
	return nil
}

// Counter is what the rules with one counter matched.
type Counter struct{ Packets, Bytes uint64 }

// Counters returns the counters by the names that the rulesets give them. It may be called in
// parallel to all methods.
func (t *Table) Counters(context.Context) (map[string]Counter, error) {
	all := map[string]Counter{}
	err := t.do(func() error {
		objects, err := netfilter.Objects(t.table)
		for _, o := range objects {
			if o.IsCounter() {
				all[o.Name] = Counter{o.Packets, o.Bytes}
			}
		}
		return err
	})
	return all, err
}
