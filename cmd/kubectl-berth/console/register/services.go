// SPDX-License-Identifier: Apache-2.0

package register

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

type ServiceAddress struct {
	Namespace string `json:"namespace"`
	// Service is the name of the one whose annotations decide, if several share the address.
	Service string `json:"service"`
	standing.Address
	// Carriers are the nodes that carry the address, or are to.
	Carriers []Carrier `json:"carriers"`
}

// Carrier is a node that is to carry an address of a Service.
type Carrier struct {
	Node string `json:"node"`
	// Answers says that the node confirms that it carries the address.
	Answers bool `json:"answers"`
	// Problem is why it does not, if it says so.
	Problem string `json:"problem,omitempty"`
}

// AssignmentOf returns of a NodeAssignment what it says of Services; ok is false if that is
// nothing.
func AssignmentOf(whole *v1alpha1.NodeAssignment) (of *v1alpha1.NodeAssignment, ok bool) {
	of = &v1alpha1.NodeAssignment{ObjectMeta: metav1.ObjectMeta{Name: whole.Name}, Status: v1alpha1.NodeAssignmentStatus{Carried: whole.Status.Carried, Refused: whole.Status.Refused}}
	for _, address := range whole.Spec.Addresses {
		if address.Use == v1alpha1.UseService {
			of.Spec.Addresses = append(of.Spec.Addresses, v1alpha1.AssignedAddress{Address: address.Address, Use: address.Use})
		}
	}
	return of, len(of.Spec.Addresses) > 0
}

// Services returns the addresses of Services by namespace, Service and address.
func (r *Register) Services(scope Scope) []ServiceAddress {
	pools := r.pools().all
	r.mu.RLock()
	defer r.mu.RUnlock()
	carriers := map[string][]Carrier{}
	for _, assignment := range r.Objects.Assignments.seen(Everything) {
		for i := range assignment.Spec.Addresses {
			address := assignment.Spec.Addresses[i].Address
			of := assignment.Carrier(address)
			carriers[address] = append(carriers[address], Carrier{of.Node, of.Carried, of.Refused.Message})
		}
	}
	all := []ServiceAddress{}
	sees := r.sees(scope)
	for _, row := range r.seen(scope) {
		if row.service && sees(row) {
			address := r.addressOf(row, pools, now())
			all = append(all, ServiceAddress{row.namespace.String(), row.lastPod, address, append([]Carrier{}, carriers[address.Address]...)})
		}
	}
	slices.SortStableFunc(all, func(a, b ServiceAddress) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Service, b.Service))
	})
	return all
}

// Peers returns the BGPPeers by name, which are for those who see everything.
func (r *Register) Peers(scope Scope) []*v1alpha1.BGPPeer {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.Objects.Peers.seen(scope)
}
