// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// Verify returns ruleset.ErrChanged, with the first difference, if another program changed, removed
// or added rules or elements. The next Apply then replaces all rules.
func (t *Table) Verify(ctx context.Context) error {
	now := t.applied.Load()
	if now == nil {
		return fmt.Errorf("%w: nothing was applied", ruleset.ErrChanged)
	}
	err := t.Do(func() error {
		for i, f := range ruleset.Families {
			saved, err := t.variant.save(ctx, f)
			if err != nil {
				return fmt.Errorf("read the rules of policies: %w", err)
			}
			if lacks(f, inet6) {
				continue
			}
			have, _ := parse(saved)
			if err := now.chains[i].compare(have); err != nil {
				return fmt.Errorf("%w: %w", ruleset.ErrChanged, err)
			}
		}
		saved, err := saveSets(ctx)
		if err != nil {
			return fmt.Errorf("read the sets of policies: %w", err)
		}
		if err := compareSets(now.sets, parseSets(saved)); err != nil {
			return fmt.Errorf("%w: %w", ruleset.ErrChanged, err)
		}
		t.destroy(ctx, now)
		return nil
	})
	if errors.Is(err, ruleset.ErrChanged) {
		t.applied.Store(nil)
	}
	return err
}

// compare returns an error that names the first difference.
func (c *chains) compare(have *chains) error {
	for _, name := range slices.Sorted(maps.Keys(c.lines)) {
		lines, ok := have.lines[name]
		if !ok {
			return fmt.Errorf("chain %s is missing", name)
		}
		ours, theirs := texts(c.lines[name]), texts(lines)
		for i := range max(len(ours), len(theirs)) {
			switch {
			case i >= len(theirs):
				return fmt.Errorf("chain %s lacks the rule %s", name, ours[i])
			case i >= len(ours) || ours[i] != theirs[i]:
				return fmt.Errorf("chain %s has the rule %s", name, theirs[i])
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have.lines)) {
		if _, ok := c.lines[name]; !ok {
			return fmt.Errorf("chain %s is not of the ruleset", name)
		}
	}
	for _, hook := range slices.Sorted(maps.Values(hooks)) {
		if !slices.Equal(c.entries[hook], have.entries[hook]) {
			return fmt.Errorf("chain %s does not begin with the rules of Berth", hook)
		}
	}
	return nil
}

// compareSets returns an error that names the first difference.
func compareSets(want map[string]*set, have map[string]map[string]bool) error {
	for _, name := range slices.Sorted(maps.Keys(want)) {
		elements, ok := have[name]
		if !ok {
			return fmt.Errorf("set %s is missing", name)
		}
		all := want[name].elements()
		for _, e := range all {
			if !elements[e] {
				return fmt.Errorf("set %s lacks %s", name, e)
			}
		}
		if len(elements) != len(all) {
			return fmt.Errorf("set %s has %d elements that are not of the ruleset", name, len(elements)-len(all))
		}
	}
	return nil
}

// Counters returns the counters by their names in the ruleset. It may be called in parallel to all
// methods. Counters begin at 0 with each process.
func (t *Table) Counters(ctx context.Context) (map[string]ruleset.Count, error) {
	now := t.applied.Load()
	all := map[string]ruleset.Count{}
	if now == nil {
		return all, nil
	}
	err := t.Do(func() error {
		for i, f := range ruleset.Families {
			saved, err := t.variant.save(ctx, f)
			if err != nil {
				return fmt.Errorf("read the counters of policies: %w", err)
			}
			_, counted := parse(saved)
			now.chains[i].count(counted, all, nil)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, before := range t.counted {
		if have, ok := all[name]; ok {
			all[name] = ruleset.Count{Packets: have.Packets + before.Packets, Bytes: have.Bytes + before.Bytes}
		}
	}
	return all, nil
}

// count adds the counts of rules to the counters that they name. If only is not nil, it skips
// chains for which only returns false.
func (c *chains) count(counted counts, all map[string]ruleset.Count, only func(chain string) bool) {
	for name, lines := range c.lines {
		if only != nil && !only(name) {
			continue
		}
		for i, l := range lines {
			if l.counter == "" {
				continue
			}
			sum := all[l.counter]
			if i < len(counted[name]) {
				sum.Packets += counted[name][i].Packets
				sum.Bytes += counted[name][i].Bytes
			}
			all[l.counter] = sum
		}
	}
}

// hasCounters reports whether any rule of the chains has a counter.
func (c *chains) hasCounters(of map[string]bool) bool {
	for name := range of {
		if slices.ContainsFunc(c.lines[name], func(l line) bool { return l.counter != "" }) {
			return true
		}
	}
	return false
}

// countsOf returns the counts of the rules that a change makes anew or removes. It runs a program
// only if such rules have counters.
func (t *Table) countsOf(ctx context.Context, before *applied, texts [2][]byte) (map[string]ruleset.Count, error) {
	all := map[string]ruleset.Count{}
	for i, f := range ruleset.Families {
		made := declaredIn(texts[i])
		if before.rs == nil || !before.chains[i].hasCounters(made) {
			continue
		}
		saved, err := t.variant.save(ctx, f)
		if err != nil {
			return nil, fmt.Errorf("read the counters of policies: %w", err)
		}
		_, counted := parse(saved)
		before.chains[i].count(counted, all, func(chain string) bool { return made[chain] })
	}
	return all, nil
}

// keep adds counts to those of earlier rules, and forgets counters that no rule names.
func (t *Table) keep(counted map[string]ruleset.Count, now *applied) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, n := range counted {
		sum := t.counted[name]
		t.counted[name] = ruleset.Count{Packets: sum.Packets + n.Packets, Bytes: sum.Bytes + n.Bytes}
	}
	named := map[string]ruleset.Count{}
	for _, c := range now.chains {
		c.count(nil, named, nil)
	}
	maps.DeleteFunc(t.counted, func(name string, _ ruleset.Count) bool { _, ok := named[name]; return !ok })
}
