// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"encoding/binary"
	"iter"
	"math"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/berth-dev/berth/ipam/iprange"
)

// index finds entries by address, and the next address that is not in use, without
// a walk over those that are. It takes memory for what it lists only, so that it
// does not matter how large a pool is. The zero value is empty.
//
// It is a bitmap of the address space of which only words that are not empty
// exist, with summaries: a word of a summary says of 64 words of the level below
// which are full. IPv4 addresses have the place of the IPv6 address they map to,
// which therefore must not be in a pool.
type index struct {
	pages map[place]page
	full  []map[place]uint64
}

// page is 64 addresses that follow each other.
type page struct {
	used   uint64 // addresses in use
	listed uint64 // addresses with an entry: those in use, and those that rest
	// entries of those listed, in order.
	entries []*entry
}

func (p page) rank(bit uint) int { return bits.OnesCount64(p.listed & (1<<bit - 1)) }

// place is an address as a number, or that number shifted right by 6 bits for
// each level above.
type place struct{ hi, lo uint64 }

func placeOf(addr netip.Addr) place {
	b := addr.As16()
	return place{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// addr is the inverse of placeOf, for an address of the family of like.
func (p place) addr(like netip.Addr) netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], p.hi)
	binary.BigEndian.PutUint64(b[8:], p.lo)
	if like.Is4() {
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return netip.AddrFrom16(b)
}

// split returns the word that the place is in, and its bit.
func (p place) split() (word place, bit uint) {
	return place{p.hi >> 6, p.hi<<58 | p.lo>>6}, uint(p.lo & 63)
}

// join is the inverse of split.
func (p place) join(bit uint) place { return place{p.hi<<6 | p.lo>>58, p.lo<<6 | uint64(bit)} }

func (p place) next() place {
	p.lo++
	if p.lo == 0 {
		p.hi++
	}
	return p
}

func (p place) less(other place) bool {
	return p.hi < other.hi || p.hi == other.hi && p.lo < other.lo
}

// entry returns the entry of an address, nil if it has none.
func (x *index) entry(addr netip.Addr) *entry {
	word, bit := placeOf(addr).split()
	p := x.pages[word]
	if p.listed>>bit&1 == 0 {
		return nil
	}
	return p.entries[p.rank(bit)]
}

// occupy lists an entry, unless it is listed, and marks its address as in use.
func (x *index) occupy(e *entry) {
	word, bit := placeOf(e.addr).split()
	p := x.pages[word]
	if p.listed>>bit&1 == 0 {
		p.entries = slices.Insert(p.entries, p.rank(bit), e)
		p.listed |= 1 << bit
	}
	p.used |= 1 << bit
	if x.pages == nil {
		x.pages = map[place]page{}
	}
	x.pages[word] = p
	for level, isFull := 0, p.used == ^uint64(0); isFull; level++ {
		word, bit = word.split()
		if level == len(x.full) {
			x.full = append(x.full, map[place]uint64{})
		}
		x.full[level][word] |= 1 << bit
		isFull = x.full[level][word] == ^uint64(0)
	}
}

// vacate marks the address of a listed entry as not in use, and lists it on if it
// rests.
func (x *index) vacate(e *entry, rests bool) {
	word, bit := placeOf(e.addr).split()
	p := x.pages[word]
	wasFull := p.used == ^uint64(0)
	p.used &^= 1 << bit
	if !rests {
		p.entries = slices.Delete(p.entries, p.rank(bit), p.rank(bit)+1)
		p.listed &^= 1 << bit
	}
	if p.listed == 0 {
		delete(x.pages, word)
	} else {
		x.pages[word] = p
	}
	for level := 0; wasFull; level++ {
		word, bit = word.split()
		before := x.full[level][word]
		wasFull = before == ^uint64(0)
		if before == 1<<bit {
			delete(x.full[level], word)
		} else {
			x.full[level][word] = before &^ (1 << bit)
		}
	}
}

// word returns which places of a word are full: in use, at level 0.
func (x *index) word(level int, at place) uint64 {
	switch {
	case level == 0:
		return x.pages[at].used
	case level <= len(x.full):
		return x.full[level-1][at]
	}
	return 0
}

// free returns the first address from first to last that is not in use.
func (x *index) free(first, last netip.Addr) (netip.Addr, bool) {
	from, level := placeOf(first), 0
	at := from
	for { // up, over what is full
		word, bit := at.split()
		if left := ^x.word(level, word) >> bit; left != 0 {
			at = word.join(bit + uint(bits.TrailingZeros64(left)))
			break
		}
		at = word.next()
		level++
	}
	for ; level > 0; level-- { // down, to the first that is not
		at = at.join(uint(bits.TrailingZeros64(^x.word(level-1, at))))
	}
	if at.less(from) || placeOf(last).less(at) { // less: over the end of the address space
		return netip.Addr{}, false
	}
	return at.addr(first), true
}

// all yields all entries, in no order.
func (x *index) all() iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for _, p := range x.pages {
			for _, e := range p.entries {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// within yields the entries of a range, at the cost of words64 look-ups.
func (x *index) within(r iprange.Range) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		last, _ := placeOf(r.Last).split()
		for word, _ := placeOf(r.First).split(); !last.less(word); word = word.next() {
			for _, e := range x.pages[word].entries {
				if r.Contains(e.addr) && !yield(e) {
					return
				}
			}
		}
	}
}

// words64 is in how many words of 64 addresses a range lies, or as many as 32 bits
// hold if it is more.
func words64(r iprange.Range) uint64 {
	first, _ := placeOf(r.First).split()
	last, _ := placeOf(r.Last).split()
	if first.hi != last.hi {
		return math.MaxUint32
	}
	return min(last.lo-first.lo, math.MaxUint32-1) + 1
}
