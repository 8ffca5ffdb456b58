// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"slices"
)

// Change is the difference of two contents of a table. Commit makes it in up to three transactions.
// Only the second transaction changes the verdict on packets. New rules of a chain apply to later
// packets, but elements of sets and maps apply to all packets, also to packets in the old rules. A
// packet in the old rules must not be led to a chain that has no rules for it yet, and must find
// maps unchanged.
type Change struct {
	// Made has new, still unused chains, sets and counters, which the first transaction makes.
	Made Table
	// Chains get other rules, and Sets get other elements, in the second transaction.
	Chains []ChainChange
	Sets   []SetChange
	// Gone has the names of objects that are no longer used, which the third transaction deletes.
	Gone Gone
	// Kept are sets whose elements others own. Missing sets are made.
	Kept []*Set
	// anew replaces the table by Made and Chains, in one transaction; table makes a missing table.
	anew, table bool
}

// ChainChange is a chain with its new rules. Exists says that the kernel has the chain; Moves says
// that it has the chain at another hook.
type ChainChange struct {
	*Chain
	Exists, Moves bool
}

// SetChange is a set in its new state, with the removed and added elements.
type SetChange struct {
	*Set
	Gone, Came iter.Seq[Element]
}

// Gone lists the objects that a Change deletes.
type Gone struct {
	Chains, Maps, Sets []string
	Objects            []Object
}

// deleteAll deletes objects that nothing else names.
func (t *Transaction) deleteAll(of *Table, gone Gone) {
	for _, name := range gone.Chains {
		t.FlushChain(of, name)
	}
	for _, name := range gone.Maps {
		// For older kernels a chain behind a deleted map is still in use.
		t.flushSet(of, name)
		t.DeleteSet(of, name)
	}
	for _, name := range gone.Chains {
		t.DeleteChain(of, name)
	}
	for _, name := range gone.Sets {
		t.DeleteSet(of, name)
	}
	for _, o := range gone.Objects {
		t.deleteObject(of, o.Name, o.Kind)
	}
}

// Replacement returns the change from any content of the kernel's table to want. The kernel must
// not have the names of want's chains without a hook and of its sets, except sets that others fill.
// Base chains, counters with their values and sets that others fill stay; if anew, nothing stays.
func Replacement(have *Contents, want *Table, anew bool) *Change {
	c := &Change{Made: Table{Family: want.Family, Name: want.Name}, anew: anew, table: true}
	if anew {
		have = &Contents{}
	}
	for _, s := range want.Sets {
		if s.Elements == nil {
			c.Kept = append(c.Kept, s)
		} else {
			c.Made.Sets = append(c.Made.Sets, s)
		}
	}
	old, wanted := map[string]*Chain{}, map[string]bool{}
	for _, k := range have.Chains {
		old[k.Name] = k
	}
	for _, w := range want.Chains {
		if w.Base == nil {
			c.Made.Chains = append(c.Made.Chains, w)
			continue
		}
		k, exists := old[w.Name]
		c.Chains = append(c.Chains, ChainChange{w, exists, exists && !w.sameBase(k)})
		wanted[w.Name] = true
	}
	for _, k := range have.Chains {
		if !wanted[k.Name] {
			c.Gone.Chains = append(c.Gone.Chains, k.Name)
		}
	}
	for _, s := range have.Sets {
		switch {
		case slices.ContainsFunc(c.Kept, func(k *Set) bool { return k.Name == s.Name }):
		case s.Data != nil:
			c.Gone.Maps = append(c.Gone.Maps, s.Name)
		default:
			c.Gone.Sets = append(c.Gone.Sets, s.Name)
		}
	}
	counters, stay := map[string]bool{}, map[string]bool{}
	for _, name := range want.Counters {
		counters[name] = true
	}
	for _, o := range have.Objects {
		if o.IsCounter() && counters[o.Name] {
			stay[o.Name] = true
		} else {
			c.Gone.Objects = append(c.Gone.Objects, o)
		}
	}
	c.Made.Counters = slices.DeleteFunc(slices.Clone(want.Counters), func(name string) bool { return stay[name] })
	return c
}

