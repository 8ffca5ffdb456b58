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

// inexhaustible is the capacity from which on a pool needs no addresses a second
// time as long as the process lives: its freed ones need not be remembered.
const inexhaustible = 1 << 33

// Pool is what the allocator needs to know of a pool.
type Pool struct {
	Name string
	// Ranges have no address that another pool has.
	Ranges   iprange.Set
	Capacity uint64
	// Disabled pools give no new addresses.
	Disabled bool
	// MaxPerNamespace is how many addresses the owners of one namespace may have
	// before the pool gives them no more; 0: there is no cap.
	MaxPerNamespace uint64
}

// View reads free counts without a lock, by the position of a pool in one call of
// [Allocator.SetPools]. It stays valid, but not up to date, after the next.
type View struct {
	// free counts lie side by side: those of all pools are read for every pod.
	free []atomic.Uint64
	// names tell a book that has other pools by now what is meant.
	names []string
}

// Free returns the number of free addresses of the pool at a position. It does
// not block.
func (v *View) Free(position int) uint64 { return v.free[position].Load() }

// freeSpace hands out the addresses of one pool. The caller's lock guards it.
//
// Addresses at or behind the cursor were never handed out since the start;
// those before it are in use or rest, in the order they were freed. In a pool that
// is inexhaustible none rest.
type freeSpace struct {
	Pool
	count [uses]int
	// published is what free returns, for readers without the lock.
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

// first is the first address of the pool, invalid where it has none.
func (f *freeSpace) first() netip.Addr {
	if len(f.Ranges) == 0 {
		return netip.Addr{}
	}
	return f.Ranges[0].First
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

// take returns an address that is not in use. The caller takes it into use.
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

// advance moves the cursor over the next address that is not in use.
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

// rests says whether an address that is freed has to wait for its turn in the
// queue: the cursor is past it.
func (f *freeSpace) rests(addr netip.Addr) bool {
	return f.Capacity < inexhaustible && (!f.next.IsValid() || addr.Less(f.next))
}
