// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"errors"

	"github.com/berth-dev/berth/cni/nftables"
)

// view keeps the table as a Check or an Allow read it, for later ones: an agent compares all of its
// pods one after another, and each would list the elements of all; and it makes the networks of
// many pods one after another, and each would list all rules. The kernel numbers the transactions
// of a network namespace, so a view with the number of the last one is still current.
type view struct {
	at nftables.Moment
	// broken says how the tables are wrong, and forwarded how other programs' chains are.
	broken, forwarded error
	// keys has the keys of each set that was read, by the set's name.
	keys map[string]map[string]bool
}

// last is the view of the last Check or Allow; mu guards it.
var last *view

// viewer reads the sets that the last view lacks.
type viewer struct {
	*view
	// read says that it did, and incomplete that an element was missing.
	read, incomplete bool
}

// look returns a current view. Its caller holds mu.
func look() (*viewer, error) {
	now, known := nftables.Now()
	if known && last != nil && last.at == now {
		return &viewer{view: last}, nil
	}
	last = nil
	v := &viewer{view: &view{at: now, keys: map[string]map[string]bool{}}, read: true}
	if v.broken = errors.Join(inetTable.CheckStructure(), arpTable.CheckStructure()); v.broken != nil {
		if !errors.Is(v.broken, nftables.ErrDiffers) {
			return nil, v.broken
		}
		return v, nil
	}
	v.forwarded = checkForwarded()
	return v, nil
}

// has returns whether the kernel has the element.
func (v *viewer) has(e element) (bool, error) {
	known, ok := v.keys[e.set]
	if !ok {
		var err error
		if known, err = e.table.Keys(e.set); err != nil {
			return false, err
		}
		v.keys[e.set], v.read = known, true
	}
	return known[string(e.key)], nil
}

// added has later calls use the view with the elements of sources, which the first transaction
// since the view added.
func (v *viewer) added(sources []Source, now nftables.Moment) {
	for _, s := range sources {
		for _, e := range elements(s) {
			if known, ok := v.keys[e.set]; ok {
				known[string(e.key)] = true
			}
		}
	}
	v.at = now
	last = v.view
}

// keep has later Checks use the view where no transaction came while it was read. Where
// something is missing, they look again.
func (v *viewer) keep() {
	if !v.read && !v.incomplete {
		return
	}
	last = nil
	if v.broken != nil || v.incomplete || v.forwarded != nil {
		return
	}
	if now, known := nftables.Now(); known && now == v.at {
		last = v.view
	}
}
