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

const (
	// TableName is the name of the table, in the family inet.
	TableName = "berth"
	// LinkPrefix begins the name of every interface of the node that leads to a pod with
	// a floating IP, and of the overlay's bridge.
	LinkPrefix = "bth"
	// VLANPrefix and BridgePrefix begin the names of VLAN links and bridges that Berth made for
	// pods, where the node has no address.
	VLANPrefix   = LinkPrefix + "l"
	BridgePrefix = LinkPrefix + "g"
	// PortPrefix begins the names of the node's ends of interfaces of pods that are ports of a
	// bridge in the pool's network.
	PortPrefix = LinkPrefix + "p"
)

// Source is an interface of the node that leads to a pod, and an address of the pod.
type Source struct {
	Link    string
	Address netip.Addr
	// Uplink is the link on which the node answers for the address, and by which packets to it
	// arrive; Revoke and Sources do without.
	Uplink string
	// Past says that the pod talks to others than the node past the node. Revoke and Sources do
	// without.
	Past bool
}

// ErrMissing is returned by Check for a table or a source that the kernel does not have.
var ErrMissing = errors.New("nftables rules are incomplete")

// mu makes calls one after another; see locked.
var mu sync.Mutex

// Allow lets pods send from sources, and keeps those source addresses in connections that
// leave the node. It makes the table where it is missing or incomplete; present then lists
// the sources of all pods on the node, which a new table must have from the start. It is
// idempotent, and one transaction. After it Allow makes other programs' firewalls forward
// the packets of pods.
func Allow(present func() ([]Source, error), sources ...Source) error {
	return locked(func(conn *nftables.Conn, t *table) error {
		whole, err := t.isWhole(conn)
		if err != nil {
			return err
		}
		if !whole {
			others, err := present()
			if err != nil {
				return err
			}
			if err := t.make(conn); err != nil {
				return err
			}
			sources = append(others, sources...)
		}
		if err := t.add(conn, sources); err != nil {
			return err
		}
		if err := conn.Flush(); err != nil {
			return fmt.Errorf("write nftables table %s (does the kernel have nf_tables of the families inet and arp, nft_ct, nft_nat and nft_set_hash?): %w", TableName, err)
		}
		return acceptForwarded(conn)
	})
}

// add adds the elements of sources to the transaction, each once.
func (t *table) add(conn *nftables.Conn, sources []Source) error {
	bySet := map[*nftables.Set][]nftables.SetElement{}
	known := map[string]bool{}
	for _, s := range sources {
		for _, e := range t.elements(s) {
			if name := e.set.Name + "\x00" + string(e.key); !known[name] {
				known[name] = true
				bySet[e.set] = append(bySet[e.set], nftables.SetElement{Key: e.key})
			}
		}
	}
	for set, elements := range bySet {
		if err := AddElements(conn, set, elements); err != nil {
			return err
		}
	}
	return nil
}

// Revoke takes back what Allow did. Where another link has the address it says
// elsewhere, and the address stays a floating IP of the node. It succeeds where nothing
// is left to take back.
func Revoke(s Source, elsewhere bool) error {
	return locked(func(conn *nftables.Conn, t *table) error {
		f := t.family(s.Address)
		elements := []element{{f.sources, sourceKey(s)}}
		if !elsewhere {
			elements = append(elements, element{f.floating, addressKey(s)}, element{f.hairpin, hairpinKey(s)})
			for _, set := range []*nftables.Set{t.arrivals, t.asked} {
				found, err := keys(conn, set)
				if err != nil {
					return err
				}
				for _, key := range found {
					if arrival, ok := parseSource(key); ok && arrival.Address == s.Address {
						elements = append(elements, element{set, key})
					}
				}
			}
		}
		if err := removeAll(conn, elements); err != nil {
			return fmt.Errorf("take %s from nftables table %s: %w", s.Address, TableName, err)
		}
		return nil
	})
}

