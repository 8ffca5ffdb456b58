// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Families are the families of addresses.
var Families = []int{unix.AF_INET, unix.AF_INET6}

func FamilyOf(addr netip.Addr) int {
	if addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// LinkScope returns "scope link" of the family: IPv6 routes have no scope.
func LinkScope(family int) netlink.Scope {
	if family == unix.AF_INET {
		return netlink.SCOPE_LINK
	}
	return netlink.SCOPE_UNIVERSE
}

func SinglePrefix(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, addr.BitLen()) }

func AnyPrefix(addr netip.Addr) netip.Prefix {
	if addr.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// IPNet converts a prefix for packages that do not use netip.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// PrefixOf is the reverse of IPNet. It converts nil to the zero Prefix.
func PrefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}
	}
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), bits)
}
