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

// decisions are which nodes are to carry the addresses of Services, and which are standby. Safe for
// concurrent use.
type decisions struct {
	mu sync.Mutex
	of map[string]decision        // by address
	on map[string]map[string]bool // addresses by node; false: it is standby
}

type decision struct {
	v1alpha1.AssignedAddress
	nodes   []string
	standby string
}

// all returns the nodes of a decision.
func (d *decision) all() []string {
	if d.standby == "" {
		return d.nodes
	}
	return append(slices.Clone(d.nodes), d.standby)
}

// set replaces the decision about an address and returns the nodes for which something changed.
func (d *decisions) set(address v1alpha1.AssignedAddress, nodes []string, standby string) (changed []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	was, known := d.of[address.Address]
	same := known && equality.Semantic.DeepEqual(was.AssignedAddress, address)
	now := decision{address, nodes, standby}
	for _, node := range was.all() {
		if !slices.Contains(now.all(), node) {
			delete(d.on[node], address.Address)
			changed = append(changed, node)
		}
	}
	for _, node := range now.all() {
		if d.on[node] == nil {
			d.on[node] = map[string]bool{}
		}
		carries := node != standby
		if is, has := d.on[node][address.Address]; !same || !has || is != carries || !carries && !slices.Equal(was.nodes, nodes) {
			changed = append(changed, node)
		}
		d.on[node][address.Address] = carries
	}
	d.of[address.Address] = now
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

// decided returns the addresses of a node, the ones of which it is standby, and whether there is a
// decision about another address.
func (d *decisions) decided(node string) (addresses []v1alpha1.AssignedAddress, standby []v1alpha1.StandbyAddress, isKnown func(address string) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for address, carries := range d.on[node] {
		if of := d.of[address]; carries {
			addresses = append(addresses, of.AssignedAddress)
		} else {
			standby = append(standby, v1alpha1.StandbyAddress{Address: address, Carrier: of.nodes[0], Network: of.Network})
		}
	}
	return addresses, standby, func(address string) bool {
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

// Carry decides which nodes are to carry an address of a Service, from now on, and which other node
// is standby of a single one, empty for none. Their NodeAssignments follow. It does not block.
func (a *Assignments) Carry(address v1alpha1.AssignedAddress, nodes []string, standby string) {
	for _, node := range a.decisions.set(address, slices.Clone(nodes), standby) {
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
		carrier := assignment.Carrier(address)
		for _, standby := range view.Indexed[*v1alpha1.NodeAssignment](a.written.GetIndexer(), byStandby, address) {
			if standby.HearsSilence(address, carrier.Node) {
				carrier.SilentBy = standby.Name
			}
		}
		carriers = append(carriers, carrier)
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

// ofServices returns the addresses of Services that a node is to carry, and the ones of which it is
// standby, in their order. An address about which nothing is decided yet, since this process leads,
// stays while a Service has it.
func (a *Assignments) ofServices(node string) (addresses []v1alpha1.AssignedAddress, standby []v1alpha1.StandbyAddress) {
	addresses, standby, isKnown := a.decisions.decided(node)
	stays := func(address string) bool {
		if isKnown(address) {
			return false
		}
		ip := a.loop.FloatingIP(address)
		return ip != nil && ip.Spec.Carrier() != nil
	}
	seen, _ := a.assignment(node)
	for _, assigned := range seen.Spec.Addresses {
		if assigned.IsCarried() && stays(assigned.Address) {
			addresses = append(addresses, assigned)
		}
	}
	for _, s := range seen.Spec.Standby {
		if stays(s.Address) {
			standby = append(standby, s)
		}
	}
	slices.SortFunc(addresses, func(x, y v1alpha1.AssignedAddress) int { return cmp.Compare(x.Address, y.Address) })
	slices.SortFunc(standby, func(x, y v1alpha1.StandbyAddress) int { return cmp.Compare(x.Address, y.Address) })
	return addresses, standby
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

// byStandby is the index of NodeAssignments by the addresses of which their nodes are standby.
const byStandby = "standby"

func standbyAddresses(object any) (addresses []string, err error) {
	for _, s := range object.(*v1alpha1.NodeAssignment).Spec.Standby {
		addresses = append(addresses, s.Address)
	}
	return addresses, nil
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
		for _, s := range assignment.Spec.Standby {
			if assignment.HearsSilence(s.Address, s.Carrier) {
				states[i][s.Address], all[s.Address] = Carrier{Node: s.Carrier, SilentBy: assignment.Name}, true
			}
		}
	}
	for _, address := range slices.Sorted(maps.Keys(all)) {
		if states[0][address] != states[1][address] {
			changed = append(changed, address)
		}
	}
	return changed
}
