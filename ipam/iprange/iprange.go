// SPDX-License-Identifier: Apache-2.0

package iprange

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"strings"
)

// Range is the range of addresses from First to Last, both included, of one family.
type Range struct {
	First, Last netip.Addr
}

// Single returns the range of one address.
func Single(addr netip.Addr) Range { return Range{First: addr, Last: addr} }

// OfPrefix returns the range of all addresses of a prefix. The prefix must have no host
// bits.
func OfPrefix(prefix netip.Prefix) Range {
	b := prefix.Addr().AsSlice()
	for i := prefix.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	last, _ := netip.AddrFromSlice(b)
	return Range{First: prefix.Addr(), Last: last}
}

// Parse reads one address, "first-last", or a CIDR without host bits.
func Parse(text string) (Range, error) {
	if strings.Contains(text, "/") {
		prefix, err := ParsePrefix(text)
		if err != nil {
			return Range{}, err
		}
		return OfPrefix(prefix), nil
	}
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	from, err := ParseAddr(first)
	if err != nil {
		return Range{}, fmt.Errorf("range %q: %w", text, err)
	}
	to, err := ParseAddr(last)
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

// ParsePrefix reads a CIDR. It refuses host bits, because "10.0.70.1/24" may mean the
// address or the subnet.
func ParsePrefix(text string) (netip.Prefix, error) {
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

// ParseAddr reads an address. It refuses zones and IPv4-mapped IPv6.
func ParseAddr(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", text)
	}
	if addr.Zone() != "" || addr.Is4In6() {
		return netip.Addr{}, fmt.Errorf("%q is not a plain IPv4 or IPv6 address", text)
	}
	return addr, nil
}

// Contains reports whether addr is in the range.
func (r Range) Contains(addr netip.Addr) bool {
	return addr.BitLen() == r.First.BitLen() && !addr.Less(r.First) && !r.Last.Less(addr)
}

// common returns the intersection of two ranges; false if it is empty.
func (r Range) common(other Range) (Range, bool) {
	if r.First.Less(other.First) {
		r.First = other.First
	}
	if other.Last.Less(r.Last) {
		r.Last = other.Last
	}
	return r, !r.Last.Less(r.First)
}

// Size returns the number of addresses, or math.MaxUint64 if it does not fit.
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

// String returns the range in the form that Parse reads.
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