// ErrNotCleared is returned if the new rules apply, but the table still has unused objects.
var ErrNotCleared = errors.New("nftables keeps unused objects")

// Commit makes the change and returns how many transactions the kernel made. After any error except
// ErrNotCleared the old rules apply.
func (c *Change) Commit() (transactions uint32, err error) {
	var prepare, turn, cleanup Transaction
	t := &c.Made
	first := &prepare
	if c.anew {
		// The old table must be deleted before the new table is made.
		first = &turn
		first.Delete(t)
	}
	if c.table {
		first.AddTable(t)
	}
	for _, s := range c.Kept {
		first.AddSet(t, s)
	}
	first.makeContent(t)
	c.turn(&turn)
	cleanup.deleteAll(t, c.Gone)
	for _, tx := range []*Transaction{&prepare, &turn, &cleanup} {
		if tx.IsEmpty() {
			continue
		}
		transactions++
		err := tx.Commit()
		if err != nil && tx == &cleanup {
			return transactions - 1, fmt.Errorf("%w: %w", ErrNotCleared, err)
		}
		if err != nil && tx == &turn && !prepare.IsEmpty() {
			err = errors.Join(err, c.undo())
		}
		if err != nil {
			return transactions - 1, err
		}
	}
	return transactions, nil
}

func (c *Change) turn(tx *Transaction) {
	t := &c.Made
	for _, chain := range c.Chains {
		if chain.Exists {
			tx.FlushChain(t, chain.Name)
		}
		if chain.Moves {
			tx.DeleteChain(t, chain.Name)
		}
		if chain.Base != nil {
			tx.AddChain(t, chain.Chain)
		}
		tx.AddRules(t, chain.Chain)
	}
	for _, s := range c.Sets {
		tx.changeElements(t, s)
	}
}

func (c *Change) undo() error {
	var made Gone
	for _, chain := range c.Made.Chains {
		made.Chains = append(made.Chains, chain.Name)
	}
	for _, s := range c.Made.Sets {
		if s.Verdicts {
			made.Maps = append(made.Maps, s.Name)
		} else {
			made.Sets = append(made.Sets, s.Name)
		}
	}
	for _, name := range c.Made.Counters {
		made.Objects = append(made.Objects, Object{Name: name, Kind: counterKind})
	}
	var tx Transaction
	tx.deleteAll(&c.Made, made)
	return tx.Commit()
}

func (t *Transaction) changeElements(of *Table, s SetChange) {
	if s.Interval {
		// The end of an interval may be the beginning of another.
		t.flushSet(of, s.Name)
		t.AddElements(of, s.Name, s.Elements)
		return
	}
	t.DeleteElements(of, s.Name, s.Gone)
	t.AddElements(of, s.Name, s.Came)
}

func compareElements(a, b Element) int {
	if c := bytes.Compare(a.Key, b.Key); c != 0 || a.End == b.End {
		return c
	}
	if a.End {
		return -1
	}
	return 1
}

// difference returns the elements that are in only one of two ordered lists. An element with a
// changed value is in both results.
func difference(old, want []Element) (gone, came []Element) {
	for len(old) > 0 || len(want) > 0 {
		order := 1
		switch {
		case len(old) > 0 && len(want) > 0:
			order = compareElements(old[0], want[0])
		case len(old) > 0:
			order = -1
		}
		same := order == 0 && old[0].value() == want[0].value()
		if order <= 0 {
			if !same {
				gone = append(gone, old[0])
			}
			old = old[1:]
		}
		if order >= 0 {
			if !same {
				came = append(came, want[0])
			}
			want = want[1:]
		}
	}
	return gone, came
}
