// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables"
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
	conn, err := netfilter.Open()
	if err != nil {
		return err
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

// Forwarded lists what the node forwards, in order. A port of every address of a family has the
// unspecified address as its HostIP.
func (f *Forwarder) Forwarded() ([]Mapping, error) {
	conn, err := netfilter.Open()
	if err != nil {
		return nil, err
	}
	t := newTable()
	exists, _, err := t.look(conn)
	if err != nil || !exists {
		return nil, err
	}
	have, err := t.content(conn)
	if err != nil {
		return nil, err
	}
	return have.mappings(), nil
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
	conn, err := netfilter.Open()
	if err != nil {
		return nil, false, err
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
		if err := netfilter.Replace(conn, []*nftables.Table{t.table}, t.sets, t.chains); err != nil {
			return nil, false, err
		}
		err = t.each(want.without(nil), netfilter.AddElements, conn)
		changed = true
	default:
		gone, missing := had.without(want), want.without(had)
		err = errors.Join(t.each(gone, netfilter.DeleteElements, conn), t.each(missing, netfilter.AddElements, conn))
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
	if exists, err = netfilter.Exists(conn, t.table); err != nil || !exists {
		return false, false, err
	}
	for _, chain := range t.chains {
		if whole, err := chain.IsWhole(); err != nil || !whole {
			return err == nil, false, err
		}
	}
	return true, true, nil
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

// each calls change with the elements of each set.
func (t *table) each(elements []element, change func(*nftables.Conn, *nftables.Set, []nftables.SetElement) error, conn *nftables.Conn) error {
	for _, set := range t.sets {
		var all []nftables.SetElement
		for _, e := range elements {
			if e.set == set.Name {
				all = append(all, nftables.SetElement{Key: []byte(e.key), Val: []byte(e.value)})
			}
		}
		if err := change(conn, set, all); err != nil {
			return err
		}
	}
	return nil
}
