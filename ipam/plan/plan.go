// SPDX-License-Identifier: Apache-2.0

// Package plan is what a command would do to Berth's objects at the API server, an
// item for each: what people are shown, and what is then written. It decides
// nothing; packages galaxy/migrate and backup make plans.
package plan

import "github.com/berth-dev/berth/ipam/api/v1alpha1"

// Action is what is to be done about an object.
type Action string

// The actions.
const (
	// Create: it is missing.
	Create Action = "create"
	// Update: it exists, without a live pod, and somebody has a better right to it.
	Update Action = "update"
	// Same: it exists as it would be created.
	Same Action = "same"
	// Differs: it exists, for the same owner, and is left as it is.
	Differs Action = "differs"
	// Conflict: it exists for another owner, or contradicts what exists. Somebody
	// must decide.
	Conflict Action = "conflict"
	// Stale: the address would be free by now.
	Stale Action = "stale"
	// Skip: it cannot be created. Somebody must decide.
	Skip Action = "skip"
)

// Actions lists all, in the order in which people want to see them.
var Actions = []Action{Create, Update, Same, Differs, Stale, Skip, Conflict}

// Item is one object of the plan. At most one of Pool, Claim and IP is set, to
// the object as it should be; none where there is none to be.
type Item struct {
	Action          Action
	Kind            string // IPPool, IPClaim or FloatingIP
	Namespace, Name string
	Note            string
	// Decide: somebody must decide about it, whatever the action.
	Decide bool

	Pool  *v1alpha1.IPPool
	Claim *v1alpha1.IPClaim
	IP    *v1alpha1.FloatingIP
	// Seen is the FloatingIP to update.
	Seen *v1alpha1.FloatingIP
}

// Plan is what to do.
type Plan struct {
	// Items in the order pools, claims, addresses; each by name, addresses as
	// numbers.
	Items []Item
	// Notes concern the whole.
	Notes []string
}

// Count returns how many items of each action a kind has.
func (p *Plan) Count(kind string) map[Action]int {
	count := map[Action]int{}
	for i := range p.Items {
		if p.Items[i].Kind == kind {
			count[p.Items[i].Action]++
		}
	}
	return count
}

// Undecided is how many items somebody must decide about.
func (p *Plan) Undecided() int {
	n := 0
	for i := range p.Items {
		if action := p.Items[i].Action; action == Skip || action == Conflict || p.Items[i].Decide {
			n++
		}
	}
	return n
}

// Writes says whether anything is to be created or updated.
func (p *Plan) Writes() bool {
	for i := range p.Items {
		if action := p.Items[i].Action; action == Create || action == Update {
			return true
		}
	}
	return false
}
