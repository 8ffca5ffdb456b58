// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/lastnode"
	"github.com/berth-dev/berth/ipam/pools"
)

// Candidates has the addresses that can serve a request at one moment: addresses that its owner
// already has, and the pools that it may use. Safe for concurrent use.
type Candidates struct {
	request Request
	// workload is the pod's workload, even if an IPClaim owns the addresses.
	workload Owner
	claimant allocator.Claimant
	state    *state
	book     *allocator.Allocator
	parts    []candidate
	// kept are the kept addresses of all parts, each once.
	kept []netip.Addr
	// givenUp are idle addresses of the owner in pools that the request does not name. The address
	// that a pod of this name had last comes first.
	givenUp []allocator.Record
	// asked are the request's parts before defaultFamily chose families.
	asked []Part
	known *atomic.Pointer[KnownPods]
	// plain says that the pod wants one free address of any pool: the free counts are enough for an
	// answer.
	plain bool
	// resting are addresses in cooldown for the pods of the namespace. This pod may have them if no
	// other address is left.
	resting []allocator.Record
	// shares count the addresses of the pod's namespace in pools with a cap.
	shares map[string]allocator.Share
	// answers caches rejections: *pools.Reach → *Rejection, nil if the reach can serve.
	answers sync.Map
	// setInUse is the text of a full set, which is the same for all reaches.
	setInUse struct {
		once sync.Once
		text string
	}
}

// candidate has the addresses that can serve one part.
type candidate struct {
	// kept are addresses that the owner had before this attempt. The part must have one of them. If
	// kept is empty, the part gets a free address.
	kept []allocator.Record
	// usable lists, by pool, the positions in kept of the addresses that the part may have, ascending.
	usable map[int][]int
	// stale are addresses that earlier attempts to schedule the pod took, in
	// this process or in another scheduler. The pod may run with another address.
	stale []allocator.Record
}

// Rejection says why a node cannot have the pod.
type Rejection struct {
	// Reason is a text for the user. It is the same for nodes with the same pools.
	Reason string
	// Unresolvable says that preemption would not help.
	Unresolvable bool
	// Lacks has the changes that would let the pod run there.
	Lacks Lack
}

// Reasons of rejections that do not depend on free addresses.
const (
	ReasonNode     = "node(s) in no IPPool that the pod may use"
	ReasonKeptNode = "node(s) where the pod's retained floating IP is not reachable"
	// ReasonNodeCap is the reason of nodes that limit their addresses: see
	// [podrequest.Reader.WithinNode].
	ReasonNodeCap = "node(s) that advertise " + v1alpha1.ResourceIP + " and have no more of it"
	// ReasonNoSession is the beginning of the reason of nodes that pools serve only with an
	// established BGP session.
	ReasonNoSession = "node(s) without an established BGP session, which IPPool "
	// ReasonNoAgent is the reason of nodes where another CNI plugin would give the pod its address.
	ReasonNoAgent = "node(s) where no Berth agent is ready"
)

// NoAgentOn is ReasonNoAgent for one node.
func NoAgentOn(node string) string { return node + ": no Berth agent is ready" }

// Candidates returns the addresses that can serve a request now. It fails with ErrNotSynced, or
// with a *ShortageError if no address can, even if more become free. It does not block.
func (i *IPAM) Candidates(request Request) (*Candidates, error) {
	state := i.state.Load()
	if state == nil {
		return nil, ErrNotSynced
	}
	workload := request.Owner
	if request.TwinOf != "" {
		return i.twinCandidates(request, state)
	}
	if request.Claim != "" {
		var err error
		if request, err = i.claimed(request); err != nil {
			return nil, err
		}
	}
	c := &Candidates{request: request, workload: workload, claimant: claimantOf(&request), state: state, book: i.book, known: &i.known}
	if err := i.look(c); err != nil {
		return nil, err
	}
	return c, nil
}

func claimantOf(r *Request) allocator.Claimant {
	c := allocator.Claimant{Owner: r.Owner, PodUID: r.UID}
	switch {
	case r.Claim != "":
		c.Limited, c.Limit = true, r.MaxAddresses
	case r.FixedSet:
		c.FixedSet, c.MaxPods = true, r.MaxPods
	}
	return c
}

// look fills in the candidates from the book and the pools.
func (i *IPAM) look(c *Candidates) error {
	// This comes before Held, because a pod may end at any moment.
	c.claimant.SetWasFull = !i.book.SetHasRoom(c.claimant)
	held := c.held()
	c.limitWithoutGivenUp()
	c.shareFamily(held)
	c.asked = c.request.Parts
	c.assign(held)
	c.defaultFamily()
	if err := c.check(); err != nil {
		return err
	}
	c.resting = c.restingNow(time.Now())
	if c.state.capped {
		c.shares = i.book.Shares(c.request.Namespace)
	}
	c.plain = len(held) == 0 && len(c.parts) == 1 && c.request.Parts[0].Ranges.IsEmpty() && !c.claimant.Limited && !c.claimant.SetWasFull
	return nil
}

