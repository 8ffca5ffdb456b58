// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"math"
	"net/netip"
	"sync/atomic"

	"github.com/berth-dev/berth/ipam/iprange"
)

// Unlimited is the capacity and free count of a pool whose size does not fit 64
// bits.
const Unlimited = math.MaxUint64

// inexhaustible is the least capacity at which a pool never has to give an address a
// second time while the process lives: it needs no queue of freed addresses.
const inexhaustible = 1 << 33

// Pool is a pool in the allocator's terms.
type Pool struct {
	Name string
	// Ranges do not overlap with another pool's ranges.
	Ranges   iprange.Set
	Capacity uint64
	// Disabled pools give no new addresses.
	Disabled bool
	// MaxPerNamespace caps the addresses that the owners of one namespace may have;
	// 0: there is no cap.
	MaxPerNamespace uint64
}

// View reads free counts without a lock, by the position of a pool in one call of
// [Allocator.SetPools]. After the next call it stays valid, but is out of date. Safe for
// concurrent use.
type View struct {
	// free are the counts, in one array: every pod reads the counts of all pools.
	free []atomic.Uint64
	// names map positions to pools after the book got other pools.
	names []string
}

// Free returns the number of free addresses of the pool at a position. It does
// not block.
func (v *View) Free(position int) uint64 { return v.free[position].Load() }

// freeSpace gives the addresses of one pool. The caller's lock guards it.
//
// The pool has given no address from the cursor (next) on since the start. Addresses
// before it are in use or in the queue (resting), in the order in which they were freed.
// An inexhaustible pool has no queue.
type freeSpace struct {
	Pool
	count [uses]int
	// published has the result of free, for readers without the lock.
	published *atomic.Uint64

	rangeIndex int
	next       netip.Addr // invalid: the cursor is past the last range
	resting    ring
}

func newFreeSpace(pool Pool) *freeSpace {
	f := &freeSpace{Pool: pool}
	f.rewind()
	return f
}

// rewind sets the cursor to the first address.
func (f *freeSpace) rewind() {
	f.rangeIndex, f.next = 0, f.first()
}

// first returns the first address of the pool, invalid if it has none.
func (f *freeSpace) first() netip.Addr {
	if len(f.Ranges) == 0 {
		return netip.Addr{}
	}
	return f.Ranges[0].First
}

// free returns how many addresses new pods could get.
func (f *freeSpace) free() uint64 {
	switch {
	case f.Disabled:
		return 0
	case f.Capacity == Unlimited:
		return Unlimited
	}
	used := uint64(f.count[allocated] + f.count[retained] + f.count[reserved] + f.count[cooling])
	return f.Capacity - min(f.Capacity, used)
}

func (f *freeSpace) publish() { f.published.Store(f.free()) }

// take returns an address that is not in use. The caller must mark it as in use.
func (f *freeSpace) take(in *index) (netip.Addr, bool) {
	if addr, ok := f.advance(in); ok {
		return addr, true
	}
	if oldest := f.resting.first; oldest != nil {
		return oldest.addr, true
	}
	if f.Capacity < inexhaustible {
		return netip.Addr{}, false
	}
	f.rewind()
	return f.advance(in)
}

// advance returns the next address that is not in use and moves the cursor behind it.
func (f *freeSpace) advance(in *index) (netip.Addr, bool) {
	for f.next.IsValid() {
		last := f.Ranges[f.rangeIndex].Last
		addr, ok := in.free(f.next, last)
		if ok && addr != last {
			f.next = addr.Next()
			return addr, true
		}
		f.rangeIndex++
		f.next = netip.Addr{}
		if f.rangeIndex < len(f.Ranges) {
			f.next = f.Ranges[f.rangeIndex].First
		}
		if ok {
			return addr, true
		}
	}
	return netip.Addr{}, false
}

// rests says whether a freed address goes into the queue: the cursor is past it.
func (f *freeSpace) rests(addr netip.Addr) bool {
	return f.Capacity < inexhaustible && (!f.next.IsValid() || addr.Less(f.next))
}
