// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"container/list"
	"math"
	"net/netip"
	"sync/atomic"
)

// Range is the addresses from First to Last, both included.
type Range struct {
	First, Last netip.Addr
}

func (r Range) contains(addr netip.Addr) bool {
	return !addr.Less(r.First) && !r.Last.Less(addr)
}

// Unlimited is the capacity and free count of a pool whose size does not fit 64
// bits.
const Unlimited = math.MaxUint64

// Pool is what the allocator needs to know of a pool.
type Pool struct {
	Name string
	// Ranges are ascending and disjoint; no address is in two pools.
	Ranges   []Range
	Capacity uint64
	// Disabled pools give no new addresses.
	Disabled bool
}

// View reads free counts without a lock, by the position of a pool in one call of
// [Allocator.SetPools]. It stays valid, but not up to date, after the next.
type View struct {
	spaces []*freeSpace
}

// Free returns the number of free addresses of the pool at a position. It does
// not block.
func (v *View) Free(position int) uint64 { return v.spaces[position].published.Load() }

// freeSpace hands out the addresses of one pool. The caller's lock guards it.
//
// Addresses at or behind the cursor were never handed out since the start;
// those before it are in use or in rested, in the order they were freed.
type freeSpace struct {
	Pool
	count [uses]int
	// published is what free returns, for readers without the lock.
	published atomic.Uint64

	rangeIndex int
	next       netip.Addr // invalid: the cursor is past the last range
	rested     *list.List // of netip.Addr
	inRested   map[netip.Addr]*list.Element
}

func newFreeSpace(pool Pool) *freeSpace {
	f := &freeSpace{Pool: pool, rested: list.New(), inRested: map[netip.Addr]*list.Element{}}
	if len(pool.Ranges) > 0 {
		f.next = pool.Ranges[0].First
	}
	return f
}

// free is the number of addresses a new pod could get.
func (f *freeSpace) free() uint64 {
	used := uint64(f.count[allocated] + f.count[retained] + f.count[reserved] + f.count[cooling])
	if f.Disabled || used >= f.Capacity {
		return 0
	}
	if f.Capacity == Unlimited {
		return Unlimited
	}
	return f.Capacity - used
}

func (f *freeSpace) publish() { f.published.Store(f.free()) }

// take returns an address for which inUse is false.
func (f *freeSpace) take(inUse func(netip.Addr) bool) (netip.Addr, bool) {
	for f.next.IsValid() {
		addr := f.next
		f.advance()
		if !inUse(addr) {
			return addr, true
		}
	}
	if oldest := f.rested.Front(); oldest != nil {
		addr := oldest.Value.(netip.Addr)
		f.unrest(addr)
		return addr, true
	}
	return netip.Addr{}, false
}

func (f *freeSpace) advance() {
	if f.next != f.Ranges[f.rangeIndex].Last {
		f.next = f.next.Next()
		return
	}
	f.rangeIndex++
	f.next = netip.Addr{}
	if f.rangeIndex < len(f.Ranges) {
		f.next = f.Ranges[f.rangeIndex].First
	}
}

// rest puts a freed address at the end of the queue, unless the cursor has yet
// to come to it.
func (f *freeSpace) rest(addr netip.Addr) {
	if f.next.IsValid() && !addr.Less(f.next) {
		return
	}
	if f.inRested[addr] == nil {
		f.inRested[addr] = f.rested.PushBack(addr)
	}
}

// unrest takes an address that came into use out of the queue.
func (f *freeSpace) unrest(addr netip.Addr) {
	if element := f.inRested[addr]; element != nil {
		f.rested.Remove(element)
		delete(f.inRested, addr)
	}
}

// within yields addresses of the pool that lie in a range, ascending.
func (f *freeSpace) within(r Range, yield func(netip.Addr) bool) {
	for _, own := range f.Ranges {
		if own.Last.Less(r.First) || r.Last.Less(own.First) {
			continue
		}
		addr, last := own.First, own.Last
		if addr.Less(r.First) {
			addr = r.First
		}
		if r.Last.Less(last) {
			last = r.Last
		}
		for ; ; addr = addr.Next() {
			if !yield(addr) {
				return
			}
			if addr == last {
				break
			}
		}
	}
}
