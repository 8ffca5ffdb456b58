// SPDX-License-Identifier: Apache-2.0

package assignments

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/preallocation"
	"github.com/berth-dev/berth/ipam/store"
	"github.com/berth-dev/berth/ipam/view"
)

// byEgress is the index of IPClaims by which pods leave, by namespace, and by "" all of them.
const byEgress = "egress"

func egressIndex(object any) ([]string, error) {
	if claim := object.(*v1alpha1.IPClaim); len(claim.EgressFamilies()) > 0 {
		return []string{"", claim.Namespace}, nil
	}
	return nil, nil
}

// Leaving returns the IPClaims by which the pods of a namespace leave, the oldest first; of all
// namespaces for "".
func (a *Assignments) Leaving(namespace string) []*v1alpha1.IPClaim {
	claims := view.Indexed[*v1alpha1.IPClaim](a.claims, byEgress, namespace)
	slices.SortFunc(claims, func(x, y *v1alpha1.IPClaim) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), x.CompareAge(y))
	})
	return claims
}

// Seen returns the NodeAssignment of a node as it was seen, nil if there is none.
func (a *Assignments) Seen(node string) *v1alpha1.NodeAssignment {
	return view.Get[v1alpha1.NodeAssignment](a.written.GetStore(), node)
}

// Shared returns the addresses by which pods leave for an IPClaim, the oldest first.
func Shared(loop *preallocation.Loop, claim *v1alpha1.IPClaim, family v1alpha1.IPFamily) []*v1alpha1.FloatingIP {
	ips := slices.DeleteFunc(loop.Addresses(preallocation.Key{Kind: preallocation.KindClaim, Namespace: claim.Namespace, Name: claim.Name}), func(ip *v1alpha1.FloatingIP) bool {
		return ip.Spec.Egress == nil || ip.Spec.Owner.UID != claim.UID || ip.Family() != family
	})
	slices.SortFunc(ips, func(x, y *v1alpha1.FloatingIP) int { return x.CompareAge(y) })
	return ips
}

// leaving returns by which IPClaims pods leave on a node, from the ports that the node has. Agents
// follow the claims themselves: pods of one without ports on their node do not leave.
func (a *Assignments) leaving(node string) (all []v1alpha1.AssignedClaim) {
	type of struct {
		namespace string
		family    v1alpha1.IPFamily
	}
	seen := map[of]bool{}
	for _, claim := range a.Leaving("") {
		for _, family := range claim.EgressFamilies() {
			if at := (of{claim.Namespace, family}); !seen[at] {
				seen[at] = true
				if one := a.claimOn(node, claim, family); one != nil {
					all = append(all, *one)
				}
			}
		}
	}
	return all
}

// claimOn returns the ports that a node has of a claim, nil where it has none.
func (a *Assignments) claimOn(node string, claim *v1alpha1.IPClaim, family v1alpha1.IPFamily) *v1alpha1.AssignedClaim {
	for _, ip := range Shared(a.loop, claim, family) {
		for _, b := range ip.Spec.Egress.Blocks {
			first := b.Index * ip.Spec.Egress.PortsPerNode
			if !ip.Spec.Egress.Has(node, first) || b.Node != node || ip.Spec.Network == nil || !a.isLed(node, ip.Spec.Address, first) {
				continue
			}
			return &v1alpha1.AssignedClaim{
				Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, Family: family,
				Address: ip.Spec.Address, FirstPort: first, PortsPerNode: ip.Spec.Egress.PortsPerNode, Network: *ip.Spec.Network,
			}
		}
	}
	return nil
}

// mayTake asks the API server whether a node has no ports any more of the claims that it is to
// lose: pods may have come again, and what was seen be old. It fails with store.ErrChanged if it
// has.
func (a *Assignments) mayTake(ctx context.Context, node string, before, after []v1alpha1.AssignedClaim) error {
	for _, c := range before {
		if slices.ContainsFunc(after, func(o v1alpha1.AssignedClaim) bool { return o.Address == c.Address && o.FirstPort == c.FirstPort }) {
			continue
		}
		addr, err := netip.ParseAddr(c.Address)
		if err != nil {
			continue // The node has nothing of it.
		}
		live, err := a.store.Get(ctx, v1alpha1.NameOf(addr))
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("get the FloatingIP of %s: %w", addr, err)
		}
		if err == nil && live.Spec.Owner != nil && live.Spec.Owner.UID == c.UID && live.Spec.Egress.Has(node, c.FirstPort) {
			return fmt.Errorf("take ports of %s from node %s: %w", c.Address, node, store.ErrChanged)
		}
	}
	return nil
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

// claimChanged has the nodes looked at that have ports of a claim.
func (a *Assignments) claimChanged(before, after *v1alpha1.IPClaim) {
	var was, now []v1alpha1.IPFamily
	if before != nil {
		was = before.EgressFamilies()
	}
	if after != nil {
		now = after.EgressFamilies()
	}
	if slices.Equal(was, now) && (before == nil || after == nil || before.UID == after.UID) {
		return
	}
	claim := cmp.Or(after, before)
	for _, ip := range a.loop.Addresses(preallocation.Key{Kind: preallocation.KindClaim, Namespace: claim.Namespace, Name: claim.Name}) {
		a.blocksChanged(nil, ip)
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
