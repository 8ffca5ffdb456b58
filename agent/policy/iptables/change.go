// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// hooks are the built-in chains of the table.
var hooks = map[ruleset.Hook]string{ruleset.Input: "INPUT", ruleset.Forward: "FORWARD", ruleset.Output: "OUTPUT"}

// chains are the chains of one family in the kernel.
type chains struct {
	// lines are the rules of our chains by their names.
	lines map[string][]line
	// entries are the rules that lead from the built-in chains to the base chains, by built-in chain.
	entries map[string][]string
}

// haveSameRules reports whether two rulesets have the same rules in the kernel: pods came to or
// left known chains, and sets whose elements are not in the rules themselves.
func haveSameRules(old, rs *ruleset.Ruleset) bool {
	sameTargets := func(a, b *ruleset.Map) bool { return a == b || slices.Equal(targets(a), targets(b)) }
	if old == nil || !maps.Equal(old.Chains, rs.Chains) || !maps.EqualFunc(old.Maps, rs.Maps, sameTargets) {
		return false
	}
	for name, s := range rs.Sets {
		if (s.Kind == ruleset.Pairs || s.Kind == ruleset.Interfaces) && old.Sets[name] != s {
			return false
		}
	}
	return true
}

// restoreText returns the input of iptables-restore that changes the chains from old to want, empty
// if nothing changes. Entries of old at wrong places are made anew.
func restoreText(old, want *chains) []byte {
	var declared, rules, gone bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(want.lines)) {
		have, known := old.lines[name]
		if known && slices.Equal(have, want.lines[name]) {
			continue
		}
		// This line also flushes an existing chain.
		fmt.Fprintf(&declared, ":%s - [0:0]\n", name)
		for _, l := range want.lines[name] {
			fmt.Fprintf(&rules, "-A %s %s\n", name, l.text)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(old.lines)) {
		if _, stays := want.lines[name]; !stays {
			fmt.Fprintf(&declared, ":%s - [0:0]\n", name)
			fmt.Fprintf(&gone, "-X %s\n", name)
		}
	}
	for _, hook := range slices.Sorted(maps.Values(hooks)) {
		if slices.Equal(old.entries[hook], want.entries[hook]) {
			continue
		}
		for _, entry := range old.entries[hook] {
			if entry != "" {
				fmt.Fprintf(&rules, "-D %s %s\n", hook, entry)
			}
		}
		for i, entry := range want.entries[hook] {
			fmt.Fprintf(&rules, "-I %s %d %s\n", hook, i+1, entry)
		}
	}
	if declared.Len()+rules.Len() == 0 {
		return nil
	}
	return slices.Concat([]byte("*"+TableName+"\n"), declared.Bytes(), rules.Bytes(), gone.Bytes(), []byte("COMMIT\n"))
}

// Text is the input with which the programs make a ruleset from nothing.
type Text struct {
	// Sets is for ipset restore, and Rules for iptables-restore and ip6tables-restore.
	Sets  string
	Rules [2]string
}

// TextOf returns the text of a ruleset. It does no I/O.
func TextOf(rs *ruleset.Ruleset) (Text, error) {
	n := names(".1")
	text := Text{Sets: changeOf(nil, n.setsOf(rs, nil, nil)).before.String()}
	for i, f := range ruleset.Families {
		rendered, err := n.render(rs, f)
		if err != nil {
			return Text{}, err
		}
		text.Rules[i] = string(restoreText(&chains{}, rendered))
	}
	return text, nil
}

// counts are the packets and bytes of the rules of our chains, by the names of the chains.
type counts map[string][]ruleset.Count

// parse reads the output of iptables-save with counters. An empty entry stands for a rule of
// another program before one of our entries.
func parse(saved string) (*chains, counts) {
	have, counted := &chains{lines: map[string][]line{}, entries: map[string][]string{}}, counts{}
	for text := range strings.Lines(saved) {
		text = strings.TrimSpace(text)
		if declared, ok := strings.CutPrefix(text, ":"); ok {
			if name, _, _ := strings.Cut(declared, " "); strings.HasPrefix(name, ChainPrefix) {
				have.lines[name] = nil
			}
			continue
		}
		var count ruleset.Count
		if _, err := fmt.Sscanf(text, "[%d:%d]", &count.Packets, &count.Bytes); err != nil {
			continue
		}
		_, rule, _ := strings.Cut(text, "] -A ")
		name, rule, _ := strings.Cut(rule, " ")
		switch {
		case strings.HasPrefix(name, ChainPrefix):
			have.lines[name] = append(have.lines[name], line{text: rule})
			counted[name] = append(counted[name], count)
		case strings.Contains(rule, " -j "+ChainPrefix) || strings.HasPrefix(rule, "-j "+ChainPrefix):
			have.entries[name] = append(have.entries[name], rule)
		default:
			have.entries[name] = append(have.entries[name], "")
		}
	}
	for hook, entries := range have.entries {
		last := len(entries)
		for last > 0 && entries[last-1] == "" {
			last--
		}
		if last == 0 {
			delete(have.entries, hook)
		} else {
			have.entries[hook] = entries[:last]
		}
	}
	return have, counted
}

// declaredIn returns the chains that a text flushes.
func declaredIn(text []byte) map[string]bool {
	all := map[string]bool{}
	for row := range strings.Lines(string(text)) {
		if declared, ok := strings.CutPrefix(row, ":"); ok {
			name, _, _ := strings.Cut(declared, " ")
			all[name] = true
		}
	}
	return all
}
