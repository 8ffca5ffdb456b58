// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/netfilter"
)

// Forwarder writes the host ports of the network namespace that it is used in. Methods are
// safe in parallel and block for the kernel.
type Forwarder struct {
	mu sync.Mutex
	// applied says that Apply has been done: before, the connections of all mappings are
	// looked at, because an earlier process may have died before it did.
	applied bool
}

// attempts is how often a change is tried that another program's change came before.
const attempts = 3

// batch limits the elements of one message, whose size is limited.
const batch = 200

// Apply makes the node forward the ports of mappings and no others, in one transaction, and
// ends connections that lead elsewhere. It returns true where something else was there. Without
// mappings it leaves nothing behind.
func (f *Forwarder) Apply(mappings []Mapping) (changed bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	links, err := linksTo(mappings)
	if err != nil {
		return false, err
	}
	var services []netip.Addr
	if len(mappings) > 0 {
		if services, err = servicesOfIPVS(); err != nil {
			return false, err
		}
	}
	want := contentOf(mappings, links, services)
	had, changed, err := write(want)
	if err != nil {
		return false, err
	}
	// The guard is there: loopback addresses can be routed now.
	for _, link := range want.linkNames() {
		if err := routeLoopback(link, true); err != nil {
			return changed, err
		}
	}
	began, ended := changes(had, want)
	if !f.applied {
		began = want.forwards()
	}
	if err := endConnections(began, ended); err != nil {
		return changed, err
	}
	f.applied = true
	return changed, nil
}

// ErrMissing is returned by Check for a port that the node does not forward.
var ErrMissing = errors.New("host port is not forwarded")

// Check returns ErrMissing where the node does not forward one of the ports.
func (f *Forwarder) Check(mappings []Mapping) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	t := newTable()
	_, whole, err := t.look(conn)
	if err != nil {
		return err
	}
	if !whole {
		return fmt.Errorf("%w: nftables table %s is missing or incomplete", ErrMissing, TableName)
	}
	have, err := t.content(conn)
	if err != nil {
		return err
	}
	for _, m := range mappings {
		if len(contentOf([]Mapping{m}, nil, nil).without(have)) > 0 {
			return fmt.Errorf("%w: %s", ErrMissing, m)
		}
	}
	return nil
}

// write makes the sets of the table those of want, and returns what was there.
func write(want content) (had content, changed bool, err error) {
	for range attempts {
		if had, changed, err = writeOnce(want); !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	return had, changed, err
}

func writeOnce(want content) (had content, changed bool, err error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, false, fmt.Errorf("open nftables: %w", err)
	}
	t := newTable()
	exists, whole, err := t.look(conn)
	if err != nil {
		return nil, false, err
	}
	had = content{}
	if exists {
		if had, err = t.content(conn); err != nil {
			return nil, false, err
		}
	}
	if len(want) == 0 && !exists {
		return had, false, nil
	}
	// Before the guard goes: nothing may come in by a link that needs it no more.
	for _, link := range had.linkNames() {
		if !slices.Contains(want.linkNames(), link) {
			if err := routeLoopback(link, false); err != nil {
				return nil, false, err
			}
		}
	}
	switch {
	case len(want) == 0:
		conn.DelTable(t.table)
		changed = true
	case !whole:
		if err := t.make(conn); err != nil {
			return nil, false, err
		}
		err = t.addAll(conn, want.without(nil))
		changed = true
	default:
		gone, missing := had.without(want), want.without(had)
		err = errors.Join(t.deleteAll(conn, gone), t.addAll(conn, missing))
		changed = len(gone)+len(missing) > 0
	}
	if err != nil {
		return nil, false, err
	}
	if !changed {
		return had, false, nil
	}
	if err := conn.Flush(); err != nil {
		return nil, false, fmt.Errorf("write nftables table %s (does the kernel have nf_tables, nft_nat, nft_masq, nft_fib_inet and nft_ct?): %w", TableName, err)
	}
	return had, true, nil
}

// look returns whether the table exists, and whether every chain has its rules, and only
// these, by their marks.
func (t *table) look(conn *nftables.Conn) (exists, whole bool, err error) {
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, false, fmt.Errorf("list nftables tables: %w", err)
	}
	if !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == TableName }) {
		return false, false, nil
	}
	for _, chain := range t.chains {
		marks, err := marksOf(chain.chain)
		if err != nil {
			return false, false, err
		}
		if !slices.EqualFunc(marks, chain.rules, func(have []byte, want *nftables.Rule) bool { return bytes.Equal(have, want.UserData) }) {
			return true, false, nil
		}
	}
	return true, true, nil
}

// marksOf lists the user data of a chain's rules, none where there is no such chain. Package
// nftables cannot read rules that have ct expressions with a direction.
func marksOf(c *nftables.Chain) ([][]byte, error) {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: uint8(c.Table.Family), Version: nl.NFNETLINK_V0})
	req.AddData(nl.NewRtAttr(unix.NFTA_RULE_TABLE, nl.ZeroTerminated(c.Table.Name)))
	req.AddData(nl.NewRtAttr(unix.NFTA_RULE_CHAIN, nl.ZeroTerminated(c.Name)))
	messages, err := req.Execute(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWRULE)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list nftables chain %s: %w", c.Name, err)
	}
	var marks [][]byte
	for _, m := range messages {
		attrs, err := nl.ParseRouteAttr(m[nl.SizeofNfgenmsg:])
		if err != nil {
			return nil, fmt.Errorf("read nftables chain %s: %w", c.Name, err)
		}
		var mark []byte
		for _, a := range attrs {
			if a.Attr.Type == unix.NFTA_RULE_USERDATA {
				mark = a.Value
			}
		}
		marks = append(marks, mark)
	}
	return marks, nil
}

// content reads the sets. One that is missing is empty: then the table is not whole.
func (t *table) content(conn *nftables.Conn) (content, error) {
	c := content{}
	for _, set := range t.sets {
		elements, err := conn.GetSetElements(set)
		if err != nil && !netfilter.NotFound(err) {
			return nil, fmt.Errorf("list nftables set %s: %w", set.Name, err)
		}
		for _, e := range elements {
			c.add(set.Name, e.Key, e.Val)
		}
	}
	return c, nil
}

// make replaces the table by an empty one, in the transaction that conn flushes.
func (t *table) make(conn *nftables.Conn) error {
	// A table can only be deleted if it exists.
	conn.AddTable(t.table)
	conn.DelTable(t.table)
	conn.AddTable(t.table)
	for _, set := range t.sets {
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
	return nil
}

func (t *table) addAll(conn *nftables.Conn, elements []element) error {
	return t.each(elements, conn.SetAddElements)
}

func (t *table) deleteAll(conn *nftables.Conn, elements []element) error {
	return t.each(elements, conn.SetDeleteElements)
}

// each calls do with the elements of each set, some at a time.
func (t *table) each(elements []element, do func(*nftables.Set, []nftables.SetElement) error) error {
	for _, set := range t.sets {
		var all []nftables.SetElement
		for _, e := range elements {
			if e.set == set.Name {
				all = append(all, nftables.SetElement{Key: []byte(e.key), Val: []byte(e.value)})
			}
		}
		for some := range slices.Chunk(all, batch) {
			if err := do(set, some); err != nil {
				return fmt.Errorf("change nftables set %s: %w", set.Name, err)
			}
		}
	}
	return nil
}
