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
	"slices"
	"strings"

	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/iprange"
)

// Query selects addresses. An empty field selects all.
type Query struct {
	// Text is an address, the beginning of one, a prefix, or a part of the name of a pod, namespace, workload or node.
	Text string
	// These must be equal. Owner is the name of a workload or claim.
	Pool, Namespace, Owner, Pod, Node string
	State                             standing.State
	Sort                              Sort
	// Descending turns the order round.
	Descending bool
	// After is the Next of the page before; empty: the first page.
	After string
	// Limit is the most rows of a page.
	Limit int
}

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

// Page is some rows of an answer.
type Page struct {
	Addresses []standing.Address `json:"addresses"`
	// Next is the [Query.After] of the page that comes next; empty: this is the last one.
	Next string `json:"next,omitempty"`
}

// cursor is the last row of a page.
type cursor struct {
	Sort       Sort       `json:"s"`
	Descending bool       `json:"d,omitempty"`
	Key        string     `json:"k,omitempty"`
	Number     int64      `json:"n,omitempty"`
	Addr       netip.Addr `json:"a"`
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
		page.Next = r.cursorOf(&q, rows[len(rows)-1]).text()
	}
	at := now()
	for _, row := range rows {
		page.Addresses = append(page.Addresses, r.addressOf(row, objects, at))
	}
	return page, nil
}

func (r *Register) cursorOf(q *Query, last *Row) *cursor {
	key, number := r.key(q.Sort, last)
	return &cursor{q.Sort, q.Descending, key, number, last.addr}
}

// key returns by what a row is sorted.
func (r *Register) key(sort Sort, of *Row) (string, int64) {
	switch sort {
	case BySince:
		return "", max(of.since, of.released)
	case ByPod:
		return of.pod, 0
	case ByNamespace:
		return r.names.of(of.namespace), 0
	case ByOwner:
		return r.names.of(of.owner), 0
	case ByNode:
		return r.names.of(of.node), 0
	}
	return "", 0
}

// page returns the rows of a page, and one more if there are more.
func (r *Register) page(scope Scope, q *Query, after *cursor) []*Row {
	match, candidates := r.matcher(scope, q)
	if match == nil {
		return nil
	}
	if q.Sort == ByAddress {
		return pageByAddress(candidates, match, q, after)
	}
	compare := func(a, b *Row) int {
		keyA, numberA := r.key(q.Sort, a)
		keyB, numberB := r.key(q.Sort, b)
		order := cmp.Or(strings.Compare(keyA, keyB), cmp.Compare(numberA, numberB), a.addr.Compare(b.addr))
		if q.Descending {
			return -order
		}
		return order
	}
	// The best rows so far are sorted, so that a row that is no better costs one comparison.
	var best []*Row
	for _, row := range candidates {
		if len(best) > q.Limit && compare(row, best[q.Limit]) >= 0 || after != nil && !r.comesAfter(q, row, after) || !match(row) {
			continue
		}
		at, _ := slices.BinarySearchFunc(best, row, compare)
		best = slices.Insert(best, at, row)
		if len(best) > q.Limit+1 {
			best = best[:q.Limit+1]
		}
	}
	return best
}

func (r *Register) comesAfter(q *Query, row *Row, last *cursor) bool {
	key, number := r.key(q.Sort, row)
	order := cmp.Or(strings.Compare(key, last.Key), cmp.Compare(number, last.Number), row.addr.Compare(last.Addr))
	if q.Descending {
		return order < 0
	}
	return order > 0
}

func pageByAddress(candidates []*Row, match func(*Row) bool, q *Query, after *cursor) []*Row {
	from, step := 0, 1
	if q.Descending {
		from, step = len(candidates)-1, -1
	}
	if after != nil {
		at, found := slices.BinarySearchFunc(candidates, after.Addr, func(row *Row, addr netip.Addr) int { return row.addr.Compare(addr) })
		switch {
		case q.Descending:
			from = at - 1
		case found:
			from = at + 1
		default:
			from = at
		}
	}
	var rows []*Row
	for i := from; i >= 0 && i < len(candidates) && len(rows) <= q.Limit; i += step {
		if match(candidates[i]) {
			rows = append(rows, candidates[i])
		}
	}
	return rows
}

