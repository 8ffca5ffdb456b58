// SPDX-License-Identifier: Apache-2.0

package register

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
)

const mostChanges = 1000

// Change of an address that the console saw, or the last before, as its FloatingIP tells.
type Change struct {
	// Number of the change, from 1.
	Number  uint64    `json:"number"`
	At      time.Time `json:"at"`
	Address string    `json:"address"`
	// Before and After are the state before and after it; Free is an address without a FloatingIP.
	// Before has no state where it is not known.
	Before Moment `json:"before,omitzero"`
	After  Moment `json:"after"`
}

type Moment struct {
	State standing.State `json:"state"`
	Pod   *standing.Pod  `json:"pod,omitempty"`
	Node  string         `json:"node,omitempty"`
}

type changes struct {
	// since is when each change began to be seen.
	since time.Time
	count uint64
	ring  []change
}

type change struct {
	number uint64
	at     time.Time
	// rows are nil where there was no FloatingIP. They have the texts that rows share.
	address       string
	namespaces    [2]string
	before, after Moment
}

// note keeps a change from one row to another; nil is no FloatingIP. The caller holds the lock.
func (r *Register) note(before, after *Row) {
	c := change{at: now(), address: cmp.Or(after, before).addr.String()}
	c.before, c.namespaces[0] = r.moment(before)
	c.after, c.namespaces[1] = r.moment(after)
	if c.before.State != c.after.State || c.before.Node != c.after.Node || c.namespaces[0] != c.namespaces[1] || c.before.Pod.String() != c.after.Pod.String() {
		r.changes.add(c)
	}
}

func (c *changes) add(one change) {
	c.count++
	one.number = c.count
	if len(c.ring) < mostChanges {
		c.ring = append(c.ring, one)
	} else {
		c.ring[(one.number-1)%mostChanges] = one
	}
}

// recall keeps the last change of each row, by its time. The caller holds the lock.
func (r *Register) recall(rows []*Row) {
	r.changes.since = now()
	rows = slices.DeleteFunc(slices.Clone(rows), func(row *Row) bool { return max(row.since, row.released) == 0 })
	sortBy(BySince, rows)
	for _, row := range rows[max(0, len(rows)-mostChanges):] {
		c := change{at: time.Unix(max(row.since, row.released), 0), address: row.addr.String()}
		c.after, c.namespaces[1] = r.moment(row)
		if row.state.of() == standing.Retained && row.lastPod != "" && !row.service {
			c.before, c.namespaces[0] = Moment{State: standing.Held, Pod: &standing.Pod{Namespace: c.namespaces[1], Name: row.lastPod}}, c.namespaces[1]
		}
		r.changes.add(c)
	}
}

// noteAll keeps the changes from all rows to others, both by address. The caller holds the lock.
func (r *Register) noteAll(before, after []*Row) {
	for len(before)+len(after) > 0 {
		var was, is *Row
		if len(after) == 0 || len(before) > 0 && before[0].addr.Compare(after[0].addr) <= 0 {
			was, before = before[0], before[1:]
		}
		if len(after) > 0 && (was == nil || was.addr == after[0].addr) {
			is, after = after[0], after[1:]
		}
		r.note(was, is)
	}
}

func (r *Register) moment(of *Row) (m Moment, namespace string) {
	if of == nil {
		return Moment{State: standing.Free}, ""
	}
	namespace = of.namespace.String()
	m = Moment{State: of.state.of(), Node: of.node.String()}
	if of.pod != "" {
		m.Pod = &standing.Pod{Namespace: namespace, Name: of.pod}
	}
	return m, namespace
}

// Changes returns the last changes, newest first, no more than most.
func (r *Register) Changes(scope Scope, most int) []Change {
	return r.changesWith(scope, most, func(*change) bool { return true })
}

// ChangesOf returns the last changes of an address, newest first, no more than most.
func (r *Register) ChangesOf(scope Scope, addr netip.Addr, most int) []Change {
	address := addr.String()
	return r.changesWith(scope, most, func(c *change) bool { return c.address == address })
}

func (r *Register) changesWith(scope Scope, most int, match func(*change) bool) []Change {
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := []Change{}
	for n := r.changes.count; n > 0 && r.changes.count-n < uint64(len(r.changes.ring)) && len(all) < most; n-- {
		c := &r.changes.ring[(n-1)%mostChanges]
		if !match(c) {
			continue
		}
		var moments [2]Moment
		seen := false
		for i, moment := range []Moment{c.before, c.after} {
			if scope.Sees(c.namespaces[i]) || c.namespaces[i] == "" && (moment.State == standing.Free || moment.State == "") {
				moments[i] = moment
				seen = seen || c.namespaces[i] != "" || scope.All()
			} else {
				moments[i] = Moment{State: standing.Taken}
			}
		}
		if seen {
			all = append(all, Change{Number: c.number, At: c.at, Address: c.address, Before: moments[0], After: moments[1]})
		}
	}
	return all
}

func (r *Register) LastChange() uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.changes.count
}

// SeesSince returns since when each change is seen; of changes before it, each address has the last
// one at most. It is the zero time as long as there is no list of FloatingIPs.
func (r *Register) SeesSince() time.Time {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.changes.since
}
