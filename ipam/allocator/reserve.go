// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"cmp"
	"net/netip"
	"slices"
)

// Claimant is for whom addresses are reserved.
type Claimant struct {
	Owner  Owner
	PodUID string
	// Limited owners may have Limit addresses of each family.
	Limited bool
	Limit   int
}

// Want is one address that a pod needs: one of its owner's, or a free one.
type Want struct {
	// Held are addresses of the owner, any of which will do, the most fitting
	// first. None: a free address is wanted.
	Held []netip.Addr
	// Preferred are addresses of the owner that will do as well as a free one.
	Preferred []netip.Addr
	// Pools that may give a free address, by name.
	Pools []string
	// Ranges limit the free addresses; none: any.
	Ranges []Range
}

// Relief is what would be different after a preemption.
type Relief struct {
	// Freed addresses would be free.
	Freed []netip.Addr
	// Held addresses would be the owner's to use, for wants of free ones too.
	Held []netip.Addr
	// Owned is by how much the owner would have fewer addresses of each family.
	Owned4, Owned6 int
	// Demand is how many free addresses pods with precedence need.
	Demand int
}

// Taken is a reserved address.
type Taken struct {
	Addr netip.Addr
	// Pool that contains the address; empty where none does.
	Pool string
	// Stored is the owner's record of the address; nil: it was free.
	Stored *Record
}

// UnmetError says which want could not be served.
type UnmetError struct {
	// Want is its position.
	Want int
	// Reason is ErrExhausted, ErrLost or ErrLimit.
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
	picked := map[netip.Addr]bool{}
	for _, o := range chosen {
		if o.addr.IsValid() {
			picked[o.addr] = true
		}
	}
	taken := make([]Taken, 0, len(wants))
	for i, o := range chosen {
		t := Taken{Addr: o.addr}
		if !t.Addr.IsValid() {
			var ok bool
			if t.Addr, ok = o.pool.take(func(addr netip.Addr) bool { return a.entries[addr] != nil || picked[addr] }); !ok {
				a.giveBack(taken, c.PodUID)
				return nil, &UnmetError{Want: i, Reason: ErrExhausted}
			}
		}
		if home := a.home(t.Addr); home != nil {
			t.Pool = home.Name
		}
		if e := a.entries[t.Addr]; e != nil && e.stored != nil {
			stored := *e.stored
			t.Stored = &stored
		}
		a.change(t.Addr, func(e *entry) { e.promised = &promise{podUID: c.PodUID, owner: c.Owner.key()} })
		taken = append(taken, t)
	}
	return taken, nil
}

func (a *Allocator) giveBack(taken []Taken, podUID string) {
	for _, t := range taken {
		a.change(t.Addr, func(e *entry) {
			if e.promisedTo(podUID) {
				e.promised = nil
			}
		})
	}
}

// Feasible says whether Reserve would succeed now, or after a relief (nil:
// none): nil or an *UnmetError.
func (a *Allocator) Feasible(c Claimant, wants []Want, relief *Relief) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, err := a.choose(c, wants, relief)
	return err
}

// choose finds an option for each want. It changes nothing.
func (a *Allocator) choose(c Claimant, wants []Want, relief *Relief) ([]option, error) {
	if relief == nil {
		relief = &Relief{}
	}
	options := make([][]option, len(wants))
	for i, want := range wants {
		options[i] = a.options(c, want, len(wants), relief)
		if len(options[i]) == 0 {
			reason := ErrExhausted
			if len(want.Held) > 0 {
				reason = ErrLost
			}
			return nil, &UnmetError{Want: i, Reason: reason}
		}
	}
	chosen, unmet := match(options, func(f *freeSpace) uint64 { return f.room(relief) })
	if unmet < len(wants) {
		reason := ErrExhausted
		if len(wants[unmet].Held) > 0 {
			reason = ErrLost
		}
		return nil, &UnmetError{Want: unmet, Reason: reason}
	}
	return chosen, a.checkLimit(c, wants, chosen, relief)
}

// room is how many addresses the pool can give after a relief.
func (f *freeSpace) room(relief *Relief) uint64 {
	free := f.free()
	if free == Unlimited {
		return free
	}
	if !f.Disabled {
		for _, addr := range relief.Freed {
			if f.has(addr) {
				free++
			}
		}
	}
	return free - min(free, uint64(relief.Demand))
}

func (f *freeSpace) has(addr netip.Addr) bool {
	return slices.ContainsFunc(f.Ranges, func(r Range) bool { return r.contains(addr) })
}

// options lists how a want can be served, most fitting first. No more than one
// for each want of the pod is needed of a kind: where that many are, the others
// cannot have taken all.
func (a *Allocator) options(c Claimant, want Want, wants int, relief *Relief) []option {
	var options []option
	owners := func(addrs []netip.Addr, promised bool) {
		found := 0
		for _, addr := range addrs {
			if e := a.entries[addr]; e != nil && (promised || e.usable(c.Owner, c.PodUID, a.vacated)) {
				options = append(options, option{addr: addr})
				found++
			}
			if found == wants {
				break
			}
		}
	}
	owners(want.Held, false)
	owners(relief.Held, true)
	if len(want.Held) > 0 {
		return options
	}
	owners(want.Preferred, false)
	var spaces []*freeSpace
	for _, name := range want.Pools {
		if space := a.byName[name]; space != nil && space.room(relief) > 0 {
			spaces = append(spaces, space)
		}
	}
	slices.SortStableFunc(spaces, func(x, y *freeSpace) int { return cmp.Compare(y.free(), x.free()) })
	if len(want.Ranges) > 0 {
		return append(options, a.within(spaces, want.Ranges, wants, relief)...)
	}
	for _, space := range spaces[:min(len(spaces), wants)] {
		options = append(options, option{pool: space})
	}
	return options
}

// within lists free addresses of ranges, no more than most.
func (a *Allocator) within(spaces []*freeSpace, ranges []Range, most int, relief *Relief) []option {
	var options []option
	for _, r := range ranges {
		for _, space := range spaces {
			space.within(r, func(addr netip.Addr) bool {
				if a.entries[addr] == nil || slices.Contains(relief.Freed, addr) {
					options = append(options, option{addr: addr, pool: space})
				}
				return len(options) < most
			})
			if len(options) >= most {
				return options
			}
		}
	}
	return options
}

// checkLimit fails with ErrLimit if the chosen options would give the owner more
// addresses than it may have.
func (a *Allocator) checkLimit(c Claimant, wants []Want, chosen []option, relief *Relief) error {
	if !c.Limited {
		return nil
	}
	v4, v6 := a.owned(c.Owner)
	v4, v6 = v4-relief.Owned4, v6-relief.Owned6
	for i, o := range chosen {
		if o.pool == nil {
			continue
		}
		owned := &v6
		if o.pool.is4() {
			owned = &v4
		}
		if *owned++; *owned > c.Limit {
			return &UnmetError{Want: i, Reason: ErrLimit}
		}
	}
	return nil
}

func (f *freeSpace) is4() bool { return len(f.Ranges) > 0 && f.Ranges[0].First.Is4() }
