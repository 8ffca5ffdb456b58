// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

// Change is a change that may help waiting pods. It is one of
//
//	Pool, Addr         the Addr of Pool became free, for any owner
//	Pool, Addr,        the Addr of Pool is in cooldown; pods of the Namespace may have it
//	  Namespace
//	Pool, Victims      the Pool serves more nodes than before, on which Victims run
//	Pool, Namespace,   the Namespace may have More addresses of Pool than before, which
//	  More             has a cap
//	Namespace          other pools admit the Namespace than before
//	Owner, Addr, More  Addr is retained for Owner and has no pod
//	Owner, More        Owner may have More addresses than before
//	Everything         pools changed, or the book has just been read
//
// More is 0 if the number is unknown.
type Change struct {
	Pool       string
	Addr       netip.Addr
	Namespace  string
	Owner      *Owner
	More       int
	Everything bool
	// Trial says that the change takes back a reservation on trial.
	Trial bool
	// Victims are pods that could be preempted on these nodes, with an address of any pool.
	Victims []Victim
}

// IsOfMany says whether the change may help all pods, or all pods of a namespace, and is not about
// one pool, address or owner.
func (c Change) IsOfMany() bool { return c.Everything || c.Namespace != "" && c.Pool == "" }

// Lack has the kinds of changes that help a pod which found no address, as a set of
// bits. Empty: only other pools or nodes would help, not a freed address.
type Lack uint8

const (
	// LackAddress is a free address of a pool.
	LackAddress Lack = 1 << iota
	// LackOwner is an address of the request's owner: the owner must be allowed more addresses, or
	// another of its pods must give an address back.
	LackOwner
	// LackAgent is an agent, or a BGP session, on a node of the request's pools. A pool begins to
	// serve the node when the agent is ready, or the session is established.
	LackAgent
)

// Helps returns a function that says whether a change may help a request with this lack now. The
// caller must use the function at once, for any number of requests, and not keep it; it is not safe
// for concurrent use. Neither Helps nor the function blocks.
func (i *IPAM) Helps(change Change) func(request *Request, lack Lack) bool {
	if change.IsOfMany() {
		return func(request *Request, _ Lack) bool { return change.Everything || request.Namespace == change.Namespace }
	}
	h := &helping{ipam: i, change: change, owners: map[ownerKey]*ownerState{}, atCap: map[string]bool{}}
	if state := i.state.Load(); state != nil {
		h.state = state
		h.pool = state.snapshot.Named(change.Pool)
	}
	if change.Owner != nil {
		return h.owner
	}
	return h.anybody
}

// helping tells which requests one change may help. Not safe for concurrent use.
type helping struct {
	ipam   *IPAM
	change Change
	state  *state
	pool   *pools.Pool // of the change; nil: none
	owners map[ownerKey]*ownerState
	// atCap caches, by namespace, whether the pool gives the namespace no more addresses.
	atCap map[string]bool
}

// ownerKey groups requests of the same owner, to look up its state once.
type ownerKey struct {
	owner   Owner
	maxPods int
}

type ownerState struct {
	// terms are nil unless the request names a claim that exists and is valid.
	terms *claimTerms
	// atLimit are the families of which the owner may have no more addresses.
	atLimit map[v1alpha1.IPFamily]bool
	// hasFree says that a pool that the owner may use has a free address.
	hasFree bool
}

// owner says whether a change of an owner may help a request.
func (h *helping) owner(request *Request, lack Lack) bool {
	switch {
	case request.isAhead():
		// The namespace may have one address fewer.
		return request.Quota != nil && request.Namespace == h.change.Owner.Namespace && !h.change.Addr.IsValid() &&
			!h.isAtQuota(request) && h.stateOf(request).hasFree
	case !request.ownerKey().SameWorkload(*h.change.Owner):
		return false
	case h.change.Addr.IsValid(), h.change.More == 0:
		return true
	}
	// The owner may have more addresses, but the address must come from a pool. If no pool has a free
	// address, a later change that frees one helps instead.
	return lack&LackOwner != 0 && (!request.limited() || h.stateOf(request).hasFree)
}

// limited says whether the owner has a known limit of addresses: below the limit, a
// free address can help.
func (r *Request) limited() bool { return r.Claim != "" || r.FixedSet }

// anybody says whether a change of a pool may help a request. If a namespace may have more
// addresses of a pool without a free address, only the next freed address helps.
func (h *helping) anybody(request *Request, lack Lack) bool {
	if h.pool == nil {
		return false
	}
	// A request that lacks something other than an address is not told of freed addresses, unless its
	// owner may have more addresses by now.
	hears := lack == 0 || lack&LackAddress != 0
	if !request.isAhead() && (request.Claim != "" || !hears && lack&LackOwner != 0 && request.FixedSet) {
		owner := h.stateOf(request)
		if request.Claim != "" {
			if owner.terms == nil {
				return false
			}
			resolved, err := request.under(owner.terms)
			if err != nil {
				return false
			}
			request = &resolved
		}
		hears = hears || lack&LackOwner != 0 && !owner.atLimit[h.pool.Family()]
	}
	if h.change.Namespace == "" && !h.change.Addr.IsValid() {
		return h.serves(request, lack)
	}
	if !hears || !h.fits(request) || !request.mayUse(h.pool) || h.isAtCap(request.Namespace) || h.isAtQuota(request) {
		return false
	}
	return h.change.Namespace == "" || h.change.Namespace == request.Namespace && (h.change.Addr.IsValid() || h.ipam.hasFree(h.pool.Name))
}

