// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
)

// Range is the addresses from First to Last, both included, of one family.
type Range struct {
	First, Last netip.Addr
}

// ParseRange reads one address, "first-last", or a CIDR without host bits.
func ParseRange(text string) (Range, error) {
	if strings.Contains(text, "/") {
		prefix, err := ParseSubnet(text)
		if err != nil {
			return Range{}, err
		}
		return Range{First: prefix.Addr(), Last: lastOf(prefix)}, nil
	}
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	from, err := parseAddr(first)
	if err != nil {
		return Range{}, fmt.Errorf("range %q: %w", text, err)
	}
	to, err := parseAddr(last)
	if err != nil {
		return Range{}, fmt.Errorf("range %q: %w", text, err)
	}
	if from.BitLen() != to.BitLen() {
		return Range{}, fmt.Errorf("range %q mixes IPv4 and IPv6", text)
	}
	if to.Less(from) {
		return Range{}, fmt.Errorf("range %q is backwards: write %s-%s", text, to, from)
	}
	return Range{First: from, Last: to}, nil
}

// ParseSubnet reads a CIDR and refuses host bits, because "10.0.70.1/24" leaves
// open whether the address or the subnet was meant.
func ParseSubnet(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a CIDR such as 10.0.70.0/24", text)
	}
	if prefix.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%q is an IPv4-mapped IPv6 CIDR: write it as IPv4", text)
	}
	if prefix != prefix.Masked() {
		return netip.Prefix{}, fmt.Errorf("%q has host bits: write %s", text, prefix.Masked())
	}
	return prefix, nil
}

func parseAddr(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", text)
	}
	if addr.Zone() != "" || addr.Is4In6() {
		return netip.Addr{}, fmt.Errorf("%q is not a plain IPv4 or IPv6 address", text)
	}
	return addr, nil
}

// Contains says whether addr lies in the range.
func (r Range) Contains(addr netip.Addr) bool {
	return addr.BitLen() == r.First.BitLen() && !addr.Less(r.First) && !r.Last.Less(addr)
}

// Size is the number of addresses, math.MaxUint64 where it does not fit.
func (r Range) Size() uint64 {
	firstHigh, firstLow := halves(r.First)
	lastHigh, lastLow := halves(r.Last)
	low, borrow := bits.Sub64(lastLow, firstLow, 0)
	high, _ := bits.Sub64(lastHigh, firstHigh, borrow)
	if high != 0 || low == math.MaxUint64 {
		return math.MaxUint64
	}
	return low + 1
}

// String writes the range as ParseRange reads it.
func (r Range) String() string {
	if r.First == r.Last {
		return r.First.String()
	}
	return r.First.String() + "-" + r.Last.String()
}

func halves(addr netip.Addr) (high, low uint64) {
	b := addr.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}

func lastOf(prefix netip.Prefix) netip.Addr {
	b := prefix.Addr().AsSlice()
	for i := prefix.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

// Join returns ranges of the same addresses in the same order, each address once, and
// those that continue each other as one. It gives up, and says so, where that leaves
// more than most.
func Join(ranges []Range, most int) (joined []Range, ok bool) {
	var sorted []Range // the joined ranges
	for _, r := range ranges {
		for _, r := range subtract([]Range{r}, sorted) {
			at, _ := slices.BinarySearchFunc(sorted, r.First, func(other Range, addr netip.Addr) int { return other.First.Compare(addr) })
			sorted = slices.Insert(sorted, at, r)
			if n := len(joined); n > 0 && joined[n-1].Last.Next() == r.First {
				joined[n-1].Last = r.Last
				sorted[at-1].Last = r.Last
				sorted = slices.Delete(sorted, at, at+1)
			} else {
				joined = append(joined, r)
			}
		}
		if len(joined) > most {
			return nil, false
		}
	}
	return joined, true
}

// overlaps says whether the range has addresses in common with some that are sorted
// and disjoint.
func (r Range) overlaps(sorted []Range) bool {
	// The first that ends at or after r begins.
	at, _ := slices.BinarySearchFunc(sorted, r.First, func(other Range, addr netip.Addr) int { return other.Last.Compare(addr) })
	return at < len(sorted) && !r.Last.Less(sorted[at].First)
}

// merge sorts ranges and joins those that overlap or touch.
func merge(ranges []Range) []Range {
	ranges = slices.Clone(ranges)
	slices.SortFunc(ranges, func(a, b Range) int { return a.First.Compare(b.First) })
	var merged []Range
	for _, r := range ranges {
		if n := len(merged); n > 0 && merged[n-1].First.BitLen() == r.First.BitLen() &&
			(!merged[n-1].Last.Less(r.First) || merged[n-1].Last.Next() == r.First) {
			if merged[n-1].Last.Less(r.Last) {
				merged[n-1].Last = r.Last
			}
			continue
		}
		merged = append(merged, r)
	}
	return merged
}

// subtract returns what of ranges is not in taken. Both must be merged.
func subtract(ranges, taken []Range) []Range {
	var rest []Range
	for _, r := range ranges {
		// The first taken range that ends at or after r begins.
		i, _ := slices.BinarySearchFunc(taken, r.First, func(t Range, addr netip.Addr) int { return t.Last.Compare(addr) })
		whole := true
		for ; i < len(taken) && !r.Last.Less(taken[i].First); i++ {
			if r.First.Less(taken[i].First) {
				rest = append(rest, Range{First: r.First, Last: taken[i].First.Prev()})
			}
			if !taken[i].Last.Less(r.Last) {
				whole = false
				break
			}
			r.First = taken[i].Last.Next()
		}
		if whole {
			rest = append(rest, r)
		}
	}
	return rest
}
