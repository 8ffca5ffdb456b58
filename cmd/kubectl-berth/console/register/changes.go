// SPDX-License-Identifier: Apache-2.0

package register

import (
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

func (r *Register) moment(of *Row) (m Moment, namespace string) {
	if of == nil {
		return Moment{State: standing.Free}, ""
	}
	namespace = r.names.of(of.namespace)
	m = Moment{State: of.state, Node: r.names.of(of.node)}
	if of.pod != "" {
		m.Pod = &standing.Pod{Namespace: namespace, Name: of.pod}
	}
	return m, namespace
}

// Changes returns the last changes, newest first, no more than most.
func (r *Register) Changes(scope Scope, most int) []Change {
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := []Change{}
	for n := r.changes.count; n > 0 && r.changes.count-n < uint64(len(r.changes.ring)) && len(all) < most; n-- {
		c := &r.changes.ring[(n-1)%mostChanges]
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
