// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/netfilter"
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
	conn, err := netfilter.Open()
	if err != nil {
		return false, err
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
	conn, err := netfilter.Open()
	if err != nil {
		return err
	}
	conn.DelTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: TableName})
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete nftables table %s: %w", TableName, err)
	}
	return nil
}

// make replaces the table, in the transaction that conn flushes.
func (c *content) make(conn *nftables.Conn) error {
	if err := netfilter.Replace(conn, []*nftables.Table{c.table}, c.sets(), c.chains); err != nil {
		return err
	}
	for _, set := range c.sets() {
		if err := netfilter.AddElements(conn, set, c.elements[set]); err != nil {
			return err
		}
	}
	return nil
}

// fill gives the sets of a whole table their elements, in the transaction that conn
// flushes, and returns whether any had others.
func (c *content) fill(conn *nftables.Conn) (changed bool, err error) {
	for _, set := range c.sets() {
		have, err := conn.GetSetElements(set)
		if err != nil {
			return false, fmt.Errorf("list nftables set %s: %w", set.Name, err)
		}
		if sameElements(have, c.elements[set]) {
			continue
		}
		changed = true
		conn.FlushSet(set)
		if err := netfilter.AddElements(conn, set, c.elements[set]); err != nil {
			return false, err
		}
	}
	return changed, nil
}

// isWhole returns whether the table has its sets and chains, and each chain its rules and
// only these, by their marks.
func (c *content) isWhole(conn *nftables.Conn) (bool, error) {
	if exists, err := netfilter.Exists(conn, c.table); err != nil || !exists {
		return false, err
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
		if whole, err := chain.IsWhole(); err != nil || !whole {
			return false, err
		}
	}
	for _, set := range c.sets() {
		if _, err := conn.GetSetByName(c.table, set.Name); err != nil {
			return false, nil //nolint:nilerr // it is missing; and a table that cannot be read is written anew
		}
	}
	return true, nil
}
