// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"iter"

	"golang.org/x/sys/unix"
)

// BaseChains lists the base chains of a hook in all tables. In some families the hook's number
// means another hook.
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
			c.Owned = owned[id{c.Table.Family, c.Table.Name}]
			all = append(all, *c)
		}
	}
	return all, err
}

// ListRules lists the rules of the chain, none if it is gone.
func (c KernelChain) ListRules() ([]KernelRule, error) {
	rules, err := c.Table.rules(c.Name)
	return rules[c.Name], err
}

// Says reports whether the rule's comment contains a text.
func (r KernelRule) Says(text string) bool { return bytes.Contains(r.mark, []byte(text)) }

// RefusesAll reports whether the rule drops or rejects every packet that reaches it.
func (r KernelRule) RefusesAll() bool {
	for name, data := range r.expressions() {
		if v, ends := ending(name, data); ends {
			return v.code == verdictDrop
		}
		if name != "counter" && name != "log" && !(name == "match" && data.text(unix.NFTA_MATCH_NAME) == "comment") {
			return false
		}
	}
	return false
}

// expressions yields the expressions of a rule with their attributes. At an unreadable expression
// it yields an empty name and ends.
func (r KernelRule) expressions() iter.Seq2[string, *attributes] {
	return func(yield func(string, *attributes) bool) {
		list, err := splitList(r.statements)
		for _, e := range list {
			var a attributes
			if a, err = split(e); err != nil || !yield(a.text(unix.NFTA_EXPR_NAME), a.in(unix.NFTA_EXPR_DATA)) {
				break
			}
		}
		if err != nil {
			yield("", &attributes{})
		}
	}
}

// PlainRule returns a rule with an unchanged comment, for the nftables chain of another program.
func PlainRule(comment string, all ...Statement) Rule {
	return newRule(func(uint32) string { return comment }, all)
}

// InsertRule adds a rule before another rule or, if before is nil, at the end of the chain.
func (t *Transaction) InsertRule(c KernelChain, before *KernelRule, r Rule) {
	var handle uint64
	if before != nil {
		handle = before.handle
	}
	t.addRule(&c.Table, c.Name, handle, r)
}

func (t *Transaction) DeleteRule(c KernelChain, r KernelRule) {
	t.deleteRule(&c.Table, c.Name, r.handle)
}
