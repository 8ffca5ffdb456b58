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
// going through the addresses in use. Its memory grows with its entries, not with the
// size of pools. The zero value is empty.
//
// It is a sparse bitmap of the address space, which stores only words that are not
// empty, with summaries: each bit in a word of a summary says whether a word of the
// level below is full. An IPv4 address has the place of its IPv4-mapped IPv6 address
// (RFC 4291), so no pool may contain IPv4-mapped addresses.
type index struct {
	pages map[place]page
	full  []map[place]uint64
}

// page is 64 consecutive addresses.
type page struct {
	used   uint64 // addresses in use
	listed uint64 // addresses with an entry: in use, or freed and queued
	// entries of the listed addresses, in order.
	entries []*entry
}

func (p page) rank(bit uint) int { return bits.OnesCount64(p.listed & (1<<bit - 1)) }

// place is an address as a number, shifted right by 6 bits per level.
type place struct{ hi, lo uint64 }

func placeOf(addr netip.Addr) place {
	b := addr.As16()
	return place{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// addr is the inverse of placeOf. The result has the family of like.
func (p place) addr(like netip.Addr) netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], p.hi)
	binary.BigEndian.PutUint64(b[8:], p.lo)
	if like.Is4() {
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return netip.AddrFrom16(b)
}

// split returns the word that contains the place, and the bit in it.
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

// occupy marks the address of an entry as in use, and lists the entry if it is not listed yet.
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

// vacate marks the address of a listed entry as not in use. With rests the entry stays listed.
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

// word returns a bit for each place of a word: in use at level 0, full above.
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
	for { // up, past full words
		word, bit := at.split()
		if left := ^x.word(level, word) >> bit; left != 0 {
			at = word.join(bit + uint(bits.TrailingZeros64(left)))
			break
		}
		at = word.next()
		level++
	}
	for ; level > 0; level-- { // down, to the first address that is not in use
		at = at.join(uint(bits.TrailingZeros64(^x.word(level-1, at))))
	}
	if at.less(from) || placeOf(last).less(at) { // at.less(from): past the end of the address space
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

// within yields the entries of a range. It costs words64 lookups.
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

// words64 returns how many words of 64 addresses a range touches, at most
// math.MaxUint32.
func words64(r iprange.Range) uint64 {
	first, _ := placeOf(r.First).split()
	last, _ := placeOf(r.Last).split()
	if first.hi != last.hi {
		return math.MaxUint32
	}
	return min(last.lo-first.lo, math.MaxUint32-1) + 1
}
