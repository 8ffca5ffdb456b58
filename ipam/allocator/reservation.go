// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/berth-dev/berth/ipam/iprange"
)

// Claimant is the pod and the owner for which Reserve takes addresses.
type Claimant struct {
	Owner  Owner
	PodUID string
	// Limited says that the owner may have at most Limit addresses of each family.
	Limited bool
	Limit   int
	// GivenUp4 and GivenUp6 are the numbers of idle addresses, by family, that do not count against
	// Limit: the owner gets other addresses in their place.
	GivenUp4, GivenUp6 int
	// FixedSet says that the owner keeps addresses for MaxPods pods. While MaxPods of its pods have
	// addresses that a policy keeps, another pod gets no free address.
	FixedSet bool
	MaxPods  int
	// SetWasFull says that the set had no room before Held listed the owner's addresses. If an address
	// became idle since, the pod does not get a free address: its next attempt takes the idle one.
	SetWasFull bool
}

// Want is one address that a pod needs: an address of its owner, or a free one.
type Want struct {
	// Held are addresses of the owner in order of preference. The pod must have one of them. If Held
	// is empty, the pod may have a free address.
	Held []netip.Addr
	// Preferred are addresses of the owner that the pod may have instead of a free one.
	Preferred []netip.Addr
	// Pools are the positions in View of the pools that may give a free address.
	Pools []int
	View  *View
	// Ranges limit the free addresses; empty: no limit.
	Ranges []iprange.Range
	// Resting are addresses in cooldown that the pod may have if no other address is left.
	Resting []netip.Addr
	// RestsFor is the UID of the namespace whose pods may have these addresses.
	RestsFor string
}

// Preemption has the changes that a preemption would make.
type Preemption struct {
	// Freed addresses would be free.
	Freed []netip.Addr
	// Held addresses would be available to the owner, for wants that list them.
	Held []netip.Addr
	// Owned4 and Owned6 are the numbers of addresses, by family, that the owner would lose.
	Owned4, Owned6 int
	// Left addresses would no longer count for the claimant's namespace, whether they become free or
	// not.
	Left []netip.Addr
	// Demand is the number of free addresses that nominated pods need before the claimant. OwnDemand
	// is the part of Demand for pods of the claimant's namespace.
	Demand, OwnDemand int
}

// Taken is a reserved address.
type Taken struct {
	Addr netip.Addr
	// Pool is the pool that contains the address; empty if none does.
	Pool string
	// Stored is the owner's record of the address; nil: it was free.
	Stored *Record
}

// UnmetError says which want could not be served.
type UnmetError struct {
	// Want is the position of the want.
	Want int
	// Reason is ErrExhausted, ErrLost, ErrLimit or ErrSetInUse.
	Reason error
}

func (e *UnmetError) Error() string { return e.Reason.Error() }
func (e *UnmetError) Unwrap() error { return e.Reason }

// Reserve takes an address for each want, all or none, and prefers pools with
// more free addresses, so that scarce ones last. It fails with an *UnmetError.
func (a *Allocator) Reserve(c Claimant, wants []Want) ([]Taken, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	chosen, err := a.choose(c, wants, nil)
	if err != nil {
		return nil, err
	}
	taken := make([]Taken, len(wants))
	// Options that name an address come first: a pool could otherwise give that address to another
	// want.
	for _, certain := range []bool{true, false} {
		for i, o := range chosen {
			if o.addr.IsValid() != certain {
				continue
			}
			if !certain {
				var ok bool
				if o.addr, ok = a.take(o.pool); !ok {
					a.giveBack(taken, c.PodUID)
					return nil, &UnmetError{Want: i, Reason: ErrExhausted}
				}
			}
			taken[i] = a.promise(o.addr, c)
		}
	}
	return taken, nil
}

