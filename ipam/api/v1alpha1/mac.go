// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"crypto/sha256"
	"net"
	"net/netip"
)

// First bytes of the MAC addresses of pods: locally administered, unicast, and
// different for each family, so that MAC addresses of different families never
// collide.
const (
	macIPv4 = 0x02
	macIPv6 = 0x06
)

// MACOf returns the MAC address of a pod's interface from the interface's first address, so an
// address that moves keeps its MAC address. The mapping must never change, because neighbours and
// switches remember it. It returns nil for the zero Addr. The MAC address contains the whole IPv4
// address, so it is unique. For IPv6 the MAC address contains a hash of 40 bits: the probability
// that two of n addresses on one layer 2 network have the same MAC address is about n²/2⁴¹, 1 in 2
// million for 1,000 addresses, 1 in 20,000 for 10,000.
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