// matcher returns which rows a query selects, and the rows among which they are; nil if it selects none.
func (r *Register) matcher(scope Scope, q *Query) (match func(*Row) bool, candidates []*Row) {
	candidates = r.rows
	var tests []func(*Row) bool
	if !scope.all {
		// Which namespaces are seen is known before the rows are looked at.
		seen := map[id]bool{}
		for namespace := range scope.namespaces {
			if of, known := r.names.find(namespace); known && of != 0 {
				seen[of] = true
			}
		}
		tests = append(tests, func(row *Row) bool { return seen[row.namespace] })
	}
	for _, field := range []struct {
		want string
		of   func(*Row) id
	}{
		{q.Pool, func(r *Row) id { return r.pool }}, {q.Namespace, func(r *Row) id { return r.namespace }},
		{q.Owner, func(r *Row) id { return r.owner }}, {q.Node, func(r *Row) id { return r.node }},
	} {
		if field.want == "" {
			continue
		}
		want, known := r.names.find(field.want)
		if !known {
			return nil, nil
		}
		tests = append(tests, func(row *Row) bool { return field.of(row) == want })
	}
	if q.Pod != "" {
		tests = append(tests, func(row *Row) bool { return row.pod == q.Pod })
	}
	if q.State != "" {
		tests = append(tests, func(row *Row) bool { return row.state == q.State })
	}
	if text := strings.TrimSpace(q.Text); text != "" {
		if span, ok := spanOf(text); ok {
			candidates = r.within(span)
		} else {
			tests = append(tests, r.contains(text))
		}
	}
	return func(row *Row) bool {
		for _, test := range tests {
			if !test(row) {
				return false
			}
		}
		return true
	}, candidates
}

// within returns the rows of a range of addresses.
func (r *Register) within(span iprange.Range) []*Row {
	from, _ := r.at(span.First)
	to, found := r.at(span.Last)
	if found {
		to++
	}
	return r.rows[from:max(from, to)]
}

// spanOf reads a text as an address, a prefix, or the beginning of an IPv4 address that ends with a dot.
func spanOf(text string) (iprange.Range, bool) {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return iprange.OfPrefix(prefix.Masked()), true
	}
	if addr, err := standing.ParseAddr(text); err == nil {
		return iprange.Single(addr), true
	}
	parts := strings.Split(strings.TrimSuffix(text, "."), ".")
	if !strings.HasSuffix(text, ".") || len(parts) > 3 {
		return iprange.Range{}, false
	}
	prefix, err := netip.ParsePrefix(strings.Join(parts, ".") + strings.Repeat(".0", 4-len(parts)) + fmt.Sprintf("/%d", 8*len(parts)))
	return iprange.OfPrefix(prefix), err == nil
}

// contains returns whether a row has the text in its address or in a name. Texts that rows share are looked at once.
func (r *Register) contains(text string) func(*Row) bool {
	// namespace/pod is how kubectl berth writes pods.
	namespace, pod, both := strings.Cut(text, "/")
	has := make([]bool, len(r.names.texts))
	for i := range r.names.texts {
		has[i] = i > 0 && strings.Contains(r.names.texts[i].text, text)
	}
	like := strings.Trim(text, "0123456789abcdefABCDEF.:") == ""
	begin := []byte(text)
	return func(row *Row) bool {
		if has[row.namespace] || has[row.owner] || has[row.node] || strings.Contains(row.pod, text) {
			return true
		}
		if both && r.names.of(row.namespace) == namespace && (strings.HasPrefix(row.pod, pod) || strings.HasPrefix(r.names.of(row.owner), pod)) {
			return true
		}
		var buffer [48]byte
		return like && bytes.HasPrefix(row.addr.AppendTo(buffer[:0]), begin)
	}
}

// Each calls do with the addresses that have a FloatingIP, in their order. It holds no lock meanwhile, so that an address may
// change hands between two calls; each is called for once.
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
	from := 0
	if last.IsValid() {
		at, found := r.at(last)
		if from = at; found {
			from++
		}
	}
	var batch []*v1alpha1.FloatingIP
	for ; from < len(r.rows) && len(batch) < most; from++ {
		if row := r.rows[from]; scope.Sees(r.names.of(row.namespace)) {
			batch = append(batch, r.names.floatingIP(row))
		}
	}
	return batch
}
