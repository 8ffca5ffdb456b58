// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/netip"
)

// Marks of our state in the kernel. They may never change: by them a new version
// finds the state of an old one.
const (
	// LinkPrefix begins the name of the host end of every pair.
	LinkPrefix = "bth"
	// Protocol is on every route, rule and proxy neighbour.
	Protocol = 98
	// tableBase and tableMask select the routing tables, one for each address of
	// a host link. The first four addresses of a link have tableBase + 4·ifindex
	// + position; the next four have the same in the next block, because the
	// first version knew only four.
	tableBase     = 0x62000000
	tableMask     = 0xff000000
	tablesInBlock = 4
	tableBlocks   = 2
	// MaxAddresses is the maximum number of addresses of one link.
	MaxAddresses = tablesInBlock * tableBlocks
	// PriorityMain is the rule for all routes of the main table but the default
	// route. PriorityPod is the rule that sends the rest of a pod's traffic to
	// its table. Both come just before the kernel's main rule (32766), so that
	// rules of other programs come before ours.
	PriorityMain = 32300
	PriorityPod  = 32301
)

// The gateway of pods: no network routes these addresses, and pods find them by a
// permanent neighbour entry, so they are never on the wire.
var (
	gateway4 = netip.AddrFrom4([4]byte{169, 254, 1, 1})
	gateway6 = netip.MustParseAddr("fe80::1")
)

// PodGateway returns the gateway of a pod with the address.
func PodGateway(addr netip.Addr) netip.Addr {
	if addr.Is4() {
		return gateway4
	}
	return gateway6
}

// HostLink returns the name of the host end of a container's interface.
func HostLink(containerID, ifName string) string {
	sum := sha256.Sum256([]byte(containerID + "\x00" + ifName))
	return LinkPrefix + hex.EncodeToString(sum[:])[:15-len(LinkPrefix)]
}

// hostMAC derives the MAC of a host end from its name. So we set it when we make the
// link: udev may change a MAC of the kernel's choice after the pod has learned it.
// Pods' MACs have another prefix.
func hostMAC(link string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(link))
	return append(net.HardwareAddr{0x0a, 0xbe}, sum[:4]...)
}

// unnamedMAC returns the MAC of a pod for which the caller names none. Pods of the
// agent's first version, which named none, keep it.
func unnamedMAC(addr netip.Addr) net.HardwareAddr {
	if addr.Is4() {
		b := addr.As4()
		return append(net.HardwareAddr{0x02, 0x42}, b[:]...)
	}
	b := addr.As16()
	sum := sha256.Sum256(b[:])
	return append(net.HardwareAddr{0x02, 0x66}, sum[:4]...)
}

func tableOf(hostIndex, position int) (int, bool) {
	offset := hostIndex*tablesInBlock + position%tablesInBlock
	if position < 0 || position >= MaxAddresses || hostIndex < 0 || offset > 0x00ffffff {
		return 0, false
	}
	return tableBase + position/tablesInBlock<<24 + offset, true
}

func isOurTable(table int) bool {
	block := (table&tableMask - tableBase) >> 24
	return block >= 0 && block < tableBlocks
}

// linkOfTable returns the index of a table's link.
func linkOfTable(table int) int { return (table &^ tableMask) / tablesInBlock }
