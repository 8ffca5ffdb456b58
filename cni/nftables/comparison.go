// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"slices"
)

// ErrDiffers is returned, with the first different object, if the kernel's table is not the wanted
// table.
var ErrDiffers = errors.New("nftables is not as it must be")

func (t *Table) differs(format string, args ...any) error {
	return fmt.Errorf("%w: table %s: %s", ErrDiffers, t.Name, fmt.Sprintf(format, args...))
}

// Check returns ErrDiffers if the kernel's table has missing, different or additional objects.
func (t *Table) Check() error {
	if err := t.CheckStructure(); err != nil {
		return err
	}
	for _, s := range t.Sets {
		if s.Elements == nil {
			continue
		}
		if err := t.checkElements(s.Name, s.Elements); err != nil {
			return err
		}
	}
	return nil
}

// CheckStructure is Check without elements.
func (t *Table) CheckStructure() error {
	have, err := t.Contents()
	if err != nil {
		return err
	}
	return t.compare(have)
}

func (t *Table) compare(have *Contents) error {
	switch {
	case !have.Exists:
		return t.differs("it is missing")
	case have.dormant:
		return t.differs("it is switched off")
	}
	if err := t.compareChains(have.Chains); err != nil {
		return err
	}
	counters := map[string]bool{}
	for _, o := range have.Objects {
		counters[o.Name] = o.IsCounter()
	}
	for _, name := range t.Counters {
		if !counters[name] {
			return t.differs("counter %s is missing", name)
		}
	}
	return t.compareSets(have.Sets)
}

func (t *Table) compareChains(have []*Chain) error {
	rules, err := t.rules("")
	if err != nil {
		return err
	}
	wanted := make(map[string]*Chain, len(t.Chains))
	for _, c := range t.Chains {
		wanted[c.Name] = c
	}
	for _, c := range have {
		want, ok := wanted[c.Name]
		switch {
		case !ok:
			return t.differs("chain %s is new", c.Name)
		case !want.sameBase(c):
			return t.differs("chain %s is at another hook", c.Name)
		case !want.sameRules(rules[c.Name]):
			return t.differs("chain %s has other rules", c.Name)
		}
		delete(wanted, c.Name)
	}
	for name := range wanted {
		return t.differs("chain %s is missing", name)
	}
	return nil
}

// sameBase reports whether two chains have the same place. Not every kernel shows the device.
func (c *Chain) sameBase(have *Chain) bool {
	if c.Base == nil || have.Base == nil {
		return c.Base == nil && have.Base == nil
	}
	want, is := *c.Base, *have.Base
	want.Device, is.Device = "", ""
	return want == is
}

// sameRules reports whether the kernel has the chain's rules, with their comments. Comments alone
// are no proof, because others can write them.
func (c *Chain) sameRules(have []KernelRule) bool {
	if c.Rules != nil {
		for want := range c.Rules {
			if len(have) == 0 || !bytes.Equal(want.mark, have[0].mark) || !want.covers(have[0].statements) {
				return false
			}
			have = have[1:]
		}
	}
	return len(have) == 0
}

func (t *Table) compareSets(have []*Set) error {
	wanted := make(map[string]*Set, len(t.Sets))
	for _, s := range t.Sets {
		wanted[s.Name] = s
	}
	for _, s := range have {
		want, ok := wanted[s.Name]
		switch {
		case !ok:
			return t.differs("set %s is new", s.Name)
		case want.Interval != s.Interval || want.Verdicts != s.Verdicts || (want.Data != nil || want.Verdicts) != (s.Data != nil) || concatenate(want.Key).magic != s.Key[0].magic:
			return t.differs("set %s is of another type", s.Name)
		}
		delete(wanted, s.Name)
	}
	for name := range wanted {
		return t.differs("set %s is missing", name)
	}
	return nil
}

// lists is how often a set is listed while elements seem to be missing: the kernel may just be
// resizing it.
const lists = 3

