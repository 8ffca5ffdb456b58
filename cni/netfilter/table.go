// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/berth-dev/berth/cni/nftables"
	"github.com/berth-dev/berth/cni/rtnl"
)

const (
	// TableName is the name of the table, in the family inet.
	TableName = "berth"
	// LinkPrefix begins the name of every interface that Berth made on the node for a pod.
	LinkPrefix = rtnl.LinkPrefix
	// VLANPrefix and BridgePrefix begin the names of VLAN links and bridges that Berth made for
	// pods, where the node has no address.
	VLANPrefix   = LinkPrefix + "l"
	BridgePrefix = LinkPrefix + "g"
	// PortPrefix begins the names of the node's ends of interfaces of pods that are ports of a
	// bridge in the pool's network.
	PortPrefix = LinkPrefix + "p"
	// OverlayPrefix begins the names of the node's ends of interfaces of the overlay's pods.
	OverlayPrefix = LinkPrefix + "o"
)

// Source is an interface of the node that leads to a pod, and an address of the pod.
type Source struct {
	Link    string
	Address netip.Addr
	// Uplink is the link on which the node answers for the address, and by which packets to it arrive;
	// Revoke and Sources do not use it.
	Uplink string
	// Routed says that routers route to the address, so that nobody asks for it on Uplink; Revoke and
	// Sources do not use it.
	Routed bool
	// Past says that the pod has direct access to its network; Revoke and Sources do not use it.
	Past bool
}

// ErrMissing is returned by Check for a table or a source that the kernel does not have.
var ErrMissing = errors.New("nftables rules are incomplete")

// mu serializes calls, because Allow reads before it writes.
var mu sync.Mutex

// Allow lets pods send from sources, and keeps these source addresses in connections that leave the
// node. It makes the table if it is missing or incomplete; then present lists the sources of all
// pods on the node, which a new table must have from the start. It is idempotent, and a single
// transaction. Then Allow makes other programs' firewalls forward the packets of pods.
func Allow(present func() ([]Source, error), sources ...Source) error {
	mu.Lock()
	defer mu.Unlock()
	return allow(present, sources)
}

// Restore is Allow for the sources that present lists. It gives no pod an address, and does nothing
// if nothing is missing in the kernel.
func Restore(present func() ([]Source, error)) error {
	mu.Lock()
	defer mu.Unlock()
	all, err := present()
	if err != nil {
		return err
	}
	if err := check(all); !errors.Is(err, ErrMissing) {
		return err
	}
	return allow(func() ([]Source, error) { return nil, nil }, all)
}

// allow is Allow for callers that hold mu.
func allow(present func() ([]Source, error), sources []Source) error {
	v, err := look()
	if err != nil {
		return err
	}
	var tx nftables.Transaction
	if v.broken != nil {
		others, err := present()
		if err != nil {
			return err
		}
		tx.Replace(inetTable)
		tx.Replace(arpTable)
		sources = append(others, sources...)
	}
	add(&tx, sources)
	now, first, err := tx.CommitAfter(v.at)
	last = nil
	if err != nil {
		return fmt.Errorf("%w (does the kernel have nf_tables of the families inet and arp, nft_ct, nft_nat and nft_set_hash?)", err)
	}
	if v.broken != nil || v.forwarded != nil {
		return acceptForwarded()
	}
	if first {
		v.added(sources, now)
	}
	return nil
}

func add(tx *nftables.Transaction, sources []Source) {
	type place struct {
		table *nftables.Table
		set   string
	}
	sets := map[place]map[string]bool{}
	for _, s := range sources {
		for _, e := range elements(s) {
			at := place{e.table, e.set}
			if sets[at] == nil {
				sets[at] = map[string]bool{}
			}
			sets[at][string(e.key)] = true
		}
	}
	for at, known := range sets {
		tx.AddElements(at.table, at.set, func(yield func(nftables.Element) bool) {
			for key := range known {
				if !yield(nftables.Element{Key: []byte(key)}) {
					return
				}
			}
		})
	}
}