// restingNow returns the addresses whose pool cooldown is over and that are in cooldown for their
// last nodes only. Pods of the namespace may have them, because the agent of the next node also
// asks the last node.
func (c *Candidates) restingNow(now time.Time) []allocator.Record {
	if c.request.isAhead() {
		return nil
	}
	return slices.DeleteFunc(c.book.Resting(string(c.request.namespaceUID())), func(record allocator.Record) bool {
		pool := c.poolOf(&record)
		return pool == nil || !lastnode.IsRested(record.ReleasedAt, pool.Cooldown, now)
	})
}

func (c *Candidates) terminating(record *allocator.Record) bool {
	return c.known != nil && recordedPods{c.known}.ask(record, KnownPods.IsTerminating)
}

// Snapshot returns the pools to which positions refer.
func (c *Candidates) Snapshot() *pools.Snapshot { return c.state.snapshot }

// Rejects says why a node with this reach cannot have the pod; nil if it can. It is fast for a pod
// that wants one address of any pool. For other pods it caches its answers.
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

// FitAll says whether all of these reaches can serve the pod, even after the pods of a demand on
// the same snapshot took their addresses. False may also mean that the answer is unknown.
func (c *Candidates) FitAll(reaches []*pools.Reach, others *Demand) bool {
	if !c.plain {
		return false
	}
	for _, reach := range reaches {
		if c.Room(reach) <= c.competing(reach, others) {
			return false
		}
	}
	return true
}

// competing returns how many addresses of the reach, among those that Room counts, other pods may
// take.
func (c *Candidates) competing(reach *pools.Reach, others *Demand) int64 {
	if others == nil {
		return 0
	}
	n := 0
	for _, position := range reach.Positions() {
		if others.of[position] > 0 && c.free(position) > 0 && c.mayServe(position) {
			n += others.of[position]
		}
	}
	return int64(min(n, others.all)) // A pod that may take addresses of several pools counts once.
}

// free returns how many addresses a pool can give to pods of the namespace.
func (c *Candidates) free(position int) uint64 {
	free := c.state.view.Free(position)
	if free == 0 || !c.state.capped {
		return free
	}
	return min(free, allowance(c.pool(position), c.shares[c.pool(position).Name]))
}

// allowance returns how many more addresses a namespace may have of a pool.
func allowance(pool *pools.Pool, has allocator.Share) uint64 {
	if pool.MaxPerNamespace == 0 {
		return math.MaxUint64
	}
	return pool.MaxPerNamespace - min(pool.MaxPerNamespace, has.Total())
}

func (c *Candidates) pool(position int) *pools.Pool { return c.state.snapshot.Pools()[position] }

// poolOf returns the pool that contains the address of a record, nil if none does.
func (c *Candidates) poolOf(record *allocator.Record) *pools.Pool {
	return c.state.snapshot.PoolOf(record.Addr)
}

func (c *Candidates) rejection(nodePools []int, preemption *Preemption) *Rejection {
	for part := range c.parts {
		if !c.isWithin(part, nodePools) {
			return c.unreachable(part)
		}
	}
	if c.request.TwinOf != "" {
		return nil
	}
	err := c.book.Feasible(c.claimant, c.wantsAfter(nodePools, preemption), preemption)
	if err == nil {
		return nil
	}
	return &Rejection{
		Reason: "node(s) without an address for the pod: " + c.explain(err, nodePools),
		Lacks:  lackOf(err),
		// Preemption must not end one pod of the workload for another: that is up to
		// the workload's controller.
		Unresolvable: errors.Is(err, allocator.ErrSetInUse),
	}
}

// check says why no node can have the pod, even if addresses become free; nil if some node may have
// it.
func (c *Candidates) check() error {
	for part := range c.parts {
		if !c.isWithin(part, c.state.everywhere.Positions()) {
			return c.impossible()
		}
	}
	return nil
}

// KeptWithin says whether the reach has a kept address for each part that must have one.
func (c *Candidates) KeptWithin(reach *pools.Reach) bool {
	for part := range c.parts {
		if len(c.parts[part].kept) > 0 && !c.isWithin(part, reach.Positions()) {
			return false
		}
	}
	return true
}

// isWithin says whether a pool at these positions has a kept address of the part, or
// may give it a free one.
func (c *Candidates) isWithin(part int, positions []int) bool {
	if p := &c.parts[part]; len(p.kept) > 0 {
		return slices.ContainsFunc(positions, func(position int) bool { return len(p.usable[position]) > 0 })
	}
	return slices.ContainsFunc(positions, func(position int) bool { return c.serves(part, position) })
}

