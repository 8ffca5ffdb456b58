// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"slices"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

// defaultFamily returns the family of new addresses that may be of either family: IPv6
// if the request may use only IPv6 pools, IPv4 otherwise. It does not depend on which
// pool has more room, so that a pod without a choice gets a predictable family.
func (r *Request) defaultFamily(s *pools.Snapshot) v1alpha1.IPFamily {
	if !r.mayUseFamily(s, v1alpha1.IPv4) && r.mayUseFamily(s, v1alpha1.IPv6) {
		return v1alpha1.IPv6
	}
	return v1alpha1.IPv4
}

// sharedFamily returns the family of addresses that may be of either family, if the pods of an
// owner share its addresses: all its pods get the same family. v4 and v6 say of which families the
// owner has addresses. The result does not depend on which address is idle. It is empty if the
// owner has no address, or may get no new address of its family.
func (r *Request) sharedFamily(s *pools.Snapshot, v4, v6 bool) v1alpha1.IPFamily {
	switch {
	case v4 && v6:
		return r.defaultFamily(s)
	case v4 && r.mayUseFamily(s, v1alpha1.IPv4):
		return v1alpha1.IPv4
	case v6 && r.mayUseFamily(s, v1alpha1.IPv6):
		return v1alpha1.IPv6
	}
	return ""
}

func (r *Request) mayUseFamily(s *pools.Snapshot, family v1alpha1.IPFamily) bool {
	return slices.ContainsFunc(s.Pools(), func(pool *pools.Pool) bool { return pool.Family() == family && r.mayUse(pool) })
}

// isOfEither says whether a part of the request may be of either family.
func (r *Request) isOfEither() bool {
	return slices.ContainsFunc(r.Parts, func(part Part) bool { return part.IsOfEither() })
}

// shares says whether the owner's pods share the addresses that it keeps, so that no
// address stands for one pod.
func (r *Request) shares() bool {
	return r.Claim != "" || r.MayHaveFixedSet()
}

// shareFamily chooses a family for parts of either family, before they get kept addresses of the
// owner. It does nothing for a pod that is scheduled again and already has addresses.
func (c *Candidates) shareFamily(held []allocator.Record) {
	isOwn := func(record allocator.Record) bool { return record.PodUID == c.request.UID }
	if !c.request.shares() || !c.request.isOfEither() || slices.ContainsFunc(held, isOwn) {
		return
	}
	v4, v6 := c.book.Shared(c.claimant.Owner, c.request.mayKeep)
	if family := c.request.sharedFamily(c.state.snapshot, v4, v6); family != "" {
		c.choose(family, func(int) bool { return true })
	}
}

// defaultFamily chooses a family for parts that may still be of either family and get a
// new address.
func (c *Candidates) defaultFamily() {
	isNew := func(i int) bool { return len(c.parts[i].kept) == 0 }
	if c.request.isOfEither() {
		c.choose(c.request.defaultFamily(c.state.snapshot), isNew)
	}
}

// choose gives a family to selected parts of either family.
func (c *Candidates) choose(family v1alpha1.IPFamily, which func(part int) bool) {
	parts := slices.Clone(c.request.Parts)
	for i := range parts {
		if parts[i].IsOfEither() && which(i) {
			parts[i].Family = family
		}
	}
	c.request.Parts = parts
}
