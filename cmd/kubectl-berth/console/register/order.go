// SPDX-License-Identifier: Apache-2.0

package register

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// Sort is an order of addresses. Rows that are equal in it are in the order of their addresses.
type Sort string

// Orders.
const (
	ByAddress   Sort = "address"
	BySince     Sort = "since"
	ByPod       Sort = "pod"
	ByNamespace Sort = "namespace"
	ByOwner     Sort = "owner"
	ByNode      Sort = "node"
)

// Sorts are all orders.
var Sorts = []Sort{ByAddress, BySince, ByPod, ByNamespace, ByOwner, ByNode}

// place is where a row is in an order: the text or number that the order is by, and the address.
type place struct {
	Text   string     `json:"k,omitempty"`
	Number int64      `json:"n,omitempty"`
	Addr   netip.Addr `json:"a"`
}

func (p place) compare(other place) int {
	return cmp.Or(strings.Compare(p.Text, other.Text), cmp.Compare(p.Number, other.Number), p.Addr.Compare(other.Addr))
}

// place returns where a row is in an order.
func (n *names) place(by Sort, row *Row) place {
	p := place{Addr: row.addr}
	switch by {
	case BySince:
		p.Number = max(row.since, row.released)
	case ByPod:
		p.Text = row.pod
	case ByNamespace:
		p.Text = n.of(row.namespace)
	case ByOwner:
		p.Text = n.of(row.owner)
	case ByNode:
		p.Text = n.of(row.node)
	}
	return p
}

// sort puts rows in an order.
func (n *names) sort(by Sort, rows []*Row) {
	slices.SortFunc(rows, func(a, b *Row) int { return n.place(by, a).compare(n.place(by, b)) })
}

// search returns the index of the first of some rows in an order that is not before a place, and whether it is there.
func (n *names) search(by Sort, rows []*Row, at place) (int, bool) {
	return slices.BinarySearchFunc(rows, at, func(row *Row, at place) int { return n.place(by, row).compare(at) })
}

// replace puts a row into all orders, in the place of one with the same address; nil is no row.
func (r *Register) replace(before, after *Row) {
	for by, rows := range r.orders {
		if before != nil {
			was := r.names.place(by, before)
			at, _ := r.names.search(by, rows, was)
			if after != nil && r.names.place(by, after) == was {
				rows[at] = after
				continue
			}
			rows = slices.Delete(rows, at, at+1)
		}
		if after != nil {
			at, _ := r.names.search(by, rows, r.names.place(by, after))
			rows = slices.Insert(rows, at, after)
		}
		r.orders[by] = rows
	}
}

// rows returns all rows, by address. The caller holds the lock.
func (r *Register) rows() []*Row { return r.orders[ByAddress] }

// row returns the row of an address; nil if there is none. The caller holds the lock.
func (r *Register) row(addr netip.Addr) *Row {
	if at, found := r.names.search(ByAddress, r.rows(), place{Addr: addr}); found {
		return r.rows()[at]
	}
	return nil
}

// with returns the rows with a text in an order by texts. They are in the order of their addresses. The caller holds the lock.
func (r *Register) with(by Sort, text string) []*Row {
	rows := r.orders[by]
	from, _ := r.names.search(by, rows, place{Text: text}) // an address that is not valid is before all others
	to, _ := r.names.search(by, rows[from:], place{Text: text + "\x00"})
	return rows[from : from+to]
}

// sees returns whether a scope sees a row. It holds until the rows change. The caller holds the lock.
func (r *Register) sees(scope Scope) func(*Row) bool {
	if scope.all {
		return func(*Row) bool { return true }
	}
	// Which namespaces are seen is known before the rows are looked at.
	namespaces := map[id]bool{}
	for namespace := range scope.namespaces {
		if of, known := r.names.find(namespace); known && scope.Sees(namespace) {
			namespaces[of] = true
		}
	}
	return func(row *Row) bool { return namespaces[row.namespace] }
}

// mostSorted is up to how many rows are picked and sorted for an answer; a test replaces it. Of more, the first are soon found in the
// order of all rows.
var mostSorted = 4096

// seen returns rows among which are all that a scope sees, by address: few if it sees few. The caller holds the lock.
func (r *Register) seen(scope Scope) []*Row {
	all := r.rows()
	if scope.all {
		return all
	}
	var seen []*Row
	for namespace := range scope.namespaces {
		if seen = append(seen, r.with(ByNamespace, namespace)...); len(seen) > mostSorted {
			return all
		}
	}
	r.names.sort(ByAddress, seen)
	return seen
}
