// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	google "github.com/google/nftables"

	"github.com/berth-dev/berth/cni/nftables"
)

// view is what a Check read of the table, for those that come after it: an agent compares all of
// its pods one after another, and each would list the elements of all. The kernel numbers the
// transactions of a network namespace, so a view with the number of the last one is what the
// kernel has.
type view struct {
	at        nftables.Moment
	whole     bool
	forwarded error
	// keys has those of the sets that were looked at, by the set's name.
	keys map[string]map[string]bool
}

// last is the view of the last Check; mu guards it.
var last *view

// viewer reads what the last view lacks.
type viewer struct {
	*table
	*view
	conn *google.Conn
	// incomplete says that an element was missing.
	incomplete bool
}

// view returns what the kernel has now. Its caller holds mu.
func (t *table) view() (*viewer, error) {
	now, known := nftables.Now()
	if known && last != nil && last.at == now {
		return &viewer{table: t, view: last}, nil
	}
	last = nil
	v := &viewer{table: t, view: &view{at: now, keys: map[string]map[string]bool{}}}
	conn, err := v.open()
	if err != nil {
		return nil, err
	}
	if v.whole, err = t.isWhole(conn); err != nil || !v.whole {
		return v, err
	}
	v.forwarded = checkForwarded(conn)
	return v, nil
}

func (v *viewer) open() (*google.Conn, error) {
	if v.conn != nil {
		return v.conn, nil
	}
	conn, err := Open()
	v.conn = conn
	return conn, err
}

// has returns whether the kernel has the element.
func (v *viewer) has(e element) (bool, error) {
	known, ok := v.keys[e.set.Name]
	if !ok {
		conn, err := v.open()
		if err != nil {
			return false, err
		}
		found, err := keys(conn, e.set)
		if err != nil {
			return false, err
		}
		known = make(map[string]bool, len(found))
		for _, key := range found {
			known[string(key)] = true
		}
		v.keys[e.set.Name] = known
	}
	return known[string(e.key)], nil
}

// keep has later Checks use the view where no transaction came while it was read. Where
// something is missing, they look again.
func (v *viewer) keep() {
	read := v.conn != nil
	if !read && !v.incomplete {
		return
	}
	last = nil
	if !v.whole || v.incomplete || v.forwarded != nil {
		return
	}
	if now, known := nftables.Now(); known && now == v.at {
		last = v.view
	}
}
