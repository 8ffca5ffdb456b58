// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"
	"slices"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

// Change is news that may help those who wait. It is one of
//
//	Pool, Addr         Addr of Pool came free, for anybody
//	Pool               Pool serves more nodes than before
//	Pool, Namespace,   Namespace may have More addresses of Pool than before, which
//	  More             has a cap
//	Owner, Addr, More  Addr is retained for Owner and has no pod
//	Owner, More        Owner may have More addresses than before
//	Everything         pools changed, or the book has just been read
//
// More is 0 where it is not known how many.
type Change struct {
	Pool       string
	Addr       netip.Addr
	Namespace  string
	Owner      *Owner
	More       int
	Everything bool
}

// Lack is what a pod needs that found no address. A set; empty where nothing that
// comes free would help, but other pools or nodes.
type Lack uint8

const (
	// LackAddress is a free address of a pool.
	LackAddress Lack = 1 << iota
	// LackOwner is something that its owner may come to have: more addresses than it
	// may have now, or one back that is with another of its pods.
	LackOwner
)

// Helps returns whether a change may be what a request waits for that lacked lack,
// as things are now: it is to be asked at once, for as many requests as there are,
// and not kept. Neither blocks.
func (i *IPAM) Helps(change Change) func(request *Request, lack Lack) bool {
	if change.Everything {
		return func(*Request, Lack) bool { return true }
	}
	h := &helping{ipam: i, change: change, holders: map[ownerKey]*holderNow{}, atCap: map[string]bool{}}
	if state := i.state.Load(); state != nil {
		h.state = state
		if position, ok := state.snapshot.Index(change.Pool); ok {
			h.pool = state.snapshot.Pools()[position]
		}
	}
	if change.Owner != nil {
		return h.owner
	}
	return h.anybody
}

// helping is what one change helps. Not safe for concurrent use.
type helping struct {
	ipam    *IPAM
	change  Change
	state   *state
	pool    *pools.Pool // of the change; nil: none
	holders map[ownerKey]*holderNow
	// atCap are the namespaces that may have no more of the pool.
	atCap map[string]bool
}

// ownerKey is what requests have in common that are looked up once.
type ownerKey struct {
	owner   Owner
	maxPods int
}

// holderNow is how whoever has the addresses of a request stands.
type holderNow struct {
	// claim is nil unless the request names one that is there and valid.
	claim *v1alpha1.IPClaim
	// atLimit are the families of which it may have no more.
	atLimit map[v1alpha1.IPFamily]bool
	// hasFree says that a pool which it may use has a free address.
	hasFree bool
}

// owner is for a change of an owner.
func (h *helping) owner(request *Request, lack Lack) bool {
	switch {
	case !request.OwnerKey().SameWorkload(*h.change.Owner):
		return false
	case h.change.Addr.IsValid(), h.change.More == 0:
		return true
	}
	// What it may have more must come from a pool. If none has an address, the one that
	// comes free helps.
	return lack&LackOwner != 0 && (!request.limited() || h.holder(request).hasFree)
}

// limited says that what the owner may have is known: if it may have more, a free
// address helps that did not before.
func (r *Request) limited() bool { return r.Claim != "" || r.FixedSet }

// anybody is for a change of a pool. A namespace that may have more of a pool
// without a free address is helped by the next that comes free.
func (h *helping) anybody(request *Request, lack Lack) bool {
	if h.pool == nil {
		return false
	}
	if request.Claim != "" || lack == LackOwner && request.FixedSet {
		holder := h.holder(request)
		if request.Claim != "" {
			if holder.claim == nil {
				return false
			}
			resolved, err := request.under(holder.claim)
			if err != nil {
				return false
			}
			request = &resolved
		}
		if lack == LackOwner && !holder.atLimit[h.pool.Family()] {
			lack = LackAddress
		}
	}
	serves := h.change.Namespace == "" && !h.change.Addr.IsValid()
	switch {
	case serves && lack&LackOwner != 0 && h.hasIn(request):
		// What it has there was not reachable.
		return true
	case lack == LackOwner && !serves, !request.mayUse(h.pool), h.isAtCap(request.Namespace):
		return false
	case h.change.Namespace != "" && (h.change.Namespace != request.Namespace || !h.ipam.hasFree(h.pool.Name)):
		return false
	}
	return slices.ContainsFunc(request.Parts, func(p Part) bool {
		if h.change.Addr.IsValid() {
			return p.Fits(h.change.Addr)
		}
		return fitsPool(&p, h.pool)
	})
}

// hasIn says whether the request's owner has an address of the pool.
func (h *helping) hasIn(request *Request) bool {
	return slices.ContainsFunc(h.ipam.book.RecordsOf(request.OwnerKey()), func(record allocator.Record) bool {
		home, ok := h.state.snapshot.Home(record.Addr)
		return ok && h.state.snapshot.Pools()[home] == h.pool
	})
}

// isAtCap says whether the pool gives a namespace no more.
func (h *helping) isAtCap(namespace string) bool {
	if h.pool.MaxPerNamespace == 0 {
		return false
	}
	known, ok := h.atCap[namespace]
	if !ok {
		known = allowance(h.pool, h.ipam.book.Share(h.pool.Name, namespace)) == 0
		h.atCap[namespace] = known
	}
	return known
}

func (h *helping) holder(request *Request) *holderNow {
	key := ownerKey{owner: request.OwnerKey(), maxPods: request.MaxPods}
	if known := h.holders[key]; known != nil {
		return known
	}
	now := &holderNow{atLimit: map[v1alpha1.IPFamily]bool{}}
	h.holders[key] = now
	book, resolved := h.ipam.book, *request
	switch {
	case request.Claim != "":
		claim := h.ipam.watch.Claim(request.Namespace, request.Claim)
		if claim == nil {
			return now
		}
		var err error
		if resolved, err = request.under(claim); err != nil {
			return now
		}
		v4, v6 := book.Owned(key.owner)
		now.claim = claim
		now.atLimit[v1alpha1.IPv4], now.atLimit[v1alpha1.IPv6] = v4 >= int(claim.Spec.Size), v6 >= int(claim.Spec.Size)
	case request.FixedSet && !book.SetHasRoom(claimantOf(request)):
		now.atLimit[v1alpha1.IPv4], now.atLimit[v1alpha1.IPv6] = true, true
	}
	if h.state == nil {
		return now
	}
	for position, pool := range h.state.snapshot.Pools() {
		if h.state.view.Free(position) > 0 && resolved.mayUse(pool) {
			now.hasFree = true
			break
		}
	}
	return now
}

// IsIdle says whether a pod could be given the address: it is free in its pool, or
// its owner retains it. It does not block.
func (i *IPAM) IsIdle(addr netip.Addr) bool { return i.book.IsIdle(addr) }

// Gained returns the pools that serve a node as it is now and did not before.
func (i *IPAM) Gained(before, after Node) (names []string) {
	state := i.state.Load()
	if state == nil {
		return nil
	}
	had := ReachOf(state.snapshot, before).Positions()
	for _, position := range ReachOf(state.snapshot, after).Positions() {
		if !slices.Contains(had, position) {
			names = append(names, state.snapshot.Pools()[position].Name)
		}
	}
	return names
}

// hasFree says whether a pool has a free address.
func (i *IPAM) hasFree(pool string) bool {
	state := i.state.Load()
	if state == nil {
		return false
	}
	position, ok := state.snapshot.Index(pool)
	return ok && state.view.Free(position) > 0
}
