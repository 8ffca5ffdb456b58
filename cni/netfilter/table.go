// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// TableName is the name of the table, in the family inet.
const TableName = "berth"

// Source is an interface of the node that leads to a pod, and an address of the pod.
type Source struct {
	Link    string
	Address netip.Addr
}

// ErrMissing is returned by Check for a table or a source that the kernel does not have.
var ErrMissing = errors.New("nftables rules are incomplete")

// mu makes changes of the table one after another: Ensure looks before it writes.
var mu sync.Mutex

// Ensure makes the table if it is missing or incomplete. present lists the sources of all
// pods on the node, which a new table must have from the start.
func Ensure(present func() ([]Source, error)) error {
	mu.Lock()
	defer mu.Unlock()
	conn, err := open()
	if err != nil {
		return err
	}
	whole, err := isWhole(conn)
	if err != nil || whole {
		return err
	}
	sources, err := present()
	if err != nil {
		return err
	}
	t := newTable()
	// A table can only be deleted if it exists.
	conn.AddTable(t.table)
	conn.DelTable(t.table)
	conn.AddTable(t.table)
	for _, set := range t.sets() {
		if err := conn.AddSet(set, nil); err != nil {
			return fmt.Errorf("make nftables set %s: %w", set.Name, err)
		}
	}
	for _, chain := range t.chains {
		conn.AddChain(chain.chain)
		for _, rule := range chain.rules {
			conn.AddRule(rule)
		}
	}
	for _, s := range sources {
		if err := t.add(conn, s); err != nil {
			return err
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("make nftables table %s (does the kernel have nf_tables, nft_nat and nft_set_hash?): %w", TableName, err)
	}
	return nil
}

// Allow lets the pod behind the link send from the address, and keeps that source address
// in connections that leave the node. It is idempotent; Ensure comes first.
func Allow(s Source) error {
	mu.Lock()
	defer mu.Unlock()
	conn, err := open()
	if err != nil {
		return err
	}
	if err := newTable().add(conn, s); err != nil {
		return err
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("allow %s on link %s in nftables table %s: %w", s.Address, s.Link, TableName, err)
	}
	return nil
}

// Revoke takes back what Allow did. Where another link has the address it says
// elsewhere, and the address stays a floating IP of the node. It succeeds where nothing
// is left to take back.
func Revoke(s Source, elsewhere bool) error {
	mu.Lock()
	defer mu.Unlock()
	conn, err := open()
	if err != nil {
		return err
	}
	t := newTable().family(s.Address)
	elements := []element{{t.sources, sourceKey(s)}}
	if !elsewhere {
		elements = append(elements, element{t.floating, addressKey(s)}, element{t.hairpin, hairpinKey(s)})
	}
	for _, e := range elements {
		if err := remove(conn, e); err != nil {
			return fmt.Errorf("take %s from nftables set %s: %w", s.Address, e.set.Name, err)
		}
	}
	return nil
}

// Forget ends the filtering of a link that no longer exists. Before, a pod whose last
// address was revoked can send nothing.
func Forget(link string) error {
	mu.Lock()
	defer mu.Unlock()
	conn, err := open()
	if err != nil {
		return err
	}
	if err := remove(conn, element{newTable().links, linkKey(link)}); err != nil {
		return fmt.Errorf("take link %s from nftables table %s: %w", link, TableName, err)
	}
	return nil
}

// remove deletes an element, which may be missing, in a transaction of its own: the kernel
// refuses one with an element that is missing.
func remove(conn *nftables.Conn, e element) error {
	if err := conn.SetDeleteElements(e.set, []nftables.SetElement{{Key: e.key}}); err != nil {
		return err
	}
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// Check returns ErrMissing where the table is incomplete or lacks the source.
func Check(s Source) error {
	mu.Lock()
	defer mu.Unlock()
	conn, err := open()
	if err != nil {
		return err
	}
	whole, err := isWhole(conn)
	if err != nil {
		return err
	}
	if !whole {
		return fmt.Errorf("%w: table %s", ErrMissing, TableName)
	}
	t := newTable()
	f := t.family(s.Address)
	for _, e := range []element{{t.links, linkKey(s.Link)}, {f.sources, sourceKey(s)}, {f.floating, addressKey(s)}, {f.hairpin, hairpinKey(s)}} {
		have, err := conn.GetSetElements(e.set)
		if err != nil {
			return fmt.Errorf("list nftables set %s: %w", e.set.Name, err)
		}
		if !slices.ContainsFunc(have, func(x nftables.SetElement) bool { return bytes.Equal(x.Key, e.key) }) {
			return fmt.Errorf("%w: %s is not in set %s", ErrMissing, s.Address, e.set.Name)
		}
	}
	return nil
}

// Sources lists the sources of the table, none where there is no table.
func Sources() ([]Source, error) {
	mu.Lock()
	defer mu.Unlock()
	conn, err := open()
	if err != nil {
		return nil, err
	}
	exists, err := tableExists(conn)
	if err != nil || !exists {
		return nil, err
	}
	var all []Source
	for _, f := range newTable().families {
		elements, err := conn.GetSetElements(f.sources)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list nftables set %s: %w", f.sources.Name, err)
		}
		for _, e := range elements {
			if s, ok := parseSource(e.Key); ok {
				all = append(all, s)
			}
		}
	}
	return all, nil
}

// Links lists the links whose packets are filtered, none where there is no table.
func Links() ([]string, error) {
	mu.Lock()
	defer mu.Unlock()
	conn, err := open()
	if err != nil {
		return nil, err
	}
	exists, err := tableExists(conn)
	if err != nil || !exists {
		return nil, err
	}
	set := newTable().links
	elements, err := conn.GetSetElements(set)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list nftables set %s: %w", set.Name, err)
	}
	var all []string
	for _, e := range elements {
		all = append(all, unix.ByteSliceToString(e.Key))
	}
	return all, nil
}

func open() (*nftables.Conn, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return conn, nil
}

func tableExists(conn *nftables.Conn) (bool, error) {
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, fmt.Errorf("list nftables tables: %w", err)
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == TableName }), nil
}

// isWhole returns whether every chain has its rules, and only these, by their marks.
func isWhole(conn *nftables.Conn) (bool, error) {
	if exists, err := tableExists(conn); err != nil || !exists {
		return false, err
	}
	for _, chain := range newTable().chains {
		rules, err := conn.GetRules(chain.chain.Table, chain.chain)
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
	return true, nil
}