func (t *Table) checkElements(set string, elements iter.Seq[Element]) error {
	type place struct {
		key string
		end bool
	}
	type element struct {
		value string
		seen  bool
	}
	want := map[place]element{}
	for e := range elements {
		want[place{string(e.Key), e.End}] = element{value: e.value()}
	}
	missing := len(want)
	for attempt := 0; attempt == 0 || missing > 0 && attempt < lists; attempt++ {
		same := true
		err := t.Elements(set, func(e Element) {
			at := place{string(e.Key), e.End}
			wanted, ok := want[at]
			switch {
			case !ok && e.isFirstEnd():
			case !ok || wanted.value != e.value():
				same = false
			case !wanted.seen:
				want[at] = element{wanted.value, true}
				missing--
			}
		})
		if err != nil {
			return err
		}
		if !same {
			return t.differs("set %s has other elements", set)
		}
	}
	for at, wanted := range want {
		if wanted.seen {
			continue
		}
		e, found, err := t.Find(set, []byte(at.key))
		if err != nil {
			return err
		}
		if !found || e.End != at.end || e.value() != wanted.value {
			return t.differs("set %s lacks elements", set)
		}
	}
	return nil
}

func (e Element) value() string { return e.Goto + string(e.Data) }

// isFirstEnd reports whether the element is the end with which the kernel begins a set of
// intervals.
func (e Element) isFirstEnd() bool {
	return e.End && !slices.ContainsFunc(e.Key, func(b byte) bool { return b != 0 })
}

// CheckRules returns ErrDiffers if any chain of the table is missing in the kernel or has other
// rules, or if the table is switched off. Other chains may exist.
func (t *Table) CheckRules() error {
	have, err := t.Contents()
	if err != nil {
		return err
	}
	if !have.Exists || have.dormant {
		return t.differs("it is missing or switched off")
	}
	for _, want := range t.Chains {
		i := slices.IndexFunc(have.Chains, func(c *Chain) bool { return c.Name == want.Name })
		if i < 0 || !want.sameBase(have.Chains[i]) {
			return t.differs("chain %s is missing or changed", want.Name)
		}
		rules, err := t.rules(want.Name)
		if err != nil {
			return err
		}
		if !want.sameRules(rules[want.Name]) {
			return t.differs("chain %s has other rules", want.Name)
		}
	}
	return nil
}

// State is a table as the kernel has it.
type State struct {
	Exists bool
	// differs says how the table differs, except in its elements.
	differs  error
	elements map[string][]Element
}

// Read reads a table, with the elements of the sets of t.
func (t *Table) Read() (*State, error) {
	have, err := t.Contents()
	if err != nil {
		return nil, err
	}
	s := &State{Exists: have.Exists, elements: map[string][]Element{}}
	if s.differs = t.compare(have); s.differs != nil && !errors.Is(s.differs, ErrDiffers) {
		return nil, s.differs
	}
	if !s.Exists {
		return s, nil
	}
	for _, set := range t.Sets {
		var all []Element
		err := t.Elements(set.Name, func(e Element) {
			if !e.isFirstEnd() {
				all = append(all, e)
			}
		})
		if err != nil {
			return nil, err
		}
		// The kernel may list an element twice.
		s.elements[set.Name] = slices.CompactFunc(sorted(slices.Values(all)), func(a, b Element) bool { return compareElements(a, b) == 0 })
	}
	return s, nil
}

// Check returns ErrDiffers if the table differs in anything except elements.
func (s *State) Check() error { return s.differs }

// Elements returns the elements of a set in the order of their keys.
func (s *State) Elements(set string) []Element { return s.elements[set] }

func sorted(elements iter.Seq[Element]) []Element {
	var all []Element
	for e := range elements {
		e.Key = bytes.Clone(e.Key)
		all = append(all, e)
	}
	slices.SortFunc(all, compareElements)
	return all
}
