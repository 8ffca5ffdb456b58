// SPDX-License-Identifier: Apache-2.0

// Package plan describes a command's changes of Berth's objects at the API server,
// with one item for each object. A command shows the plan to the user, and writes the
// same plan. The package decides nothing; packages migrate and backup make plans.
package plan

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Action is the action for one object.
type Action string

// The actions.
const (
	// Create: the object is missing.
	Create Action = "create"
	// Update: it exists without a live pod, and another pod or owner has precedence.
	Update Action = "update"
	// Same: it exists as it would be created.
	Same Action = "same"
	// Differs: it exists, for the same owner, and is left as it is.
	Differs Action = "differs"
	// Conflict: it exists for another owner, or contradicts existing objects. The user
	// must decide.
	Conflict Action = "conflict"
	// Stale: it is not created, because the address would be free by now.
	Stale Action = "stale"
	// Skip: it cannot be created. The user must decide.
	Skip Action = "skip"
)

// Actions lists all actions in display order.
var Actions = []Action{Create, Update, Same, Differs, Stale, Skip, Conflict}

// Item is one object of the plan. At most one of Pool, Claim, IP and Other is set: the
// desired object. None is set if there is no desired object.
type Item struct {
	Action          Action
	Kind            string // such as IPPool
	Namespace, Name string
	Note            string
	// Decide says that the user must decide about the item, regardless of the action.
	Decide bool

	Pool  *v1alpha1.IPPool
	Claim *v1alpha1.IPClaim
	IP    *v1alpha1.FloatingIP
	Other *unstructured.Unstructured
	// Seen is the FloatingIP to update.
	Seen *v1alpha1.FloatingIP
}

// Plan is a list of items with notes.
type Plan struct {
	// Items are in the order pools, claims, others, addresses; these are sorted by number, all
	// others by name.
	Items []Item
	// Notes concern the plan as a whole.
	Notes []string
}

// Count returns the number of items of a kind, by action.
func (p *Plan) Count(kind string) map[Action]int {
	count := map[Action]int{}
	for i := range p.Items {
		if p.Items[i].Kind == kind {
			count[p.Items[i].Action]++
		}
	}
	return count
}

// Undecided returns the number of items that the user must decide about.
func (p *Plan) Undecided() int {
	n := 0
	for i := range p.Items {
		if action := p.Items[i].Action; action == Skip || action == Conflict || p.Items[i].Decide {
			n++
		}
	}
	return n
}

// Writes reports whether the plan creates or updates any object.
func (p *Plan) Writes() bool {
	for i := range p.Items {
		if action := p.Items[i].Action; action == Create || action == Update {
			return true
		}
	}
	return false
}
