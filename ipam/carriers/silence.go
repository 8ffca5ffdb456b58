// SPDX-License-Identifier: Apache-2.0

package carriers

import (
	"fmt"
	"slices"
	"time"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// A node that does not confirm within patience that it carries an address is passed over for it,
// for as long as passedOver: no agent runs there. One whose agent says that it cannot carry it is
// passed over at once, and so is one for which the standby hears no answer.
const (
	patience   = 30 * time.Second
	passedOver = 10 * time.Minute
)

// silence is of a node that is assigned an address and does not confirm, since a time. why is its
// agent's reason, if it gave one, or what the standby heard: then nothing that it says itself
// counts.
type silence struct {
	since time.Time
	why   string
	heard bool
}

// Silences has the nodes that do not confirm an address, by name. The zero value has none.
type Silences map[string]silence

// Look notes which nodes confirm, by the carriers of an address. It returns the nodes to pass over,
// and when there may be another; 0: none is waited for. A node that found another host with the
// address is not passed over: the next one would find it, too.
func (s Silences) Look(carriers []v1alpha1.Carrier, now time.Time) (over []string, again time.Duration) {
	for _, c := range carriers {
		was, waited := s[c.Node]
		switch {
		case was.heard:
		case c.SilentBy != "":
			s[c.Node] = silence{now.Add(-patience), fmt.Sprintf("node %s asked for it by the network, and heard no answer while the gateway answered", c.SilentBy), true}
		case c.Carried, c.Refused.Reason == v1alpha1.RefusedInUse, c.Refused.Reason == v1alpha1.RefusedNotYet:
			delete(s, c.Node)
		case c.Refused.Reason == v1alpha1.RefusedNotPossible && was.why == "":
			s[c.Node] = silence{since: now.Add(-patience), why: c.Refused.Message}
		case c.Assigned && !waited:
			s[c.Node] = silence{since: now}
		}
	}
	for node, silence := range s {
		isAssigned := slices.ContainsFunc(carriers, func(c v1alpha1.Carrier) bool { return c.Node == node && c.Assigned })
		switch waited := now.Sub(silence.since); {
		case waited >= passedOver || waited < patience && !isAssigned:
			delete(s, node)
		case waited >= patience:
			over = append(over, node)
			again = Sooner(again, passedOver-waited)
		default:
			again = Sooner(again, patience-waited)
		}
	}
	slices.Sort(over)
	return over, again
}

// Problem says why a planned node does not carry an address; empty if all do, or may yet. over are
// passed over.
func (s Silences) Problem(address string, carriers []v1alpha1.Carrier, over []string) string {
	inUse := slices.IndexFunc(carriers, func(c v1alpha1.Carrier) bool {
		return c.Refused.Reason == v1alpha1.RefusedInUse || c.Refused.Reason == v1alpha1.RefusedNotYet
	})
	switch {
	case inUse >= 0:
		return fmt.Sprintf("Node %s does not carry %s: %s.", carriers[inUse].Node, address, carriers[inUse].Refused.Message)
	case len(over) > 0 && s[over[0]].why != "":
		return fmt.Sprintf("Node %s does not carry %s, and is passed over where another can: %s.", over[0], address, s[over[0]].why)
	case len(over) > 0:
		return fmt.Sprintf("Node %s does not confirm that it carries %s, and is passed over where another can: no agent is ready there.", over[0], address)
	}
	return ""
}

// Sooner returns the shorter wait, where 0 is none.
func Sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
