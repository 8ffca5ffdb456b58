// SPDX-License-Identifier: Apache-2.0

package register

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/iprange"
)

// Query selects addresses. An empty field selects all.
type Query struct {
	// Text is an address, its beginning, a prefix, or part of the name of who has it, or of a node.
	Text string
	// These must be equal. Owner is the name of a workload or claim, and Kind its kind.
	Pool, Namespace, Kind, Owner, Pod, Node string
	State                                   standing.State
	Family                                  v1.IPFamily
	Sort                                    Sort
	// Descending turns the order round.
	Descending bool
	// After is the Next of the page before; empty: the first page.
	After string
	Limit int
}

type Page struct {
	Addresses []standing.Address `json:"addresses"`
	// Next is the [Query.After] of the page that comes next; empty: this is the last one.
	Next string `json:"next,omitempty"`
}

// cursor is the last row of a page.
type cursor struct {
	Sort       Sort `json:"s"`
	Descending bool `json:"d,omitempty"`
	place
}

func (c *cursor) text() string {
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // it has plain fields
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// ErrPage says that a page's After is not one that the register gave for the same order.
var ErrPage = errors.New("begin with the first page: leave out after")

func (q *Query) cursor() (*cursor, error) {
	if q.After == "" {
		return nil, nil
	}
	var c cursor
	text, err := base64.RawURLEncoding.DecodeString(q.After)
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil || !c.Addr.IsValid() || c.Sort != q.Sort || c.Descending != q.Descending {
		return nil, fmt.Errorf("after is not of a page in this order: %w", ErrPage)
	}
	return &c, nil
}

// Addresses returns a page of the addresses that have a FloatingIP. An error is ErrPage.
func (r *Register) Addresses(scope Scope, q Query) (Page, error) {
	q.Sort = cmp.Or(q.Sort, ByAddress)
	after, err := q.cursor()
	if err != nil {
		return Page{}, err
	}
	objects := r.pools().all
	r.mu.RLock()
	defer r.mu.RUnlock()
	rows := r.page(scope, &q, after)
	page := Page{Addresses: make([]standing.Address, 0, len(rows))}
	if len(rows) > q.Limit {
		rows = rows[:q.Limit]
		last := cursor{q.Sort, q.Descending, placeOf(q.Sort, rows[len(rows)-1])}
		page.Next = last.text()
	}
	at := now()
	for _, row := range rows {
		page.Addresses = append(page.Addresses, r.addressOf(row, objects, at))
	}
	return page, nil
}

// page returns the rows of a page, and one more if there are more.
func (r *Register) page(scope Scope, q *Query, after *cursor) []*Row {
	filter, among := r.filter(scope, q)
	rows := among
	if q.Sort != ByAddress {
		rows = r.orders[q.Sort]
		if few, ok := filter.few(among); ok {
			sortBy(q.Sort, few)
			rows = few
		}
	}
	from, step := 0, 1
	if q.Descending {
		from, step = len(rows)-1, -1
	}
	if after != nil {
		at, found := search(q.Sort, rows, after.place)
		switch {
		case q.Descending:
			from = at - 1
		case found:
			from = at + 1
		default:
			from = at
		}
	}
	var page []*Row
	for i := from; i >= 0 && i < len(rows) && len(page) <= q.Limit; i += step {
		if filter.match(rows[i]) {
			page = append(page, rows[i])
		}
	}
	return page
}

// filter says of a row whether it is selected, or not by one of these.
type filter []func(*Row) bool

func (f filter) match(row *Row) bool {
	for _, test := range f {
		if !test(row) {
			return false
		}
	}
	return true
}

// few returns the rows that match; ok is false if they are too many to sort.
func (f filter) few(rows []*Row) (all []*Row, ok bool) {
	if len(f) == 0 {
		return nil, false
	}
	for _, row := range rows {
		if !f.match(row) {
			continue
		}
		if len(all) == mostSorted {
			return nil, false
		}
		all = append(all, row)
	}
	return all, true
}

// filter returns which rows a query selects, and rows by address among which they all are.
func (r *Register) filter(scope Scope, q *Query) (tests filter, among []*Row) {
	among = r.seen(scope)
	if !scope.all {
		tests = append(tests, r.sees(scope))
	}
	narrow := func(rows []*Row) {
		if len(rows) < len(among) {
			among = rows
		}
	}
	for _, field := range []struct {
		want string
		by   Sort
		of   func(*Row) string
	}{
		{q.Namespace, ByNamespace, func(row *Row) string { return row.namespace.String() }}, {q.Owner, ByOwner, func(row *Row) string { return row.owner.String() }},
		{q.Node, ByNode, func(row *Row) string { return row.node.String() }}, {q.Pod, ByPod, func(row *Row) string { return row.pod }},
		{q.Pool, "", func(row *Row) string { return row.pool.String() }}, {q.Kind, "", func(row *Row) string { return row.kind.String() }},
		{string(q.State), "", func(row *Row) string { return string(row.state.of()) }},
	} {
		if field.want != "" {
			if field.by != "" {
				narrow(with(r.orders[field.by], field.by, field.want))
			}
			tests = append(tests, func(row *Row) bool { return field.of(row) == field.want })
		}
	}
	if q.Family != "" {
		tests = append(tests, func(row *Row) bool { return row.addr.Is4() == (q.Family == v1.IPv4Protocol) })
	}
	if text := strings.TrimSpace(q.Text); text != "" {
		if span, ok := spanOf(text); ok {
			narrow(r.within(span))
			tests = append(tests, func(row *Row) bool { return span.Contains(row.addr) })
		} else {
			tests = append(tests, contains(text))
		}
	}
	return tests, among
}

// within returns the rows of a range of addresses.
func (r *Register) within(span iprange.Range) []*Row {
	rows := r.rows()
	from, _ := search(ByAddress, rows, place{Addr: span.First})
	to, found := search(ByAddress, rows, place{Addr: span.Last})
	if found {
		to++
	}
	return rows[from:max(from, to)]
}

// spanOf reads a text as addresses, or as the beginning of an IPv4 address that ends with a dot.
func spanOf(text string) (iprange.Range, bool) {
	if t, err := target.Parse(text, target.Addresses); err == nil && t.Kind == target.Addresses {
		return t.Range, true
	}
	parts := strings.Split(strings.TrimSuffix(text, "."), ".")
	if !strings.HasSuffix(text, ".") || len(parts) > 3 {
		return iprange.Range{}, false
	}
	prefix, err := netip.ParsePrefix(strings.Join(parts, ".") + strings.Repeat(".0", 4-len(parts)) + fmt.Sprintf("/%d", 8*len(parts)))
	return iprange.OfPrefix(prefix), err == nil
}

// contains returns whether an address or name has the text. Shared texts are looked at once.
func contains(part string) func(*Row) bool {
	// namespace/pod is how kubectl berth writes pods.
	namespace, pod, both := strings.Cut(part, "/")
	has := map[text]bool{}
	in := func(name text) bool {
		found, known := has[name]
		if !known {
			found = strings.Contains(name.String(), part)
			has[name] = found
		}
		return found
	}
	like := strings.Trim(part, "0123456789abcdefABCDEF.:") == ""
	begin := []byte(part)
	return func(row *Row) bool {
		if in(row.namespace) || in(row.owner) || in(row.node) || strings.Contains(row.pod, part) {
			return true
		}
		if both && row.namespace.String() == namespace && (strings.HasPrefix(row.pod, pod) || strings.HasPrefix(row.owner.String(), pod)) {
			return true
		}
		var buffer [48]byte
		return like && bytes.HasPrefix(row.addr.AppendTo(buffer[:0]), begin)
	}
}

// Owned returns all addresses that a query selects and that belong to somebody, whether a pod has
// them or they are kept, in their order. ok is false as long as there was no list of FloatingIPs:
// none would be taken for all.
func (r *Register) Owned(scope Scope, q Query) (all []netip.Addr, ok bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	filter, among := r.filter(scope, &q)
	for _, row := range among {
		if row.owner != (text{}) && filter.match(row) {
			all = append(all, row.addr)
		}
	}
	return all, r.listed[FloatingIPs]
}

// Each calls do with the addresses that have a FloatingIP, in their order. It holds no lock
// meanwhile, so that an address may change hands between two calls; each is called for once.
func (r *Register) Each(scope Scope, do func(*v1alpha1.FloatingIP) error) error {
	const most = 1000
	var last netip.Addr
	for {
		batch := r.after(scope, last, most)
		for _, ip := range batch {
			if err := do(ip); err != nil {
				return err
			}
		}
		if len(batch) == 0 {
			return nil
		}
		last, _ = v1alpha1.AddrOf(batch[len(batch)-1].Name)
	}
}

// after returns the next FloatingIPs after an address.
func (r *Register) after(scope Scope, last netip.Addr, most int) []*v1alpha1.FloatingIP {
	r.mu.RLock()
	defer r.mu.RUnlock()
	rows := r.seen(scope)
	from, found := search(ByAddress, rows, place{Addr: last})
	if found {
		from++
	}
	sees := r.sees(scope)
	var batch []*v1alpha1.FloatingIP
	for ; from < len(rows) && len(batch) < most; from++ {
		if sees(rows[from]) {
			batch = append(batch, floatingIP(rows[from]))
		}
	}
	return batch
}