// unreachable returns the rejection of a node whose pools cannot serve a part.
func (c *Candidates) unreachable(part int) *Rejection {
	if len(c.parts[part].kept) > 0 {
		return &Rejection{Reason: ReasonKeptNode, Unresolvable: true, Lacks: LackOwner}
	}
	return &Rejection{Reason: c.describePart(part, ReasonNode), Unresolvable: true}
}

// OnlyPool returns the name of the pool that all of the pod's addresses must come from; empty if
// several pools can serve it, or none.
func (c *Candidates) OnlyPool() string {
	only := -1
	for part := range c.parts {
		positions := c.state.everywhere.Positions()
		if kept := c.parts[part].kept; len(kept) > 0 {
			home, ok := c.state.snapshot.Home(kept[0].Addr)
			if !ok {
				return ""
			}
			positions = []int{home}
		}
		for _, position := range positions {
			if len(c.parts[part].kept) == 0 && !c.serves(part, position) || position == only {
				continue
			}
			if only >= 0 {
				return ""
			}
			only = position
		}
	}
	if only < 0 {
		return ""
	}
	return c.pool(only).Name
}

// serves says whether the part may have a free address of a pool.
func (c *Candidates) serves(part, position int) bool {
	pool := c.pool(position)
	return c.request.mayUse(pool) && fitsPool(&c.request.Parts[part], pool)
}

// homedIn returns the addresses in the pools at these positions that the request may
// have.
func (c *Candidates) homedIn(records []allocator.Record, nodePools []int) []netip.Addr {
	var addrs []netip.Addr
	for i := range records {
		if c.isHomedIn(&records[i], nodePools) {
			addrs = append(addrs, records[i].Addr)
		}
	}
	return addrs
}

func (c *Candidates) isHomedIn(record *allocator.Record, nodePools []int) bool {
	home, ok := c.state.snapshot.Home(record.Addr)
	return ok && slices.Contains(nodePools, home) && c.request.mayUseKept(record, c.pool(home))
}

// wants returns the wants for the book on a node with these pools.
func (c *Candidates) wants(nodePools []int) []allocator.Want {
	wants := make([]allocator.Want, len(c.parts))
	for i := range c.parts {
		part := &c.parts[i]
		if len(part.kept) > 0 {
			wants[i].Held = part.keptIn(nodePools)
			continue
		}
		wants[i].Preferred = c.homedIn(part.stale, nodePools)
		wants[i].View = c.state.view
		for _, position := range nodePools {
			if c.serves(i, position) {
				wants[i].Pools = append(wants[i].Pools, position)
			}
		}
		wants[i].Ranges = c.request.Parts[i].Ranges.Ranges()
		wants[i].RestsFor = string(c.request.namespaceUID())
		for at := range c.resting {
			addr := c.resting[at].Addr
			if home, ok := c.state.snapshot.Home(addr); ok && slices.Contains(wants[i].Pools, home) && !c.pool(home).Disabled && c.request.Parts[i].Fits(addr) {
				wants[i].Resting = append(wants[i].Resting, addr)
			}
		}
	}
	return wants
}

// Room returns how many free addresses a reach has for pods like this one; 0 if
// the pod must have addresses that its owner has already.
func (c *Candidates) Room(reach *pools.Reach) int64 {
	var room uint64
	for _, position := range reach.Positions() {
		if free := c.free(position); free > 0 && c.mayServe(position) {
			room += min(free, math.MaxInt32)
		}
	}
	return int64(min(room, math.MaxInt32))
}

// HasRouted returns whether routers may lead an address of the pod to its node: a kept address, or
// an address of a pool that the pod may use.
func (c *Candidates) HasRouted() bool {
	for position, pool := range c.state.snapshot.Pools() {
		if pool.Routed && c.isOf(position) {
			return true
		}
	}
	return false
}

// isOf says whether the pod may get an address of the pool, or has a kept address there.
func (c *Candidates) isOf(position int) bool {
	return c.mayServe(position) || slices.ContainsFunc(c.parts, func(p candidate) bool { return len(p.usable[position]) > 0 })
}

// WithoutSession returns the rejection of a node that lacks an established BGP session. reach is
// the reach that the node has with a session. The result is nil if a session would not help: no
// pool of the reach that requires a session can serve the pod.
func (c *Candidates) WithoutSession(reach *pools.Reach) *Rejection {
	var names []string
	for _, position := range reach.Positions() {
		if pool := c.pool(position); pool.RequireSession && c.isOf(position) {
			names = append(names, pool.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return &Rejection{Reason: ReasonNoSession + strings.Join(names, ", ") + " requires", Unresolvable: true, Lacks: LackAgent}
}

func (c *Candidates) mayServe(position int) bool {
	for part := range c.parts {
		if len(c.parts[part].kept) == 0 && c.serves(part, position) {
			return true
		}
	}
	return false
}
