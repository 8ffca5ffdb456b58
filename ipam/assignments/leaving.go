// SPDX-License-Identifier: Apache-2.0

package assignments

import (
	"cmp"
	"maps"
	"slices"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/preallocation"
	"github.com/berth-dev/berth/ipam/view"
)

// byEgress is the index of IPClaims by which pods leave, by namespace, and by "" all of them.
const byEgress = "egress"

func egressIndex(object any) ([]string, error) {
	if claim := object.(*v1alpha1.IPClaim); claim.Spec.Egress != nil && claim.DeletionTimestamp == nil {
		return []string{"", claim.Namespace}, nil
	}
	return nil, nil
}

// Leaving returns the IPClaims by which the pods of a namespace leave, the oldest first; of all
// namespaces for "".
func (a *Assignments) Leaving(namespace string) []*v1alpha1.IPClaim {
	claims := view.Indexed[*v1alpha1.IPClaim](a.claims, byEgress, namespace)
	slices.SortFunc(claims, func(x, y *v1alpha1.IPClaim) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.Name, y.Name))
	})
	return claims
}

// Seen returns the NodeAssignment of a node as it was seen, nil if there is none.
func (a *Assignments) Seen(node string) *v1alpha1.NodeAssignment {
	return view.Get[v1alpha1.NodeAssignment](a.written.GetStore(), node)
}

// EgressFamilies returns the families of an IPClaim by which pods leave.
func EgressFamilies(claim *v1alpha1.IPClaim) []v1alpha1.IPFamily {
	if len(claim.Spec.Families) == 0 {
		return []v1alpha1.IPFamily{v1alpha1.IPv4}
	}
	return claim.Spec.Families
}

// Shared returns the addresses by which pods leave for an IPClaim, the oldest first.
func Shared(loop *preallocation.Loop, claim *v1alpha1.IPClaim, family v1alpha1.IPFamily) []*v1alpha1.FloatingIP {
	ips := slices.DeleteFunc(loop.Addresses(preallocation.Key{Kind: preallocation.KindClaim, Namespace: claim.Namespace, Name: claim.Name}), func(ip *v1alpha1.FloatingIP) bool {
		return ip.Spec.Egress == nil || ip.Spec.Owner.UID != claim.UID || ip.Family() != family
	})
	slices.SortFunc(ips, func(x, y *v1alpha1.FloatingIP) int { return x.CompareAge(y) })
	return ips
}

// leaving returns by which IPClaims pods leave on a node. A claim is there also while the node has
// no ports: its pods, which may come at any time, are not to leave otherwise.
func (a *Assignments) leaving(node string) (all []v1alpha1.AssignedClaim) {
	type of struct {
		namespace string
		family    v1alpha1.IPFamily
	}
	seen := map[of]bool{}
	for _, claim := range a.Leaving("") {
		for _, family := range EgressFamilies(claim) {
			if at := (of{claim.Namespace, family}); !seen[at] {
				seen[at] = true
				all = append(all, a.claimOn(node, claim, family))
			}
		}
	}
	return all
}

func (a *Assignments) claimOn(node string, claim *v1alpha1.IPClaim, family v1alpha1.IPFamily) v1alpha1.AssignedClaim {
	one := v1alpha1.AssignedClaim{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, Family: family}
	for _, ip := range Shared(a.loop, claim, family) {
		one.Network = cmp.Or(one.Network, ip.Spec.Network)
		for _, b := range ip.Spec.Egress.Blocks {
			first := b.Index * ip.Spec.Egress.PortsPerNode
			if !ip.Spec.Egress.Has(node, first) || b.Node != node || ip.Spec.Network == nil || !a.isLed(node, ip.Spec.Address, first) {
				continue
			}
			one.Address, one.FirstPort, one.PortsPerNode, one.Network = ip.Spec.Address, first, ip.Spec.Egress.PortsPerNode, ip.Spec.Network
			return one
		}
	}
	return one
}

// isLed returns whether a node leads answers to another one's ports, or that one was told so: it
// has them until they are withdrawn.
func (a *Assignments) isLed(node, address string, first int32) bool {
	if seen, _ := a.assignment(node); slices.ContainsFunc(seen.Spec.Claims, func(c v1alpha1.AssignedClaim) bool { return c.Address == address && c.FirstPort == first }) {
		return true
	}
	return slices.ContainsFunc(view.Indexed[*v1alpha1.NodeAssignment](a.written.GetIndexer(), byAddress, address), func(carrier *v1alpha1.NodeAssignment) bool {
		return carrier.Status.ObservedGeneration >= carrier.Generation && carrier.Carrier(address).Carried &&
			slices.ContainsFunc(ledBy(carrier)[address], func(b v1alpha1.LedBlock) bool { return b.Node == node && b.FirstPort == first })
	})
}

// ledBy returns the blocks that a node leads, by address.
func ledBy(carrier *v1alpha1.NodeAssignment) map[string][]v1alpha1.LedBlock {
	led := map[string][]v1alpha1.LedBlock{}
	if carrier != nil {
		for i := range carrier.Spec.Addresses {
			if address := &carrier.Spec.Addresses[i]; address.Use == v1alpha1.UseEgress {
				led[address.Address] = address.Blocks
			}
		}
	}
	return led
}

// leadsChanged has the nodes looked at to which another one leads answers from now on.
func (a *Assignments) leadsChanged(before, after *v1alpha1.NodeAssignment) {
	if before != nil && after != nil && before.Status.ObservedGeneration == after.Status.ObservedGeneration && slices.Equal(before.Status.Carried, after.Status.Carried) {
		return
	}
	for _, blocks := range ledBy(after) {
		for _, b := range blocks {
			a.loop.Enqueue(keyOf(b.Node))
		}
	}
}

func (a *Assignments) claimChanged(before, after *v1alpha1.IPClaim) {
	is := func(claim *v1alpha1.IPClaim) bool {
		keys, _ := egressIndex(claim) // It returns no error.
		return len(keys) > 0
	}
	was, now := before != nil && is(before), after != nil && is(after)
	if was == now && (!was || before.UID == after.UID && slices.Equal(EgressFamilies(before), EgressFamilies(after))) {
		return
	}
	for _, key := range a.Keys() {
		a.loop.Enqueue(key)
	}
}

// blocksChanged has the nodes looked at whose ports changed.
func (a *Assignments) blocksChanged(before, after *v1alpha1.FloatingIP) {
	states := [2]map[v1alpha1.EgressBlock]bool{{}, {}}
	for i, ip := range []*v1alpha1.FloatingIP{before, after} {
		if ip != nil && ip.Spec.Egress != nil {
			for _, b := range ip.Spec.Egress.Blocks {
				states[i][b] = true
			}
		}
	}
	for i := range states {
		for b := range maps.Keys(states[i]) {
			if !states[1-i][b] {
				a.loop.Enqueue(keyOf(b.Node))
			}
		}
	}
}
