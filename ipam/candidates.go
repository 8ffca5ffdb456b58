// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

// Candidates is what can serve a request at one moment: addresses its owner
// already has, and the pools it may use. Safe for concurrent use.
type Candidates struct {
	request  Request
	claimant allocator.Claimant
	state    *state
	book     *allocator.Allocator
	parts    []candidate
	// asked are the parts before those of either family that get a new address were
	// given one.
	asked []Part
	known *atomic.Pointer[KnownPods]
	// plain: one free address of any pool, which needs no look into the book.
	plain bool
	// shares are what the pod's namespace has of pools with a cap.
	shares map[string]allocator.Share
	// answers remembers whether the pools within a reach can serve.
	answers sync.Map // *pools.Reach → *Rejection, nil if they can
}

// candidate is what can serve one part.
type candidate struct {
	// kept are addresses of which the part must have one: the owner retained
	// them, or the pod was bound with them. None: it gets a free one.
	kept []allocator.Record
	// stale are addresses that earlier attempts to schedule the pod claimed, in
	// this process or in another scheduler. The pod need not run with them.
	stale []allocator.Record
}

// Rejection says why a node cannot have the pod.
type Rejection struct {
	// Reason for a person; the same for nodes with the same pools.
	Reason string
	// Unresolvable: not even preemption would help.
	Unresolvable bool
	// Lacks is what the pod needs to run there.
	Lacks Lack
}

// Reasons of rejections that do not depend on what is free.
const (
	ReasonNode     = "node(s) in no IPPool that the pod may use"
	ReasonKeptNode = "node(s) where the pod's retained floating IP is not reachable"
)

// terminating says whether the pod that a record names is being deleted.
func (c *Candidates) terminating(record *allocator.Record) bool {
	return c.known != nil && recordedPods{c.known}.ask(record, KnownPods.IsTerminating)
}

// Kept returns the addresses of which the pod must have some.
func (c *Candidates) Kept() []netip.Addr {
	var kept []netip.Addr
	for _, part := range c.parts {
		for _, record := range part.kept {
			if !slices.Contains(kept, record.Addr) {
				kept = append(kept, record.Addr)
			}
		}
	}
	return kept
}

// Snapshot is what positions of pools refer to.
func (c *Candidates) Snapshot() *pools.Snapshot { return c.state.snapshot }

// assign distributes the addresses that the owner holds, most fitting first, to
// the parts.
func (c *Candidates) assign(held []allocator.Record) {
	c.parts = make([]candidate, len(c.request.Parts))
	var options [][]allocator.Record
	for i := range c.request.Parts {
		part := &c.request.Parts[i]
		var fitting []allocator.Record
		for _, record := range held {
			switch {
			case !part.Fits(record.Addr):
			case c.isStale(&record):
				c.parts[i].stale = append(c.parts[i].stale, record)
			default:
				fitting = append(fitting, record)
			}
		}
		slices.SortStableFunc(fitting, func(x, y allocator.Record) int { return distance(x, i) - distance(y, i) })
		options = append(options, fitting)
	}
	// As many parts as possible have a kept address; where there are fewer
	// addresses than parts, the parts with their own index come first.
	holder := map[netip.Addr]int{}
	for i := range options {
		claimKept(options, i, holder, map[int]bool{})
	}
	for _, i := range holder {
		c.parts[i].kept = options[i]
	}
}

// isStale says of an address that records this very pod, which is not bound,
// whether it was claimed for this pod alone, and so nothing ran with it.
func (c *Candidates) isStale(record *allocator.Record) bool {
	return record.PodUID == c.request.UID && record.LastPod == ""
}

// shareFamily decides for parts that may be of either family, before they get any of
// what the owner keeps. A pod that is scheduled again may have its own addresses.
func (c *Candidates) shareFamily(held []allocator.Record) {
	isOwn := func(record allocator.Record) bool { return record.PodUID == c.request.UID }
	if !c.request.shares() || !c.request.isOfEither() || slices.ContainsFunc(held, isOwn) {
		return
	}
	v4, v6 := c.book.Shared(c.claimant.Owner, c.request.mayKeep)
	if family := c.request.SharedFamily(c.state.snapshot, v4, v6); family != "" {
		c.choose(family, func(int) bool { return true })
	}
}

