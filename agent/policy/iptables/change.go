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

// chainsOf returns the kernel's form of the chains of a ruleset.
func chainsOf(rs *ruleset.Ruleset, rendered map[string]*chain) *chains {
	all := &chains{lines: map[string][]line{}, entries: map[string][]string{}}
	for name, c := range rendered {
		all.lines[chainName(name)] = c.lines
		for rest, c := range c.rest {
			all.lines[rest] = c.lines
		}
	}
	for _, c := range rs.Bases() {
		hook := hooks[c.Hook]
		all.entries[hook] = append(all.entries[hook], join(comment("Berth: network policies"), "-j "+chainName(c.Name)))
	}
	return all
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

// texts returns the rules without the names of their counters.
func texts(lines []line) []string {
	var all []string
	for _, l := range lines {
		all = append(all, l.text)
	}
	return all
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
