// SPDX-License-Identifier: Apache-2.0

package assignments

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/view"
)

// decisions are which nodes are to carry the addresses of Services. Safe for concurrent use.
type decisions struct {
	mu sync.Mutex
	of map[string]decision        // by address
	on map[string]map[string]bool // addresses by node
}

type decision struct {
	v1alpha1.AssignedAddress
	nodes []string
}

// set replaces the decision about an address and returns the nodes for which something changed.
func (d *decisions) set(address v1alpha1.AssignedAddress, nodes []string) (changed []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	was, known := d.of[address.Address]
	same := known && equality.Semantic.DeepEqual(was.AssignedAddress, address)
	for _, node := range was.nodes {
		if !slices.Contains(nodes, node) {
			delete(d.on[node], address.Address)
			changed = append(changed, node)
		}
	}
	for _, node := range nodes {
		if d.on[node] == nil {
			d.on[node] = map[string]bool{}
		}
		if !same || !d.on[node][address.Address] {
			changed = append(changed, node)
		}
		d.on[node][address.Address] = true
	}
	d.of[address.Address] = decision{address, nodes}
	return changed
}

// forget removes the decision that no node carries an address.
func (d *decisions) forget(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.of[address].nodes) == 0 {
		delete(d.of, address)
	}
}

// decided returns the addresses of a node, and whether there is a decision about another address.
func (d *decisions) decided(node string) (addresses []v1alpha1.AssignedAddress, isKnown func(address string) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for address := range d.on[node] {
		addresses = append(addresses, d.of[address].AssignedAddress)
	}
	return addresses, func(address string) bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		_, known := d.of[address]
		return known
	}
}

// Follow has changed called with an address of a Service when the nodes that carry it, or are to,
// change. changed must not block. Follow must be called before the loop runs.
func (a *Assignments) Follow(changed func(address string)) {
	before := a.carrierChanged
	a.carrierChanged = func(address string) { before(address); changed(address) }
}

// Carry decides which nodes are to carry an address of a Service, from now on. Their
// NodeAssignments follow. It does not block.
func (a *Assignments) Carry(address v1alpha1.AssignedAddress, nodes []string) {
	for _, node := range a.decisions.set(address, slices.Clone(nodes)) {
		a.loop.Enqueue(keyOf(node))
	}
	carriers := a.Carriers(address.Address)
	if len(nodes) == 0 && len(carriers) == 0 {
		a.decisions.forget(address.Address)
	} else if len(nodes) == 0 {
		for _, carrier := range carriers { // of a decision of an earlier leader
			a.loop.Enqueue(keyOf(carrier.Node))
		}
	}
}

// Carrier is a node that carries an address of a Service, or is to.
type Carrier = v1alpha1.Carrier

// Carriers returns the nodes that carry an address of a Service or are to, by the NodeAssignments
// as they were seen, sorted by name.
func (a *Assignments) Carriers(address string) []Carrier {
	var carriers []Carrier
	for _, assignment := range view.Indexed[*v1alpha1.NodeAssignment](a.written.GetIndexer(), byAddress, address) {
		carriers = append(carriers, assignment.Carrier(address))
	}
	slices.SortFunc(carriers, func(x, y Carrier) int { return cmp.Compare(x.Node, y.Node) })
	return carriers
}

// OfServices returns the addresses of Services that a node carries or is to, as its NodeAssignment
// was seen.
func (a *Assignments) OfServices(node string) []string {
	seen, ok := a.assignment(node)
	if !ok {
		return nil
	}
	addresses, _ := serviceAddresses(seen)
	return addresses
}

// assignment returns the NodeAssignment of a node as it was seen; an empty one if there is none.
func (a *Assignments) assignment(node string) (seen *v1alpha1.NodeAssignment, exists bool) {
	seen = view.Get[v1alpha1.NodeAssignment](a.written.GetStore(), node)
	return cmp.Or(seen, &v1alpha1.NodeAssignment{}), seen != nil
}

// ofServices returns the addresses of Services that a node is to carry, in their order. An address
// about which nothing is decided yet, since this process leads, stays while a Service has it.
func (a *Assignments) ofServices(node string) []v1alpha1.AssignedAddress {
	addresses, isKnown := a.decisions.decided(node)
	seen, _ := a.assignment(node)
	for _, assigned := range seen.Spec.Addresses {
		if !assigned.IsCarried() || isKnown(assigned.Address) {
			continue
		}
		if ip := a.loop.FloatingIP(assigned.Address); ip != nil && ip.Spec.Carrier() != nil {
			addresses = append(addresses, assigned)
		}
	}
	slices.SortFunc(addresses, func(x, y v1alpha1.AssignedAddress) int { return cmp.Compare(x.Address, y.Address) })
	return addresses
}

// byAddress is the index of NodeAssignments by the addresses of Services that their nodes carry or
// are to.
const byAddress = "serviceAddress"

func serviceAddresses(object any) ([]string, error) {
	assignment := object.(*v1alpha1.NodeAssignment)
	all := map[string]bool{}
	for _, address := range assignment.Status.Carried {
		all[address] = true
	}
	for _, assigned := range assignment.Spec.Addresses {
		if assigned.IsCarried() {
			all[assigned.Address] = true
		} else {
			delete(all, assigned.Address)
		}
	}
	return slices.Sorted(maps.Keys(all)), nil
}

// changedCarriers returns the addresses of Services about which two states of a NodeAssignment
// differ. Pure.
func changedCarriers(before, after *v1alpha1.NodeAssignment) (changed []string) {
	states := [2]map[string]Carrier{}
	all := map[string]bool{}
	for i, assignment := range []*v1alpha1.NodeAssignment{before, after} {
		states[i] = map[string]Carrier{}
		if assignment == nil {
			continue
		}
		addresses, _ := serviceAddresses(assignment)
		for _, address := range addresses {
			states[i][address], all[address] = assignment.Carrier(address), true
		}
	}
	for _, address := range slices.Sorted(maps.Keys(all)) {
		if states[0][address] != states[1][address] {
			changed = append(changed, address)
		}
	}
	return changed
}
