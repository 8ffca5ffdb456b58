// SPDX-License-Identifier: Apache-2.0

package register

import (
	"net/netip"
	"time"

	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
)

// mostChanges is how many changes are kept.
const mostChanges = 1000

// Change is a change of an address that the console saw, since it was started.
type Change struct {
	// Number of the change, from 1.
	Number  uint64    `json:"number"`
	At      time.Time `json:"at"`
	Address string    `json:"address"`
	// Before and After are the state before and after it; Free is an address without a FloatingIP.
	Before Moment `json:"before"`
	After  Moment `json:"after"`
}

// Moment says who had the address.
type Moment struct {
	State standing.State `json:"state"`
	Pod   *standing.Pod  `json:"pod,omitempty"`
	Node  string         `json:"node,omitempty"`
}

type changes struct {
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
	c := change{at: now()}
	c.before, c.namespaces[0] = r.moment(before)
	c.after, c.namespaces[1] = r.moment(after)
	if c.before.State == c.after.State && c.before.Node == c.after.Node && c.namespaces[0] == c.namespaces[1] && c.before.Pod.String() == c.after.Pod.String() {
		return // nobody sees a difference
	}
	if c.address = ""; after != nil {
		c.address = after.addr.String()
	} else {
		c.address = before.addr.String()
	}
	r.changes.count++
	c.number = r.changes.count
	if len(r.changes.ring) < mostChanges {
		r.changes.ring = append(r.changes.ring, c)
	} else {
		r.changes.ring[(c.number-1)%mostChanges] = c
	}
}

// noteAll keeps the changes from all rows to others, both by address. Rows of the first list are no changes. The caller holds the lock.
func (r *Register) noteAll(before, after []*Row) {
	for len(before)+len(after) > 0 {
		var order int
		switch {
		case len(before) == 0:
			order = 1
		case len(after) == 0:
			order = -1
		default:
			order = before[0].addr.Compare(after[0].addr)
		}
		var was, is *Row
		if order <= 0 {
			was, before = before[0], before[1:]
		}
		if order >= 0 {
			is, after = after[0], after[1:]
		}
		if is == nil || r.listed[FloatingIPs] {
			r.note(was, is)
		}
	}
}

func (r *Register) moment(of *Row) (m Moment, namespace string) {
	if of == nil {
		return Moment{State: standing.Free}, ""
	}
	namespace = r.names.of(of.namespace)
	m = Moment{State: of.state.of(), Node: r.names.of(of.node)}
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
			if scope.Sees(c.namespaces[i]) || c.namespaces[i] == "" && moment.State == standing.Free {
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

// LastChange returns the number of the last change.
func (r *Register) LastChange() uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.changes.count
}
