// SPDX-License-Identifier: Apache-2.0

// Package podrequest knows what is written on a pod and on a pod template about floating
// IPs: the extended resource and the annotations by which it asks for them, Berth's and,
// where that is on, Galaxy's ([Reader]), and the annotation of a bound pod that names those
// it got ([Names]). It knows as well whose the addresses of a pod are ([OwnerOf]).
//
// The scheduler, the controller, the importer and the node agent all read it here. The
// package does not know what addresses there are, and does no I/O.
package podrequest

import (
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/fixedset"
	"github.com/berth-dev/berth/ipam/iprange"
)

// Request is what a pod says of the addresses that it wants. Immutable.
type Request struct {
	// Namespace, Name and UID are the pod's.
	Namespace, Name, UID string
	Policy               v1alpha1.ReleasePolicy
	// RetainFor limits how long a policy keeps the addresses; 0: it does not.
	RetainFor       time.Duration
	KeepOnScaleDown bool
	// Spare is what the pod says of the size of the fixed set.
	Spare fixedset.Spare
	// Preallocate: the addresses of the fixed set are taken before any pod asks.
	Preallocate bool
	// Claim is the name of the IPClaim that the addresses come from. It says what is said
	// above, and the pools.
	Claim string
	// Parts are the addresses the pod wants, one each; there is at least one.
	Parts []Part
	// Pools limits the request to pools of these names, PoolSelector to pools
	// with some labels; empty and nil mean any.
	Pools        []string
	PoolSelector labels.Selector
}

// Part is one address of a request.
type Part struct {
	// Family of the address; empty: that of the ranges, or either.
	Family v1alpha1.IPFamily
	// Ranges that the address must be in; none: any.
	Ranges []iprange.Range
}

// Fits says whether the part can be served with an address.
func (p *Part) Fits(addr netip.Addr) bool {
	if p.Family != "" && p.Family != v1alpha1.FamilyOf(addr) {
		return false
	}
	return len(p.Ranges) == 0 || slices.ContainsFunc(p.Ranges, func(r iprange.Range) bool { return r.Contains(addr) })
}

// IsOfEither says whether the part says nothing of its family.
func (p *Part) IsOfEither() bool { return p.Family == "" && len(p.Ranges) == 0 }

// OnlyFamily is the family that the address can only be of; empty: it may be of either.
func (p *Part) OnlyFamily() v1alpha1.IPFamily {
	if p.Family != "" || len(p.Ranges) == 0 {
		return p.Family
	}
	family := v1alpha1.FamilyOf(p.Ranges[0].First)
	if slices.ContainsFunc(p.Ranges, func(r iprange.Range) bool { return v1alpha1.FamilyOf(r.First) != family }) {
		return ""
	}
	return family
}