func (a *Allocator) promise(addr netip.Addr, c Claimant) Taken {
	t := Taken{Addr: addr}
	if home := a.home(addr); home != nil {
		t.Pool = home.Name
	}
	if e := a.index.entry(addr); e != nil && e.stored != nil {
		record := e.record()
		t.Stored = &record
	}
	a.change(addr, func(e *entry) { e.promised = &promise{podUID: c.PodUID, ownerUID: c.Owner.UID, owner: c.Owner.key()} })
	return t
}

// giveBack undoes promise. It skips empty elements of taken.
func (a *Allocator) giveBack(taken []Taken, podUID string) {
	for _, t := range taken {
		if !t.Addr.IsValid() {
			continue
		}
		a.change(t.Addr, func(e *entry) {
			if e.promisedTo(podUID) {
				e.promised = nil
			}
		})
	}
}

// Feasible returns nil if Reserve would succeed now, or after a preemption (nil: none),
// and an *UnmetError otherwise.
func (a *Allocator) Feasible(c Claimant, wants []Want, preemption *Preemption) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, err := a.choose(c, wants, preemption)
	return err
}

// choose finds an option for each want. It changes nothing.
func (a *Allocator) choose(c Claimant, wants []Want, preemption *Preemption) ([]option, error) {
	if preemption == nil {
		preemption = &Preemption{}
	}
	b := &budget{preemption: preemption, shares: a.shares[c.Owner.Namespace]}
	options := make([][]option, len(wants))
	for i, want := range wants {
		options[i] = a.options(c, want, len(wants), b)
		if len(options[i]) == 0 {
			return nil, &UnmetError{Want: i, Reason: a.shortage(c, want)}
		}
	}
	chosen, unmet := match(options, b.room)
	if unmet < len(wants) {
		return nil, &UnmetError{Want: unmet, Reason: a.shortage(c, wants[unmet])}
	}
	return chosen, a.checkLimit(c, chosen, preemption)
}

// shortage says why there is no address for a want. A pod that may have no new address
// gets ErrSetInUse even if the pools are exhausted too.
func (a *Allocator) shortage(c Claimant, want Want) error {
	switch {
	case len(want.Held) > 0:
		return ErrLost
	case c.FixedSet && !a.setHasRoom(c):
		return ErrSetInUse
	}
	return ErrExhausted
}

// room returns how many free addresses the pool has after a preemption.
func (f *freeSpace) room(preemption *Preemption) uint64 {
	free := f.free()
	if free == Unlimited {
		return free
	}
	if !f.Disabled {
		for _, addr := range preemption.Freed {
			if f.Ranges.Contains(addr) {
				free++
			}
		}
	}
	return free - min(free, uint64(preemption.Demand))
}

// options lists how a want can be served, in order of preference. It lists at most as
// many options of a kind as the pod has wants: the other wants cannot take all of them.
func (a *Allocator) options(c Claimant, want Want, wants int, b *budget) []option {
	var options []option
	owners := func(addrs []netip.Addr) {
		for _, addr := range addrs {
			if e := a.index.entry(addr); e.inUse() && (slices.Contains(b.preemption.Held, addr) || e.usable(c.Owner, c.PodUID, a.gone)) {
				options = append(options, option{addr: addr})
			}
			if len(options) == wants {
				break
			}
		}
	}
	owners(want.Held)
	if len(want.Held) > 0 {
		return options
	}
	owners(want.Preferred)
	if len(want.Ranges) > 0 {
		options = append(options, a.within(want, wants, b)...)
	} else {
		for _, space := range a.roomiest(want, wants, b) {
			options = append(options, option{pool: space})
		}
	}
	for _, addr := range want.Resting {
		home := a.home(addr)
		if e := a.index.entry(addr); home != nil && e.inUse() && e.promised == nil && e.restsFor() == want.RestsFor && b.allowance(home) > 0 {
			options = append(options, option{addr: addr, rests: true})
		}
	}
	return options
}

