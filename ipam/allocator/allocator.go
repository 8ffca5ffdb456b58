// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"sync"
)

var (
	// ErrExhausted is returned when no pool that may serve the request has a free
	// address.
	ErrExhausted = errors.New("no free address")
	// ErrLost is returned when the API server gave a reserved address to somebody
	// else in the meantime.
	ErrLost = errors.New("the address was given to somebody else")
)

// entry is one address in use. At least one of its layers is set.
type entry struct {
	stored *Record
	// reservedBy is the UID of the pod that is being scheduled with the address.
	reservedBy string
	// gone is the last stored object that was deleted while the address was
	// reserved: its creation may be confirmed after its deletion was seen.
	gone string
}

// use is what an address is used for, as pools count it.
type use uint8

const (
	unused use = iota
	allocated
	retained
	reserved
	uses
)

func (e *entry) use() use {
	switch {
	case e.stored == nil && e.reservedBy == "":
		return unused
	case e.stored != nil && e.stored.Reserved:
		return reserved
	case e.stored != nil && e.stored.PodUID == "" && e.reservedBy == "":
		return retained
	}
	return allocated
}

// Allocator is the book. Safe for concurrent use; no method blocks but for the
// mutex.
type Allocator struct {
	mu      sync.Mutex
	pools   []*freeSpace
	byName  map[string]*freeSpace
	byRange []homedRange
	entries map[netip.Addr]*entry
	owners  map[ownerKey][]netip.Addr
}

type homedRange struct {
	Range
	pool *freeSpace
}

// New returns an empty book without pools.
func New() *Allocator {
	return &Allocator{
		byName:  map[string]*freeSpace{},
		entries: map[netip.Addr]*entry{},
		owners:  map[ownerKey][]netip.Addr{},
	}
}

// SetPools replaces the pools. Addresses in use stay in use, also those that no
// pool contains any longer.
func (a *Allocator) SetPools(pools []Pool) {
	a.mu.Lock()
	defer a.mu.Unlock()

	previous := a.byName
	a.pools = make([]*freeSpace, 0, len(pools))
	a.byName = make(map[string]*freeSpace, len(pools))
	a.byRange = a.byRange[:0]
	changed := map[*freeSpace]bool{}
	for _, pool := range pools {
		space := previous[pool.Name]
		if space == nil || !slices.Equal(space.Ranges, pool.Ranges) {
			space = newFreeSpace(pool)
			changed[space] = true
		} else {
			// The same addresses: keep the order in which they rest.
			space.Pool = pool
		}
		a.pools = append(a.pools, space)
		a.byName[pool.Name] = space
		for _, r := range pool.Ranges {
			a.byRange = append(a.byRange, homedRange{Range: r, pool: space})
		}
	}
	slices.SortFunc(a.byRange, func(x, y homedRange) int { return x.First.Compare(y.First) })
	if len(changed) == 0 {
		return
	}
	for addr, e := range a.entries {
		if home := a.home(addr); home != nil && changed[home] {
			home.count[e.use()]++
		}
	}
}

func (a *Allocator) home(addr netip.Addr) *freeSpace {
	i, _ := slices.BinarySearchFunc(a.byRange, addr, func(r homedRange, addr netip.Addr) int { return r.Last.Compare(addr) })
	if i < len(a.byRange) && !addr.Less(a.byRange[i].First) {
		return a.byRange[i].pool
	}
	return nil
}

// change applies mutate to the entry of addr, which it makes and drops as
// needed, and keeps the counts of its pool. It says whether the address came
// free.
func (a *Allocator) change(addr netip.Addr, mutate func(*entry)) (freed bool) {
	e := a.entries[addr]
	if e == nil {
		e = &entry{}
	}
	before := e.use()
	mutate(e)
	after := e.use()
	if before == after {
		return false
	}
	home := a.home(addr)
	if home != nil {
		home.count[before]--
		home.count[after]++
	}
	switch {
	case before == unused:
		a.entries[addr] = e
		if home != nil {
			home.unrest(addr)
		}
	case after == unused:
		delete(a.entries, addr)
		if home != nil {
			home.rest(addr)
		}
	}
	return after == unused
}

// store sets the stored layer of an entry; nil clears it.
func (a *Allocator) store(addr netip.Addr, e *entry, record *Record) {
	if e.stored != nil {
		key := e.stored.Owner.key()
		rest := slices.DeleteFunc(a.owners[key], func(other netip.Addr) bool { return other == addr })
		if len(rest) == 0 {
			delete(a.owners, key)
		} else {
			a.owners[key] = rest
		}
	}
	e.stored = record
	if record != nil && !record.Reserved {
		key := record.Owner.key()
		a.owners[key] = append(a.owners[key], addr)
	}
}

// Held returns the stored addresses that owner may use for the pod podUID: the
// pod's own first, then those retained, the oldest first. Addresses reserved
// for another pod are left out.
func (a *Allocator) Held(owner Owner, podUID string) []Record {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held(owner, podUID)
}

