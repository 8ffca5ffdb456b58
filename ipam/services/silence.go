// SPDX-License-Identifier: Apache-2.0

package services

import (
	"slices"
	"time"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/assignments"
)

// A node that does not confirm within patience that it carries an address is passed over for it, for as long as passedOver:
// no agent runs there. One whose agent says that it cannot carry it is passed over at once.
const (
	patience   = 30 * time.Second
	passedOver = 10 * time.Minute
)

// silence is of a node that is assigned an address and does not confirm, since a time. why is its agent's reason, if it gave one.
type silence struct {
	since time.Time
	why   string
}

// silences has the nodes that do not confirm an address, by name. The zero value has none.
type silences map[string]silence

// look notes which nodes confirm, by the carriers of an address. It returns the nodes to pass over, and when there may be
// another; 0: none is waited for. A node that found another host with the address is not passed over: the next one would find it, too.
func (s silences) look(carriers []assignments.Carrier, now time.Time) (over []string, again time.Duration) {
	for _, c := range carriers {
		was, waited := s[c.Node]
		switch {
		case c.Carried, c.Refused.Reason == v1alpha1.RefusedInUse, c.Refused.Reason == v1alpha1.RefusedNotYet:
			delete(s, c.Node)
		case c.Refused.Reason == v1alpha1.RefusedNotPossible && was.why == "":
			s[c.Node] = silence{now.Add(-patience), c.Refused.Message}
		case c.Assigned && !waited:
			s[c.Node] = silence{since: now}
		}
	}
	for node, silence := range s {
		isAssigned := slices.ContainsFunc(carriers, func(c assignments.Carrier) bool { return c.Node == node && c.Assigned })
		switch waited := now.Sub(silence.since); {
		case waited >= passedOver || waited < patience && !isAssigned:
			delete(s, node)
		case waited >= patience:
			over = append(over, node)
			again = sooner(again, passedOver-waited)
		default:
			again = sooner(again, patience-waited)
		}
	}
	slices.Sort(over)
	return over, again
}
