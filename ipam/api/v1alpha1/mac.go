// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"crypto/sha256"
	"net"
	"net/netip"
)

// First bytes of the MAC addresses of pods: locally administered, unicast, and
// one for each family, so that the two never meet.
const (
	macIPv4 = 0x02
	macIPv6 = 0x06
)

// MACOf returns the MAC address of a pod's interface whose first address is
// addr, so that an address that moves keeps its MAC. It is the same everywhere
// and for ever: neighbours and switches remember it. Nil for the zero Addr.
//
// An IPv4 address is part of it, so no two have the same. Of an IPv6 address it
// has 40 bits of a hash: that any two of n addresses on one layer 2 network have
// the same is about n²/2⁴¹ likely: 1 in 2 million for 1,000 of them, 1 in 20,000
// for 10,000.
func MACOf(addr netip.Addr) net.HardwareAddr {
	addr = addr.Unmap()
	switch {
	case !addr.IsValid():
		return nil
	case addr.Is4():
		b := addr.As4()
		return append(net.HardwareAddr{macIPv4, 0xbe}, b[:]...)
	default:
		b := addr.As16()
		sum := sha256.Sum256(b[:])
		return append(net.HardwareAddr{macIPv6}, sum[:5]...)
	}
}
