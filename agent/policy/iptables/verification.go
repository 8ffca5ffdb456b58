// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"cmp"
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
	want, is := c.list(), have.list()
	switch more, less := difference(want, is); {
	case len(less) > 0:
		return fmt.Errorf("the table lacks %s", less[0])
	case len(more) > 0:
		return fmt.Errorf("the table has %s", more[0])
	case !slices.Equal(want, is):
		return errors.New("the table has the rules in another order, or one twice")
	}
	return nil
}

func (c *chains) list() (all []string) {
	for _, name := range slices.Sorted(maps.Keys(c.lines)) {
		all = append(all, "chain "+name)
		for _, l := range c.lines[name] {
			all = append(all, fmt.Sprintf("in chain %s: %s", name, l.text))
		}
	}
	for _, hook := range slices.Sorted(maps.Values(hooks)) {
		for _, entry := range c.entries[hook] {
			all = append(all, fmt.Sprintf("in chain %s: %s", hook, cmp.Or(entry, "a rule before the rules of Berth")))
		}
	}
	return all
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
	if now == nil {
		return map[string]ruleset.Count{}, nil
	}
	var all map[string]ruleset.Count
	err := t.Do(func() (err error) {
		all, err = t.count(ctx, now, nil)
		return err
	})
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, before := range t.counted {
		if have, ok := all[name]; ok {
			all[name] = have.Plus(before)
		}
	}
	return all, nil
}

// count returns the counts of the applied rules by the counters that they name. If texts are given,
// it returns only the counts of rules that these make anew or remove, and runs a program only if
// such rules have counters.
func (t *Table) count(ctx context.Context, of *applied, texts *[2][]byte) (map[string]ruleset.Count, error) {
	all := map[string]ruleset.Count{}
	for i, f := range ruleset.Families {
		lines := of.chains[i].lines
		if texts != nil {
			declared := declaredIn(texts[i])
			lines = maps.Clone(lines)
			maps.DeleteFunc(lines, func(chain string, rules []line) bool {
				return !declared[chain] || !slices.ContainsFunc(rules, func(l line) bool { return l.counter != "" })
			})
			if len(lines) == 0 {
				continue
			}
		}
		saved, err := t.variant.save(ctx, f)
		if err != nil {
			return nil, fmt.Errorf("read the counters of policies: %w", err)
		}
		_, counted := parse(saved)
		add(all, lines, counted)
	}
	return all, nil
}

func add(all map[string]ruleset.Count, lines map[string][]line, counted counts) {
	for name, rules := range lines {
		for i, l := range rules {
			if l.counter == "" {
				continue
			}
			var count ruleset.Count
			if i < len(counted[name]) {
				count = counted[name][i]
			}
			all[l.counter] = all[l.counter].Plus(count)
		}
	}
}

// keep adds counts to those of earlier rules, and forgets counters that no rule names.
func (t *Table) keep(counted map[string]ruleset.Count, now *applied) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, n := range counted {
		t.counted[name] = t.counted[name].Plus(n)
	}
	named := map[string]ruleset.Count{}
	for _, c := range now.chains {
		add(named, c.lines, nil)
	}
	maps.DeleteFunc(t.counted, func(name string, _ ruleset.Count) bool { _, ok := named[name]; return !ok })
}