// roomiest returns up to most pools, in descending order of free addresses. Among pools with equal
// numbers, earlier pools come first.
func (a *Allocator) roomiest(want Want, most int, b *budget) []*freeSpace {
	chosen := make([]*freeSpace, 0, most)
	var enough uint64 // a pool with no more free addresses than this is not chosen
	// The counts of the view are exact, so most pools need no further look.
	counted := want.View == a.view && len(b.preemption.Freed) == 0
	for _, position := range want.Pools {
		if counted && want.View.Free(position) <= enough {
			continue
		}
		space := a.space(want.View, position)
		if space == nil || b.room(space) == 0 || len(chosen) == most && space.free() <= enough {
			continue
		}
		at := len(chosen)
		for at > 0 && chosen[at-1].free() < space.free() {
			at--
		}
		chosen = slices.Insert(chosen[:min(len(chosen), most-1)], at, space)
		if len(chosen) == most {
			enough = chosen[most-1].free()
		}
	}
	return chosen
}

// space returns the current pool at a position of a view; nil if it is gone.
func (a *Allocator) space(v *View, position int) *freeSpace {
	if v == a.view {
		return a.pools[position]
	}
	return a.byName[v.names[position]]
}

// within lists up to most free addresses in a want's ranges.
func (a *Allocator) within(want Want, most int, b *budget) []option {
	var spaces []*freeSpace
	for _, position := range want.Pools {
		if space := a.space(want.View, position); space != nil && space.Ranges.Overlaps(want.Ranges) && b.room(space) > 0 {
			spaces = append(spaces, space)
		}
	}
	slices.SortStableFunc(spaces, func(x, y *freeSpace) int { return cmp.Compare(y.free(), x.free()) })
	var options []option
	for _, r := range want.Ranges {
		for _, space := range spaces {
			for _, both := range space.Ranges.Common(r) {
				for overlap := true; overlap; {
					addr, ok := a.available(both, b.preemption)
					if !ok {
						break
					}
					if options = append(options, option{addr: addr, pool: space}); len(options) == most {
						return options
					}
					both.First, overlap = addr.Next(), addr != both.Last
				}
			}
		}
	}
	return options
}

// available returns the first address of a range that is free after a preemption.
func (a *Allocator) available(r iprange.Range, preemption *Preemption) (netip.Addr, bool) {
	first, ok := a.index.free(r.First, r.Last)
	for _, freed := range preemption.Freed {
		if r.Contains(freed) && (!ok || freed.Less(first)) {
			first, ok = freed, true
		}
	}
	return first, ok
}

// checkLimit fails with ErrSetInUse or ErrLimit if the chosen options would give the
// owner more addresses than it may have.
func (a *Allocator) checkLimit(c Claimant, chosen []option, preemption *Preemption) error {
	if c.FixedSet {
		first := slices.IndexFunc(chosen, option.isNew)
		if first >= 0 && !a.setHasRoom(c) {
			return &UnmetError{Want: first, Reason: ErrSetInUse}
		}
	}
	if !c.Limited || !slices.ContainsFunc(chosen, option.isNew) {
		return nil
	}
	v4, v6 := a.owned(c.Owner)
	v4, v6 = v4-preemption.Owned4-c.GivenUp4, v6-preemption.Owned6-c.GivenUp6
	for i, o := range chosen {
		if !o.isNew() {
			continue
		}
		owned := &v6
		if o.pool != nil && o.pool.is4() || o.pool == nil && o.addr.Is4() {
			owned = &v4
		}
		if *owned++; *owned > c.Limit {
			return &UnmetError{Want: i, Reason: ErrLimit}
		}
	}
	return nil
}

// SetHasRoom says whether the claimant may have a free address: its owner has no fixed
// set, or fewer than MaxPods other pods have addresses of it.
func (a *Allocator) SetHasRoom(c Claimant) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !c.FixedSet || a.setHasRoom(c)
}

// podUID returns the pod that has the address, or to which it is promised.
func (e *entry) podUID() string {
	switch {
	case e.promised != nil:
		return e.promised.podUID
	case e.stored != nil:
		return e.stored.podUID
	}
	return ""
}

func (f *freeSpace) is4() bool { return first(f.Ranges).Is4() }
