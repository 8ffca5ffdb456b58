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

// inexhaustible is the smallest capacity at which a pool never has to give an address twice while
// the process lives. Such a pool needs no queue of freed addresses.
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
	// names maps positions to names, to find the pools after the next call of SetPools.
	names []string
}

// Free returns the number of free addresses of the pool at a position. It does
// not block.
func (v *View) Free(position int) uint64 { return v.free[position].Load() }

// freeSpace gives the addresses of one pool. The caller's lock guards it.
//
// Its first round gives each free address that was not freed since the start. Addresses that were
// freed since the start are in a queue (resting), in the order in which they were freed. An
// inexhaustible pool has no queue.
type freeSpace struct {
	Pool
	count [uses]int
	// published is the result of free, for readers without the lock.
	published *atomic.Uint64

	// begun says that round and next are set.
	begun bool
	// round has the ranges that the first round has not finished. next is the cursor in the first of
	// these ranges, invalid if there is none.
	round   iprange.Set
	next    netip.Addr
	resting ring
}

// begin starts the first round behind an address, or at the pool's first address if behind is
// invalid.
func (f *freeSpace) begin(behind netip.Addr) {
	f.begun, f.round = true, f.Ranges
	for i, r := range f.Ranges {
		if !r.Contains(behind) {
			continue
		}
		f.round = make(iprange.Set, 0, len(f.Ranges)+1)
		if behind != r.Last {
			f.round = append(f.round, iprange.Range{First: behind.Next(), Last: r.Last})
		}
		f.round = append(append(f.round, f.Ranges[i+1:]...), f.Ranges[:i]...)
		f.round = append(f.round, iprange.Range{First: r.First, Last: behind})
		break
	}
	f.next = first(f.round)
}

// first returns the first address of a set, invalid if it is empty.
func first(set iprange.Set) netip.Addr {
	if len(set) == 0 {
		return netip.Addr{}
	}
	return set[0].First
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
	if f.queues() {
		return netip.Addr{}, false
	}
	f.begin(netip.Addr{})
	return f.advance(in)
}

// advance returns the round's next address that is neither in use nor queued, and moves the cursor
// behind it.
func (f *freeSpace) advance(in *index) (netip.Addr, bool) {
	for f.next.IsValid() {
		last := f.round[0].Last
		addr, ok := in.free(f.next, last)
		if ok && addr != last {
			f.next = addr.Next()
		} else {
			f.round = f.round[1:]
			f.next = first(f.round)
		}
		if ok && in.entry(addr) == nil {
			return addr, true
		}
	}
	return netip.Addr{}, false
}

func (f *freeSpace) queues() bool { return f.Capacity < inexhaustible }
