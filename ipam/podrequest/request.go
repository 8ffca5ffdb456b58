// SPDX-License-Identifier: Apache-2.0

// Package podrequest reads pods and pod templates: the extended resource and the
// annotations that ask for floating IPs, Berth's and optionally Galaxy's ([Reader]), the
// annotation of a bound pod that names its FloatingIPs ([NamesOf]), and the owner of a
// pod's addresses ([OwnerOf]).
//
// The scheduler, the controller, the importer and the node agent share it, so that they
// read the same. The package does not know which addresses exist, and does no I/O.
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

// Request is a pod's request for addresses. Immutable.
type Request struct {
	// Namespace, Name and UID are the pod's.
	Namespace, Name, UID string
	Policy               v1alpha1.ReleasePolicy
	// RetainFor limits how long the policy keeps the addresses. 0 means no limit.
	RetainFor       time.Duration
	KeepOnScaleDown bool
	// Spare is the pod's setting for spare addresses of the fixed set.
	Spare fixedset.Spare
	// Preallocate says that the fixed set is taken before any pod asks.
	Preallocate bool
	// Claim is the name of the IPClaim that the addresses come from, or "". The claim
	// then decides the fields from Policy to Preallocate, and the pools.
	Claim string
	// Parts has one element for each address of the pod; there is at least one.
	Parts []Part
	// Pools limits the request to the named pools, PoolSelector to pools with matching
	// labels. Empty and nil mean any pool.
	Pools        []string
	PoolSelector labels.Selector
}

// Part is one address of a request.
type Part struct {
	// Family of the address. Empty means the family of the ranges, or either.
	Family v1alpha1.IPFamily
	// Ranges that the address must be in. None means any address.
	Ranges []iprange.Range
}

// Fits reports whether the address can serve the part.
func (p *Part) Fits(addr netip.Addr) bool {
	if p.Family != "" && p.Family != v1alpha1.FamilyOf(addr) {
		return false
	}
	return len(p.Ranges) == 0 || slices.ContainsFunc(p.Ranges, func(r iprange.Range) bool { return r.Contains(addr) })
}

// IsOfEither reports whether the part sets neither a family nor ranges.
func (p *Part) IsOfEither() bool { return p.Family == "" && len(p.Ranges) == 0 }

// OnlyFamily returns the only family that the address can have; empty if it may have
// either.
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
