// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"errors"

	"github.com/berth-dev/berth/cni/nftables"
)

// view caches the table between calls of Check and Allow. Otherwise an agent that compares all of
// its pods one after another would list all elements for each pod, and all rules for each pod whose
// network it makes. The kernel numbers the transactions of a network namespace, so a view with the
// number of the last transaction is current.
type view struct {
	at nftables.Moment
	// broken is the error of the tables, forwarded of other programs' nftables chains.
	broken, forwarded error
	// keys has the keys of each set that was read, by the set's name.
	keys map[string]map[string]bool
}

// last is the view of the last Check or Allow; mu guards it.
var last *view

// viewer reads the sets that the last view lacks.
type viewer struct {
	*view
	// read says that a set was read; incomplete says that an element was missing.
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

// added adds the elements of sources to the view for later calls, if only their transaction came
// since the view.
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

// keep keeps the view for later Checks if no transaction came while it was read. If something is
// missing, they read again.
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
