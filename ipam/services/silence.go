// SPDX-License-Identifier: Apache-2.0

package services

import (
	"slices"
	"time"

	"github.com/berth-dev/berth/ipam/assignments"
)

// A node that does not confirm within patience that it carries an address is passed over for it, for as long as passedOver:
// no agent runs there, or the node cannot carry addresses of Services, as its event says.
const (
	patience   = 30 * time.Second
	passedOver = 10 * time.Minute
)

// silences has since when nodes are assigned an address and do not confirm, by node. The zero value has none.
type silences map[string]time.Time

// look notes which nodes confirm, by the carriers of an address. It returns the nodes to pass over, and when there may be
// another; 0: none is waited for.
func (s silences) look(carriers []assignments.Carrier, now time.Time) (over []string, again time.Duration) {
	for _, c := range carriers {
		switch _, waited := s[c.Node]; {
		case c.Carried:
			delete(s, c.Node)
		case c.Assigned && !waited:
			s[c.Node] = now
		}
	}
	for node, since := range s {
		isAssigned := slices.ContainsFunc(carriers, func(c assignments.Carrier) bool { return c.Node == node && c.Assigned })
		switch waited := now.Sub(since); {
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