// Forget ends the filtering of a link that no longer exists, and with the last one the
// rules in other programs' chains. Before, a pod whose last address was revoked can send
// nothing.
func Forget(link string) error {
	return locked(func(conn *nftables.Conn, t *table) error {
		if err := removeAll(conn, []element{{t.past, linkKey(link)}, {t.links, linkKey(link)}}); err != nil {
			return fmt.Errorf("take link %s from nftables table %s: %w", link, TableName, err)
		}
		return t.removeForwarded(conn)
	})
}

// Sweep removes Berth's rules from other programs' chains where no pod, and no link for pods,
// is left.
func Sweep() error {
	return locked(func(conn *nftables.Conn, t *table) error { return t.removeForwarded(conn) })
}

// removeAll deletes those of the elements that are there, in one transaction: each makes the
// kernel wait for all processors. Where another process was faster, it deletes one by one.
func removeAll(conn *nftables.Conn, elements []element) error {
	for _, e := range elements {
		found, err := keys(conn, e.set)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(found, func(key []byte) bool { return bytes.Equal(key, e.key) }) {
			continue
		}
		if err := conn.SetDeleteElements(e.set, []nftables.SetElement{{Key: e.key}}); err != nil {
			return err
		}
	}
	err := conn.Flush()
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	var errs []error
	for _, e := range elements {
		errs = append(errs, remove(conn, e))
	}
	return errors.Join(errs...)
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

// Check returns ErrMissing where the table is incomplete or lacks one of the sources, and
// where another program's firewall drops the packets of pods.
func Check(sources ...Source) error {
	mu.Lock()
	defer mu.Unlock()
	v, err := newTable().view()
	if err != nil {
		return err
	}
	defer v.keep()
	if !v.whole {
		return fmt.Errorf("%w: table %s", ErrMissing, TableName)
	}
	for _, s := range sources {
		for _, e := range v.elements(s) {
			there, err := v.has(e)
			if err != nil {
				return err
			}
			if !there {
				v.incomplete = true
				return fmt.Errorf("%w: %s is not in set %s", ErrMissing, s.Address, e.set.Name)
			}
		}
	}
	return v.forwarded
}

// Sources lists the sources of the table, none where there is no table.
func Sources() (all []Source, err error) {
	err = locked(func(conn *nftables.Conn, t *table) error {
		for _, f := range t.families {
			found, err := keys(conn, f.sources)
			if err != nil {
				return err
			}
			for _, key := range found {
				if s, ok := parseSource(key); ok {
					all = append(all, s)
				}
			}
		}
		return nil
	})
	return all, err
}

// Links lists the links whose packets are filtered, none where there is no table.
func Links() (all []string, err error) {
	err = locked(func(conn *nftables.Conn, t *table) error {
		found, err := keys(conn, t.links)
		for _, key := range found {
			all = append(all, unix.ByteSliceToString(key))
		}
		return err
	})
	return all, err
}

// locked calls do alone in this process: Allow looks before it writes.
func locked(do func(conn *nftables.Conn, t *table) error) error {
	mu.Lock()
	defer mu.Unlock()
	conn, err := Open()
	if err != nil {
		return err
	}
	return do(conn, newTable())
}

// keys lists the elements of a set, none where it does not exist.
func keys(conn *nftables.Conn, set *nftables.Set) ([][]byte, error) {
	elements, err := conn.GetSetElements(set)
	if NotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list nftables set %s: %w", set.Name, err)
	}
	all := make([][]byte, 0, len(elements))
	for _, e := range elements {
		all = append(all, e.Key)
	}
	return all, nil
}

// make replaces the tables by ones without sources, in the transaction that conn flushes.
func (t *table) make(conn *nftables.Conn) error {
	return Replace(conn, []*nftables.Table{t.table, t.arp}, t.sets(), t.chains)
}

// isWhole returns whether every chain has its rules, and only these, by their marks.
func (t *table) isWhole(conn *nftables.Conn) (bool, error) {
	if exists, err := Exists(conn, t.table); err != nil || !exists {
		return false, err
	}
	for _, chain := range t.chains {
		if whole, err := chain.IsWhole(); err != nil || !whole {
			return false, err
		}
	}
	return true, nil
}