// defaultFamily decides for parts that still may be of either family and get a new
// address.
func (c *Candidates) defaultFamily() {
	isNew := func(i int) bool { return len(c.parts[i].kept) == 0 }
	if c.request.isOfEither() {
		c.choose(c.request.DefaultFamily(c.state.snapshot), isNew)
	}
}

// choose gives a family to parts of either.
func (c *Candidates) choose(family v1alpha1.IPFamily, which func(part int) bool) {
	parts := slices.Clone(c.request.Parts)
	for i := range parts {
		if parts[i].IsOfEither() && which(i) {
			parts[i].Family = family
		}
	}
	c.request.Parts = parts
}

func distance(record allocator.Record, part int) int {
	if int(record.Index) == part {
		return 0
	}
	return 1
}

// claimKept gives part one of its options, moving others (Kuhn's matching).
func claimKept(options [][]allocator.Record, part int, holder map[netip.Addr]int, seen map[int]bool) bool {
	if seen[part] {
		return false
	}
	seen[part] = true
	for _, record := range options[part] {
		if _, taken := holder[record.Addr]; !taken {
			holder[record.Addr] = part
			return true
		}
	}
	for _, record := range options[part] {
		if claimKept(options, holder[record.Addr], holder, seen) {
			holder[record.Addr] = part
			return true
		}
	}
	return false
}

// Rejects says why a node with this reach cannot have the pod, nil if it can. It
// is quick for a pod that wants one address of any pool, and remembers its answers
// for the others.
func (c *Candidates) Rejects(reach *pools.Reach) *Rejection {
	if c.plain && c.hasRoom(reach) {
		return nil
	}
	if answer, known := c.answers.Load(reach); known {
		return answer.(*Rejection)
	}
	answer := c.rejection(reach.Positions(), nil)
	c.answers.Store(reach, answer)
	return answer
}

func (c *Candidates) hasRoom(reach *pools.Reach) bool {
	for _, position := range reach.Positions() {
		if c.free(position) > 0 && c.serves(0, position) {
			return true
		}
	}
	return false
}

// RejectsAfter is Rejects after a preemption.
func (c *Candidates) RejectsAfter(reach *pools.Reach, relief *Relief) *Rejection {
	return c.rejection(reach.Positions(), relief)
}

// Suit says that all of these reaches can give the pod what it asks for, and that
// others, which want so many addresses, would not change that. False: it is not
// sure.
func (c *Candidates) Suit(reaches []*pools.Reach, others int) bool {
	if !c.plain {
		return false
	}
	for _, reach := range reaches {
		if c.Room(reach) <= int64(others) {
			return false
		}
	}
	return true
}

// free is how many addresses a pool can give to pods of the namespace.
func (c *Candidates) free(position int) uint64 {
	free := c.state.view.Free(position)
	if free == 0 || !c.state.capped {
		return free
	}
	return min(free, allowance(c.pool(position), c.shares[c.pool(position).Name]))
}

// allowance is how many addresses more a namespace may have of a pool.
func allowance(pool *pools.Pool, has allocator.Share) uint64 {
	if pool.MaxPerNamespace == 0 {
		return math.MaxUint64
	}
	return pool.MaxPerNamespace - min(pool.MaxPerNamespace, has.Total())
}

func (c *Candidates) pool(position int) *pools.Pool { return c.state.snapshot.Pools()[position] }

func (c *Candidates) rejection(nodePools []int, relief *Relief) *Rejection {
	for i := range c.parts {
		if rejection := c.unreachable(i, nodePools); rejection != nil {
			return rejection
		}
	}
	err := c.book.Feasible(c.claimant, c.wantsAfter(nodePools, relief), relief)
	if err == nil {
		return nil
	}
	return &Rejection{
		Reason: "node(s) without an address for the pod: " + c.explain(err, nodePools),
		Lacks:  lackOf(err),
		// A pod of the set is not to be preempted for another one: the workload's own
		// controller says when it may go.
		Unresolvable: errors.Is(err, allocator.ErrSetInUse),
	}
}

// unreachable says whether nothing that could serve the part is reachable at a
// node.
func (c *Candidates) unreachable(part int, nodePools []int) *Rejection {
	kept := c.parts[part].kept
	if len(kept) > 0 {
		if len(c.homedIn(kept, nodePools)) == 0 {
			return &Rejection{Reason: ReasonKeptNode, Unresolvable: true, Lacks: LackOwner}
		}
		return nil
	}
	for _, position := range nodePools {
		if c.serves(part, position) {
			return nil
		}
	}
	return &Rejection{Reason: c.describePart(part, ReasonNode), Unresolvable: true}
}

