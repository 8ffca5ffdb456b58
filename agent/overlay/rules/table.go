// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/ipam/iprange"
)

// TableName is the name of the table, in the family inet.
const TableName = "berth-overlay"

// Spec is what the table follows from.
type Spec struct {
	// Bridge is the link of the node's pods.
	Bridge string
	// Subnets are the node's own pod CIDRs.
	Subnets []netip.Prefix
	// Inside are the destinations that are not masqueraded. They may overlap.
	Inside []iprange.Range
	// Masquerade is false where somebody else masquerades.
	Masquerade bool
}

// Put makes the table as the Spec says, in one transaction, and returns whether something
// was missing or different. It is idempotent; the caller makes calls one after another.
func Put(spec Spec) (changed bool, err error) {
	conn, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("open nftables: %w", err)
	}
	c := newContent(spec)
	whole, err := c.isWhole(conn)
	if err != nil {
		return false, err
	}
	if whole {
		changed, err = c.fill(conn)
	} else {
		changed, err = true, c.make(conn)
	}
	if err != nil || !changed {
		return false, err
	}
	if err := conn.Flush(); err != nil {
		return false, fmt.Errorf("write nftables table %s (does the kernel have nf_tables, nft_masq and nft_set_rbtree?): %w", TableName, err)
	}
	return true, nil
}

// Remove deletes the table, if there is one.
func Remove() error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	conn.DelTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: TableName})
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete nftables table %s: %w", TableName, err)
	}
	return nil
}

// make replaces the table, in the transaction that conn flushes.
func (c *content) make(conn *nftables.Conn) error {
	// A table can only be deleted if it exists.
	conn.AddTable(c.table)
	conn.DelTable(c.table)
	conn.AddTable(c.table)
	for _, f := range c.families {
		for _, set := range []*nftables.Set{f.subnets, f.inside} {
			if err := conn.AddSet(set, c.elements[set]); err != nil {
				return fmt.Errorf("make nftables set %s: %w", set.Name, err)
			}
		}
	}
	for _, chain := range c.chains {
		conn.AddChain(chain.chain)
		for _, rule := range chain.rules {
			conn.AddRule(rule)
		}
	}
	return nil
}

// fill gives the sets of a whole table their elements, in the transaction that conn
// flushes, and returns whether any had others.
func (c *content) fill(conn *nftables.Conn) (changed bool, err error) {
	for _, f := range c.families {
		for _, set := range []*nftables.Set{f.subnets, f.inside} {
			have, err := conn.GetSetElements(set)
			if err != nil {
				return false, fmt.Errorf("list nftables set %s: %w", set.Name, err)
			}
			if sameElements(have, c.elements[set]) {
				continue
			}
			changed = true
			conn.FlushSet(set)
			if len(c.elements[set]) == 0 {
				continue
			}
			if err := conn.SetAddElements(set, c.elements[set]); err != nil {
				return false, fmt.Errorf("fill nftables set %s: %w", set.Name, err)
			}
		}
	}
	return changed, nil
}

// isWhole returns whether the table has its sets and chains, and each chain its rules and
// only these, by their marks.
func (c *content) isWhole(conn *nftables.Conn) (bool, error) {
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, fmt.Errorf("list nftables tables: %w", err)
	}
	if !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == TableName }) {
		return false, nil
	}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, fmt.Errorf("list nftables chains: %w", err)
	}
	ours := slices.DeleteFunc(chains, func(have *nftables.Chain) bool { return have.Table.Name != TableName })
	if len(ours) != len(c.chains) {
		return false, nil
	}
	for _, chain := range c.chains {
		rules, err := conn.GetRules(c.table, chain.chain)
		if errors.Is(err, unix.ENOENT) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("list nftables chain %s: %w", chain.chain.Name, err)
		}
		if !slices.EqualFunc(rules, chain.rules, func(have, want *nftables.Rule) bool { return bytes.Equal(have.UserData, want.UserData) }) {
			return false, nil
		}
	}
	for _, f := range c.families {
		for _, set := range []*nftables.Set{f.subnets, f.inside} {
			if _, err := conn.GetSetByName(c.table, set.Name); err != nil {
				return false, nil
			}
		}
	}
	return true, nil
}