// fits says whether the changed address, or the pool's addresses, can serve a part.
func (h *helping) fits(request *Request) bool {
	return slices.ContainsFunc(request.Parts, func(p Part) bool {
		if h.change.Addr.IsValid() {
			return p.Fits(h.change.Addr)
		}
		return fitsPool(&p, h.pool)
	})
}

// serves says whether a request may be helped because the pool serves another node. If the request
// lacks an address and the pool has none, it is helped only by a victim on that node; otherwise the
// next freed address helps. A request that lacks something else is not told of freed addresses, so
// its next attempt must find out that it lacks an address.
func (h *helping) serves(request *Request, lack Lack) bool {
	other := lack&(LackOwner|LackAgent) != 0
	switch {
	case other && h.hasIn(request):
		return true // Its addresses in the pool were out of reach.
	case !h.fits(request) || !request.mayUse(h.pool):
		return false
	}
	return other || !h.isAtCap(request.Namespace) && h.ipam.hasFree(h.pool.Name) || h.preempts(request)
}

// preempts says whether the end of a victim of lower priority would give the request an address of
// the pool.
func (h *helping) preempts(request *Request) bool {
	return slices.ContainsFunc(h.change.Victims, func(v Victim) bool {
		return request.MayPreempt && v.Priority < request.Priority && slices.ContainsFunc(h.ipam.book.OfPod(v.Namespace, v.UID), func(record allocator.Record) bool {
			if record.Policy != allocator.PodDeleted {
				return false
			}
			if h.state.snapshot.PoolOf(record.Addr) != h.pool {
				return false
			}
			freed := h.pool.Cooldown == 0 && slices.ContainsFunc(request.Parts, func(p Part) bool { return p.Fits(record.Addr) })
			if !h.isAtCap(request.Namespace) {
				return freed
			}
			return record.Owner.Namespace == request.Namespace && (freed || h.ipam.hasFree(h.pool.Name))
		})
	})
}

// hasIn says whether the request's owner has an address of the pool.
func (h *helping) hasIn(request *Request) bool {
	return slices.ContainsFunc(h.ipam.book.RecordsOf(request.ownerKey()), func(record allocator.Record) bool {
		return h.state.snapshot.PoolOf(record.Addr) == h.pool
	})
}

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

// isAtQuota says whether the namespace of a request may have no more addresses.
func (h *helping) isAtQuota(request *Request) bool {
	return request.Quota != nil && h.ipam.book.InNamespace(request.Namespace) >= uint64(*request.Quota)
}

func (h *helping) stateOf(request *Request) *ownerState {
	key := ownerKey{owner: request.ownerKey(), maxPods: request.MaxPods}
	if known := h.owners[key]; known != nil {
		return known
	}
	now := &ownerState{atLimit: map[v1alpha1.IPFamily]bool{}}
	h.owners[key] = now
	book, resolved := h.ipam.book, *request
	switch {
	case request.isAhead():
	case request.Claim != "":
		claim := h.ipam.watch.Claim(request.Namespace, request.Claim)
		if claim == nil {
			return now
		}
		terms, err := termsOf(claim)
		if err != nil {
			return now
		}
		if resolved, err = request.under(terms); err != nil {
			return now
		}
		v4, v6 := book.Owned(key.owner)
		now.terms = terms
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

// IsFree says whether the address is free in its pool. It does not block.
func (i *IPAM) IsFree(addr netip.Addr) bool { return i.book.IsFree(addr) }

// IsIdle says whether a pod could take the address: it is free in its pool, or its
// owner may use it for its next pod. It does not block.
func (i *IPAM) IsIdle(addr netip.Addr) bool { return i.book.IsIdle(addr) }

// Gained returns the names of the pools that serve a node after a change and did not
// before. It does not block.
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

// AreAdmittedAlike says whether the same pools admit a namespace with either labels. It does not
// block.
func (i *IPAM) AreAdmittedAlike(before, after labels.Set) bool {
	state := i.state.Load()
	return state == nil || !slices.ContainsFunc(state.snapshot.Pools(), func(pool *pools.Pool) bool {
		return pool.AdmitsNamespace(before) != pool.AdmitsNamespace(after)
	})
}

// PoolsOf returns the names of the pools that serve a node. It does not block.
func (i *IPAM) PoolsOf(node Node) (names []string) {
	state := i.state.Load()
	if state == nil {
		return nil
	}
	for _, position := range ReachOf(state.snapshot, node).Positions() {
		names = append(names, state.snapshot.Pools()[position].Name)
	}
	return names
}

func (i *IPAM) hasFree(pool string) bool {
	state := i.state.Load()
	if state == nil {
		return false
	}
	position, ok := state.snapshot.Index(pool)
	return ok && state.view.Free(position) > 0
}
