// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/policy/connections"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/cni/xtables"
)

// Table is the rules of policies in one network namespace. Methods block for programs. Only
// Counters, Adopt and EndConnections may be called in parallel to others.
type Table struct {
	connections.Namespace

	variant programs

	// applied is the ruleset in the kernel, nil if unknown.
	applied atomic.Pointer[applied]
	// mu guards counted, which Counters reads.
	mu sync.Mutex
	// counted has the counts of rules before they were made anew.
	counted map[string]ruleset.Count
	// doomed are unused sets that could not be destroyed yet.
	doomed map[string]bool
}

// applied is a ruleset in the kernel.
type applied struct {
	rs    *ruleset.Ruleset
	names names
	sets  map[string]*set
	// chains are by family, in the order of families.
	chains [2]*chains
}

// New returns the rules of the network namespace at a path. An empty path stands for the network
// namespace of the calling process.
func New(netns string, variant xtables.Variant) *Table {
	return &Table{Namespace: connections.Namespace(netns), variant: programs{variant}, counted: map[string]ruleset.Count{}, doomed: map[string]bool{}}
}

// Apply writes a ruleset, which rulesettest.Check must accept, into the kernel. After an error
// packets meet old or new rules, and the next Apply replaces all rules.
func (t *Table) Apply(ctx context.Context, rs *ruleset.Ruleset) error {
	return t.Do(func() error {
		before := t.applied.Load()
		if before != nil {
			err := t.change(ctx, before, rs)
			if err == nil {
				return nil
			}
			klog.FromContext(ctx).Info("Replaces the rules of policies, because the kernel refused a change of them", "namespace", t.Namespace, "err", err)
		}
		before, err := t.read(ctx)
		if err != nil {
			return err
		}
		if err := t.change(ctx, before, rs); err != nil {
			return fmt.Errorf("replace the rules of policies: %w", err)
		}
		return nil
	})
}

// read returns the kernel's chains and sets, without a ruleset, and a new generation of set names.
func (t *Table) read(ctx context.Context) (*applied, error) {
	have := &applied{sets: map[string]*set{}}
	for i, f := range ruleset.Families {
		saved, err := t.variant.save(ctx, f)
		if err != nil {
			return nil, fmt.Errorf("read the rules of policies: %w", err)
		}
		have.chains[i], _ = parse(saved)
	}
	listed, err := run(ctx, nil, "ipset", "list", "-name")
	if err != nil {
		return nil, fmt.Errorf("read the sets of policies: %w", err)
	}
	used := map[names]bool{}
	for name := range strings.FieldsSeq(listed) {
		if !strings.HasPrefix(name, SetPrefix) {
			continue
		}
		t.doomed[name] = true
		at := max(0, strings.LastIndexByte(name, '.'))
		used[names(name[at:])] = true
	}
	for i := 1; have.names == "" || used[have.names]; i++ {
		have.names = names(fmt.Sprintf(".%d", i))
	}
	return have, nil
}

// change turns one ruleset into another, in the order of doc.go.
func (t *Table) change(ctx context.Context, before *applied, rs *ruleset.Ruleset) error {
	after := &applied{rs, before.names, before.names.setsOf(rs, before.rs, before.sets), before.chains}
	var texts [2][]byte
	if !haveSameRules(before.rs, rs) {
		for i, f := range ruleset.Families {
			rendered, err := after.names.render(rs, f)
			if err != nil {
				return err
			}
			after.chains[i], texts[i] = rendered, restoreText(before.chains[i], rendered)
		}
	}
	sets := changeOf(before.sets, after.sets)
	counted, err := t.count(ctx, before, &texts)
	if err != nil {
		return err
	}
	t.applied.Store(nil)
	if sets.before.Len() > 0 {
		if err := changeSets(ctx, sets.before.Bytes()); err != nil {
			return err
		}
	}
	for i, f := range ruleset.Families {
		if len(texts[i]) == 0 {
			continue
		}
		if err := t.variant.restore(ctx, f, texts[i]); err != nil {
			return err
		}
	}
	if sets.after.Len() > 0 {
		if err := changeSets(ctx, sets.after.Bytes()); err != nil {
			return err
		}
	}
	for _, name := range sets.gone {
		t.doomed[name] = true
	}
	// Counters must not see the new rules before all counts are kept.
	t.keep(counted, after)
	t.applied.Store(after)
	t.destroy(ctx, after)
	return nil
}

// destroy removes unused sets. The kernel may still be working with rules that named them: a later
// change destroys these sets.
func (t *Table) destroy(ctx context.Context, now *applied) {
	for name := range t.doomed {
		if now != nil && now.sets[name] != nil {
			delete(t.doomed, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.doomed)) {
		if err := changeSets(ctx, fmt.Appendf(nil, "destroy %s\n", name)); err != nil {
			klog.FromContext(ctx).V(4).Info("Cannot destroy a set yet", "set", name, "err", err)
			continue
		}
		delete(t.doomed, name)
	}
}

// Exists reports whether the namespace exists and has rules or sets of policies.
func (t *Table) Exists(ctx context.Context) (exists bool, err error) {
	err = t.Do(func() error {
		if !t.variant.HasTable(TableName) {
			return nil
		}
		have, err := (&Table{variant: t.variant, doomed: map[string]bool{}}).read(ctx)
		if err == nil {
			exists = len(have.chains[0].lines)+len(have.chains[1].lines) > 0
		}
		return err
	})
	return exists, notGone(err)
}

// notGone returns nil if an error says that the namespace is gone.
func notGone(err error) error {
	if connections.IsGone(err) {
		return nil
	}
	return err
}

// Remove deletes the rules and sets, if namespace, rules and sets exist.
func (t *Table) Remove(ctx context.Context) error {
	t.applied.Store(nil)
	return notGone(t.Do(func() error {
		if !t.variant.HasTable(TableName) {
			return nil
		}
		before, err := t.read(ctx)
		if err != nil {
			return err
		}
		for i, f := range ruleset.Families {
			if text := restoreText(before.chains[i], &chains{}); len(text) > 0 {
				if err := t.variant.restore(ctx, f, text); err != nil {
					return fmt.Errorf("remove the rules of policies: %w", err)
				}
			}
		}
		t.destroy(ctx, nil)
		return nil
	}))
}