func (a *Allocator) held(owner Owner, podUID string) []Record {
	var held []Record
	for _, addr := range a.owners[owner.key()] {
		e := a.entries[addr]
		if e.reservedBy != "" && e.reservedBy != podUID {
			continue
		}
		if e.stored.heldBy(owner, podUID) {
			held = append(held, *e.stored)
		}
	}
	slices.SortFunc(held, func(x, y Record) int {
		if mine := x.PodUID == podUID; mine != (y.PodUID == podUID) {
			if mine {
				return -1
			}
			return 1
		}
		return cmp.Or(x.Created.Compare(y.Created), x.Addr.Compare(y.Addr))
	})
	return held
}

// Free returns the number of free addresses of each pool, in the order of
// SetPools.
func (a *Allocator) Free() []uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	free := make([]uint64, len(a.pools))
	for i, pool := range a.pools {
		free[i] = pool.free()
	}
	return free
}

// Counts of a pool. Allocated includes addresses reserved for pods that are
// being scheduled; Reserved are those an administrator took out.
type Counts struct {
	Capacity, Allocated, Retained, Reserved, Free uint64
}

// Counts returns the counts of a pool, zero for one it does not know.
func (a *Allocator) Counts(pool string) Counts {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.byName[pool]
	if f == nil {
		return Counts{}
	}
	return Counts{
		Capacity:  f.Capacity,
		Allocated: uint64(f.count[allocated]),
		Retained:  uint64(f.count[retained]),
		Reserved:  uint64(f.count[reserved]),
		Free:      f.free(),
	}
}

// Reserve takes addr, which Held returned for this owner and pod. It fails with
// ErrLost if it no longer is the owner's or was reserved for another pod.
func (a *Allocator) Reserve(addr netip.Addr, owner Owner, podUID string) (Record, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.entries[addr]
	if e == nil || e.stored == nil || !e.stored.heldBy(owner, podUID) ||
		(e.reservedBy != "" && e.reservedBy != podUID) {
		return Record{}, ErrLost
	}
	a.change(addr, func(e *entry) { e.reservedBy = podUID })
	return *e.stored, nil
}

// ReserveFree takes a free address for the pod podUID from one of pools: from
// the one with the most free addresses, so that scarce pools last. It fails with
// ErrExhausted if none has any.
func (a *Allocator) ReserveFree(pools []string, podUID string) (netip.Addr, string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var roomiest *freeSpace
	for _, name := range pools {
		pool := a.byName[name]
		if pool != nil && pool.free() > 0 && (roomiest == nil || pool.free() > roomiest.free()) {
			roomiest = pool
		}
	}
	if roomiest == nil {
		return netip.Addr{}, "", ErrExhausted
	}
	addr, ok := roomiest.take(func(addr netip.Addr) bool { return a.entries[addr] != nil })
	if !ok {
		return netip.Addr{}, "", ErrExhausted
	}
	a.change(addr, func(e *entry) { e.reservedBy = podUID })
	return addr, roomiest.Name, nil
}

// Release gives back what Reserve or ReserveFree took and says whether the
// address is free now. It is idempotent.
func (a *Allocator) Release(addr netip.Addr, podUID string) (freed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.entries[addr]
	if e == nil || e.reservedBy != podUID {
		return false
	}
	return a.change(addr, func(e *entry) { e.reservedBy = "" })
}

// Confirm turns the reservation of the pod podUID into what the API server now
// stores of the address. It reports whether the address came free, which it does
// where the object was deleted again before its creation was confirmed.
func (a *Allocator) Confirm(record Record, podUID string) (freed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.change(record.Addr, func(e *entry) {
		if e.reservedBy == podUID {
			e.reservedBy = ""
		}
		if e.gone != record.UID && (e.stored == nil || e.stored.Version <= record.Version) {
			a.store(record.Addr, e, &record)
		}
		e.gone = ""
	})
}

// Observe takes in what the API server stores of an address. News older than
// what the book has of it is ignored. It reports whether the address came to be
// retained: somebody may wait for it.
func (a *Allocator) Observe(record Record) (retainedNow bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.change(record.Addr, func(e *entry) {
		if e.stored != nil && record.Version < e.stored.Version {
			return
		}
		retainedNow = record.PodUID == "" && !record.Reserved && (e.stored == nil || e.stored.PodUID != "")
		a.store(record.Addr, e, &record)
	})
	return retainedNow
}

// Forget takes in that the API server deleted the object uid of an address, and
// says whether the address is free now.
func (a *Allocator) Forget(addr netip.Addr, uid string) (freed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.entries[addr]
	if e == nil || e.stored == nil || e.stored.UID != uid {
		return false
	}
	return a.change(addr, func(e *entry) {
		a.store(addr, e, nil)
		if e.reservedBy != "" {
			e.gone = uid
		}
	})
}

// PoolOf returns the name of the pool that contains addr.
func (a *Allocator) PoolOf(addr netip.Addr) (string, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if home := a.home(addr); home != nil {
		return home.Name, true
	}
	return "", false
}
