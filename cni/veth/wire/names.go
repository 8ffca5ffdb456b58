// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"net"
	"net/netip"
	"slices"

	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
)

// Marks of our state in the kernel. They must never change: by them a new version finds the state
// of an old version.
const (
	// LinkPrefix begins the name of the host end of every pair.
	LinkPrefix = netfilter.LinkPrefix
	// networkTables and tableMask select the routing tables of pool networks. The first table is
	// podsTable, which has a route to each address; the numbers of the other tables are hashes.
	networkTables = 0x64000000
	tableMask     = 0xff000000
	podsTable     = networkTables
	// PriorityPods is the rule for packets to pods. All other rules are only for packets
	// with a firewall mark. They come before the rules that a host made without a
	// priority (32765 and down).
	PriorityPods = 32290
	// For packets that arrive for pods, and for the look-up of their way back by reverse path
	// filtering: the main table's routes to single addresses, single addresses, and the subnets of
	// pool networks.
	PriorityArrivals    = 32291
	PriorityBackAddress = 32292
	PriorityBackNetwork = 32293
	// For packets from outside to the subnets of addresses that routers route here: after the routes
	// to pods, they are unreachable.
	PriorityUnreachable = 32294
	// For packets from pods: the main table without its default route, single addresses,
	// and the subnets of pool networks.
	PriorityMain    = 32302
	PriorityAddress = 32303
	PriorityNetwork = 32304
	// MaxAddresses is the maximum number of addresses of one link.
	MaxAddresses = 8
)

// The gateway of pods: no network routes these addresses. Pods find them by a permanent neighbour
// entry, guests behind a bridge in the pod by asking on the pod's link. They are on no other link.
var (
	gateway4 = netip.AddrFrom4([4]byte{169, 254, 1, 1})
	gateway6 = netip.MustParseAddr("fe80::1")
)

func podGateway(addr netip.Addr) netip.Addr {
	if addr.Is4() {
		return gateway4
	}
	return gateway6
}

// HostLink returns the name of the host end of a container's interface.
func HostLink(containerID, ifName string) string { return rtnl.NameOf(LinkPrefix, containerID, ifName) }

// hostMAC derives the MAC of a host end from the MAC of the pod, which belongs to the pod's first
// address: so a guest that moves to another node with its addresses finds its gateway there at the
// same MAC. It is no constant, because cloud-init fails on a node with two links of one MAC.
func hostMAC(pod net.HardwareAddr) net.HardwareAddr {
	host := slices.Clone(pod)
	host[0] ^= 0x08 // v1alpha1.MACOf never sets this bit
	return host
}