// Revoke reverses Allow. elsewhere says that another link has the address, which then stays a
// floating IP of the node. It succeeds if nothing is left to reverse.
func Revoke(s Source, elsewhere bool) error {
	mu.Lock()
	defer mu.Unlock()
	gone := []element{{inetTable, sourcesSet + nftables.IPOf(s.Address).Suffix, sourceKey(s.Link, s.Address)}}
	if !elsewhere {
		gone = append(gone, addressElements(s.Address)...)
		for _, set := range []element{{inetTable, arrivalsSet, nil}, {arpTable, askedSet, nil}} {
			found, err := set.table.Keys(set.set)
			if err != nil {
				return err
			}
			for key := range found {
				if arrival, ok := parseSource([]byte(key)); ok && arrival.Address == s.Address {
					gone = append(gone, element{set.table, set.set, []byte(key)})
				}
			}
		}
	}
	if err := removeAll(gone); err != nil {
		return fmt.Errorf("take %s from nftables table %s: %w", s.Address, TableName, err)
	}
	return nil
}

// Forget ends the filtering of a link that no longer exists and, with the last link, the rules in
// other programs' nftables chains. Until then a pod whose last address was revoked can send
// nothing.
func Forget(link string) error {
	mu.Lock()
	defer mu.Unlock()
	key := nftables.AppendName(nil, link)
	if err := removeAll([]element{{inetTable, pastSet, key}, {inetTable, linksSet, key}}); err != nil {
		return fmt.Errorf("take link %s from nftables table %s: %w", link, TableName, err)
	}
	return removeForwarded()
}

// Sweep removes Berth's rules from other programs' nftables chains if no pod and no link for pods
// is left.
func Sweep() error {
	mu.Lock()
	defer mu.Unlock()
	return removeForwarded()
}

// removeAll deletes the existing elements in a single transaction. Each transaction makes the
// kernel wait for all processors, and the kernel refuses a transaction with a missing element.
func removeAll(elements []element) error {
	return nftables.Retry(func() error {
		var tx nftables.Transaction
		for _, e := range elements {
			found, err := e.table.Keys(e.set)
			if err != nil {
				return err
			}
			if found[string(e.key)] {
				tx.DeleteElements(e.table, e.set, nftables.Keys(e.key))
			}
		}
		return tx.Commit()
	})
}

// Check returns ErrMissing if the table is incomplete or lacks any of the sources, or if another
// program's firewall drops the packets of pods.
func Check(sources ...Source) error {
	mu.Lock()
	defer mu.Unlock()
	return check(sources)
}

// check is Check for callers that hold mu.
func check(sources []Source) error {
	v, err := look()
	if err != nil {
		return err
	}
	defer v.keep()
	if v.broken != nil {
		return fmt.Errorf("%w: %w", ErrMissing, v.broken)
	}
	for _, s := range sources {
		for _, e := range elements(s) {
			there, err := v.has(e)
			if err != nil {
				return err
			}
			if !there {
				v.incomplete = true
				return fmt.Errorf("%w: %s is not in set %s", ErrMissing, s.Address, e.set)
			}
		}
	}
	return v.forwarded
}

// Sources lists the sources of the table, if it exists.
func Sources() (all []Source, err error) {
	for _, ip := range nftables.IPs {
		found, err := inetTable.Keys(sourcesSet + ip.Suffix)
		if err != nil {
			return nil, err
		}
		for key := range found {
			if s, ok := parseSource([]byte(key)); ok {
				all = append(all, s)
			}
		}
	}
	return all, nil
}

// Links lists the links whose packets are filtered.
func Links() (all []string, err error) {
	found, err := inetTable.Keys(linksSet)
	for key := range found {
		if link, _, ok := nftables.CutName([]byte(key)); ok {
			all = append(all, link)
		}
	}
	return all, err
}
