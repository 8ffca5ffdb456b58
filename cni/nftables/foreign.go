// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"

	"golang.org/x/sys/unix"
)

// KernelChain is a base chain of any program.
type KernelChain struct {
	Chain
	Table Table
	// Owned says that only the program that made the table may change it.
	Owned bool
}

// KernelRule is a rule that the kernel has.
type KernelRule struct{ kernelRule }

// BaseChains lists the base chains of a hook, of all tables. Some families have other hooks of the
// same number.
func BaseChains(hook Hook) (all []KernelChain, err error) {
	tables, err := Tables(0)
	if err != nil {
		return nil, err
	}
	if len(tables) == 0 {
		return nil, nil
	}
	type id struct {
		family TableFamily
		name   string
	}
	owned := map[id]bool{}
	for _, t := range tables {
		owned[id{t.Family, t.Name}] = t.owned
	}
	chains, err := chainsOf(&Table{})
	for _, c := range chains {
		if c.Base != nil && c.Base.Hook == hook {
			all = append(all, KernelChain{c.Chain, c.table, owned[id{c.table.Family, c.table.Name}]})
		}
	}
	return all, err
}

// ListRules lists the rules of the chain, none where it is gone.
func (c KernelChain) ListRules() ([]KernelRule, error) {
	rules, err := c.Table.rules(c.Name)
	var all []KernelRule
	for _, r := range rules[c.Name] {
		all = append(all, KernelRule{r})
	}
	return all, err
}

// Says returns whether the rule's comment has a text in it.
func (r KernelRule) Says(text string) bool { return bytes.Contains(r.mark, []byte(text)) }

// RefusesAll returns whether the rule drops or rejects every packet that comes to it.
func (r KernelRule) RefusesAll() bool {
	expressions, err := splitList(r.statements)
	if err != nil {
		return false
	}
	refuses := false
	for _, e := range expressions {
		a, err := split(e)
		if err != nil {
			return false
		}
		data, err := split(a[unix.NFTA_EXPR_DATA])
		if err != nil {
			return false
		}
		switch a.text(unix.NFTA_EXPR_NAME) {
		case "counter", "log":
		case "match":
			if data.text(unix.NFTA_MATCH_NAME) != "comment" {
				return false
			}
		case "immediate":
			refuses = isDrop(data[unix.NFTA_IMMEDIATE_DATA])
		case "reject":
			refuses = true
		case "target":
			refuses = data.text(unix.NFTA_TARGET_NAME) == "REJECT"
		default:
			return false
		}
	}
	return refuses
}

func isDrop(data []byte) bool {
	verdict, err := only(data, unix.NFTA_DATA_VERDICT)
	if err != nil {
		return false
	}
	a, err := split(verdict)
	return err == nil && a[unix.NFTA_VERDICT_CODE] != nil && a.number(unix.NFTA_VERDICT_CODE) == verdictDrop
}

// PlainRule returns a rule with a comment as it is given, for the chain of another program.
func PlainRule(comment string, all ...Statement) Rule {
	return newRule(func(uint32) string { return comment }, all)
}

// InsertRule adds a rule in front of another one, at the end of the chain where that is nil.
func (t *Transaction) InsertRule(c KernelChain, before *KernelRule, r Rule) {
	var handle uint64
	if before != nil {
		handle = before.handle
	}
	t.addRule(&c.Table, c.Name, handle, r)
}

// DeleteRule deletes a rule.
func (t *Transaction) DeleteRule(c KernelChain, r KernelRule) {
	t.deleteRule(&c.Table, c.Name, r.handle)
}
