// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"container/list"
	"math"
	"net/netip"
)

// Range is the addresses from First to Last, both included.
type Range struct {
	First, Last netip.Addr
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

// freeSpace hands out the addresses of one pool. The caller's lock guards it.
//
// Addresses at or behind the cursor were never handed out since the start;
// those before it are in use or in rested, in the order they were freed.
type freeSpace struct {
	Pool
	count [uses]int

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
	used := uint64(f.count[allocated] + f.count[retained] + f.count[reserved])
	if f.Disabled || used >= f.Capacity {
		return 0
	}
	if f.Capacity == Unlimited {
		return Unlimited
	}
	return f.Capacity - used
}

// take returns an address for which inUse is false.
func (f *freeSpace) take(inUse func(netip.Addr) bool) (netip.Addr, bool) {
	if f.free() == 0 {
		return netip.Addr{}, false
	}
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