// serves says whether the part may have a free address of a pool.
func (c *Candidates) serves(part, position int) bool {
	pool := c.pool(position)
	return c.request.mayUse(pool) && fitsPool(&c.request.Parts[part], pool)
}

// homedIn returns the addresses that lie in the pools at these positions, of those
// that admit the namespace.
func (c *Candidates) homedIn(records []allocator.Record, nodePools []int) []netip.Addr {
	var addrs []netip.Addr
	for _, record := range records {
		if home, ok := c.state.snapshot.Home(record.Addr); ok && slices.Contains(nodePools, home) && c.admitted(home) {
			addrs = append(addrs, record.Addr)
		}
	}
	return addrs
}

func (c *Candidates) admitted(position int) bool {
	return c.pool(position).AdmitsNamespace(c.request.NamespaceLabels())
}

// wants is what the book is asked for on a node with these pools.
func (c *Candidates) wants(nodePools []int) []allocator.Want {
	wants := make([]allocator.Want, len(c.parts))
	for i, part := range c.parts {
		if len(part.kept) > 0 {
			wants[i].Held = c.homedIn(part.kept, nodePools)
			continue
		}
		wants[i].Preferred = c.homedIn(part.stale, nodePools)
		wants[i].View = c.state.view
		for _, position := range nodePools {
			if c.serves(i, position) {
				wants[i].Pools = append(wants[i].Pools, position)
			}
		}
		wants[i].Ranges = c.request.Parts[i].Ranges
	}
	return wants
}

// wantsAfter is wants after a relief (nil: none): each part may also have what the
// owner would have by then, if it fits the part. A part of either family counts as
// such: it would be looked at anew.
func (c *Candidates) wantsAfter(nodePools []int, relief *Relief) []allocator.Want {
	wants := c.wants(nodePools)
	if relief == nil {
		return wants
	}
	for _, addr := range relief.Held {
		if home, ok := c.state.snapshot.Home(addr); !ok || !slices.Contains(nodePools, home) || !c.admitted(home) {
			continue
		}
		for i := range wants {
			switch {
			case !c.asked[i].Fits(addr):
			case len(wants[i].Held) > 0:
				wants[i].Held = append(wants[i].Held, addr)
			default:
				wants[i].Preferred = append(wants[i].Preferred, addr)
			}
		}
	}
	return wants
}

// Room is how many free addresses are within a reach for pods like this one; 0 if
// the pod must have an address that it has already.
func (c *Candidates) Room(reach *pools.Reach) int64 {
	var room uint64
	for _, position := range reach.Positions() {
		if free := c.free(position); free > 0 && c.mayServe(position) {
			room += min(free, math.MaxInt32)
		}
	}
	return int64(min(room, math.MaxInt32))
}

func (c *Candidates) mayServe(position int) bool {
	for part := range c.parts {
		if len(c.parts[part].kept) == 0 && c.serves(part, position) {
			return true
		}
	}
	return false
}

// Relieve adds to a relief what the end of a pod would give to this request. held
// are the names of FloatingIPs that the pod is said to hold; only those count
// that record it.
func (c *Candidates) Relieve(relief *Relief, podUID string, names []string) {
	for _, name := range names {
		addr, err := v1alpha1.AddrOf(name)
		if err != nil {
			continue
		}
		record, ok := c.book.Stored(addr)
		if !ok || record.PodUID != podUID || record.Reserved || record.Cooling {
			continue
		}
		ours := record.Owner.SameWorkload(c.claimant.Owner)
		home, homed := c.state.snapshot.Home(addr)
		if record.Policy != allocator.PodDeleted {
			// It stays with its owner, which may be this pod's.
			if ours && record.Owner.UID == c.claimant.Owner.UID {
				relief.Held = append(relief.Held, addr)
			}
			continue
		}
		if record.Owner.Namespace == c.request.Namespace {
			relief.Left = append(relief.Left, addr)
		}
		if homed && c.pool(home).Cooldown == 0 {
			relief.Freed = append(relief.Freed, addr)
		}
		if ours && addr.Is4() {
			relief.Owned4++
		} else if ours {
			relief.Owned6++
		}
	}
}
