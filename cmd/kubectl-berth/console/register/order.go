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

const (
	ByAddress   Sort = "address"
	BySince     Sort = "since"
	ByPod       Sort = "pod"
	ByNamespace Sort = "namespace"
	ByOwner     Sort = "owner"
	ByNode      Sort = "node"
)

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

func placeOf(by Sort, row *Row) place {
	p := place{Addr: row.addr}
	switch by {
	case BySince:
		p.Number = max(row.since, row.released)
	case ByPod:
		p.Text = row.pod
	case ByNamespace:
		p.Text = row.namespace.String()
	case ByOwner:
		p.Text = row.owner.String()
	case ByNode:
		p.Text = row.node.String()
	}
	return p
}

func sortBy(by Sort, rows []*Row) {
	slices.SortFunc(rows, func(a, b *Row) int { return placeOf(by, a).compare(placeOf(by, b)) })
}

// search finds the first row that is not before a place, and says whether it is there.
func search(by Sort, rows []*Row, at place) (int, bool) {
	return slices.BinarySearchFunc(rows, at, func(row *Row, at place) int { return placeOf(by, row).compare(at) })
}

// replace puts a row into all orders, in the place of one with the same address; nil is no row.
func (r *Register) replace(before, after *Row) {
	for by, rows := range r.orders {
		if before != nil {
			was := placeOf(by, before)
			at, _ := search(by, rows, was)
			if after != nil && placeOf(by, after) == was {
				rows[at] = after
				continue
			}
			rows = slices.Delete(rows, at, at+1)
		}
		if after != nil {
			at, _ := search(by, rows, placeOf(by, after))
			rows = slices.Insert(rows, at, after)
		}
		r.orders[by] = rows
	}
}

// rows returns all rows, by address. The caller holds the lock.
func (r *Register) rows() []*Row { return r.orders[ByAddress] }

// row returns the row of an address; nil if there is none. The caller holds the lock.
func (r *Register) row(addr netip.Addr) *Row {
	if at, found := search(ByAddress, r.rows(), place{Addr: addr}); found {
		return r.rows()[at]
	}
	return nil
}

// with returns the rows with a text, by address, of rows in an order by texts.
func with(rows []*Row, by Sort, text string) []*Row {
	from, _ := search(by, rows, place{Text: text}) // an address that is not valid is before all others
	to, _ := search(by, rows[from:], place{Text: text + "\x00"})
	return rows[from : from+to]
}

// sees returns whether a scope sees a row, until rows change. The caller holds the lock.
func (r *Register) sees(scope Scope) func(*Row) bool {
	if scope.all {
		return func(*Row) bool { return true }
	}
	// Which namespaces are seen is known before the rows are looked at.
	namespaces := map[text]bool{}
	for namespace := range scope.namespaces {
		namespaces[textOf(namespace)] = scope.Sees(namespace)
	}
	return func(row *Row) bool { return namespaces[row.namespace] }
}

// mostSorted is up to how many rows are picked and sorted for an answer; a test replaces it. Of
// more, the first are soon found in the order of all rows.
var mostSorted = 4096

// seen returns rows by address, at least all that a scope sees. The caller holds the lock.
func (r *Register) seen(scope Scope) []*Row {
	all := r.rows()
	if scope.all {
		return all
	}
	var seen []*Row
	for namespace := range scope.namespaces {
		if seen = append(seen, with(r.orders[ByNamespace], ByNamespace, namespace)...); len(seen) > mostSorted {
			return all
		}
	}
	sortBy(ByAddress, seen)
	return seen
}
