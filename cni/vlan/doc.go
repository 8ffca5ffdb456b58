// SPDX-License-Identifier: Apache-2.0

// Package vlan gives containers interfaces in the pools' networks themselves, on top of the node's
// uplink or of VLAN links on it; with package wire, in contrast, the node answers for its pods. It
// owns the links, routes, rules and nftables tables that it makes, and finds them by their names
// and aliases. It keeps no state outside of the kernel and never decides which pod has an address.
//
// The modes, each with the interface of a container:
//
//	bridge   one end of a veth pair; the other is a port of a bridge with the VLAN link
//	macvlan  a macvlan link (mode bridge) on the uplink or VLAN link
//	ipvlan   an ipvlan link on it, mode l2, l3 or l3s
//	sriov    a virtual function of a network card, which package sriov gives and takes; its
//	         card adds the VLAN's tag. The VLAN link is the node's own way into the network
//	pure     as in package wire; only that missing VLAN links are made
//
// In the modes bridge, macvlan, ipvlan l2 and sriov the container answers ARP and neighbour
// solicitations itself and sends through the pool's gateway. In the modes l3 and l3s the node
// routes for it; in l3s the node answers for the address on the uplink as in package wire. In l3
// nobody answers, because the kernel passes ARP requests to the container's link, which ignores
// them: the network must route the addresses to the node.
//
// A container has such an interface for each VLAN of its addresses. The first interface has the
// name from the runtime, the others have this name, a dot and the VLAN.
//
// # The node link
//
// No kernel lets a node reach the macvlan and ipvlan links on its own uplink, but the kubelet must
// probe its pods. So each container also has a veth pair, the node link, only for traffic between
// the container and its own node:
//
//	pod   10.0.70.5/24 dev eth0, default via 10.0.70.1        the pool's network
//	      10.0.70.5/32 dev bthv…
//	      10.0.60.11 dev bthv… scope link                      the node's address
//	      192.0.2.9 via 10.0.60.11 dev bthv…                   the node's other addresses
//	      10.96.0.0/12 via 10.0.60.11 dev bthv…                Services, which the node translates
//	node  10.0.60.11/32 dev bthv…
//	      10.0.70.5 dev bthv… scope link src 10.0.60.11
//
// Each end repeats an address of another link of its namespace. On a link without an address the
// kernel masquerades to the first address of the node, to which the container replies through its
// gateway; it drops packets of a REDIRECT, as for sidecars; and it applies a loose reverse path
// filter strictly. The node's address is a permanent address of the uplink (nodeAddress). Searches
// for the link with an address of the node skip node links ([rtnl.LinkWith], [rtnl.NodeAddresses]).
//
// The node's addresses come and go: virtual addresses move to other nodes, to which the container
// must not send by the node link. So CheckNode compares both ends, and Filter and Repair keep them
// up to date; the container's routes to its node's addresses have Berth's protocol. Routes to
// Services are from the start of the container. A container with addresses of several gateways has
// rules for them; before these its rule 32279 uses the main table's routes by the node link, which
// has its own link group.
//
// Packets that the node translates for or to the container also use the node link, such as
// connections to NodePorts and from Services: package netfilter masquerades them, so that replies
// come back to the node and do not bypass it.
//
// Packets to Services use it, too: without Services a container resolves no name. In the modes l3
// and l3s they do not, because the node translates the packets that the container sends through its
// interface.
//
// If a container no longer has its addresses, such as a sandbox with its own network stack
// (gVisor), the package maintains nothing in it.
//
// A container that may change its routes can send other packets by its node link. The node forwards
// only replies and packets whose destination it translates (package netfilter), so the link does
// not bypass a gateway.
//
// # Routes of ipvlan l3 and l3s
//
// To the node, packets that the container sends through an ipvlan link in mode l3 or l3s look as if
// the node sent them by the link below. The kernel's output hook translates them, so a container
// can call Services; then the kernel routes them anew, for any link. For the address 10.0.70.5 and
// the link below eth1.7:
//
//	rule 32281: from 10.0.70.5 iif lo oif eth1.7 lookup T
//	rule 32282: from 10.0.70.5 iif lo lookup main suppress_prefixlength 0
//	rule 32283: from 10.0.70.5 iif lo lookup T
//	rule 32284: from 10.0.70.5 fwmark arrival lookup T
//	T: 10.0.70.0/24 dev eth1.7, default via 10.0.70.1 dev eth1.7
//
// The first rule is for packets as the container sent them. After a translation the second rule
// finds endpoints on this node, at their node links: on the link below nobody answers the node for
// them, or for other addresses for which the node itself answers. All other packets leave by the
// pool's network, by the third rule.
//
// Packets that come by the node link (not iif lo) use the node's own routes: the node translates
// them to an address of its own, to which the replies come. Reverse path filtering uses the same
// routes when they arrive. Only ARP requests for the address must come by the link below. They have
// a mark (package wire) and, in mode l3s, the last rule.
//
// In mode l3s the kernel gives replies from other hosts to the container after the node translated
// them back. In mode l3 it gives them to the container at once, untranslated: there only Services
// with an endpoint on the container's node work.
//
// Replies of endpoints on the node come by the node link from the Service's address, to which no
// route by this link exists. So reverse path filtering on the container's end of the node link is
// loose.
//
// # How a withdrawal finds the container
//
// A withdrawal finds the container by the node link: the kernel knows the namespace of the other
// end, even if its path is gone, and deletes links in it. A virtual function cannot be deleted;
// package sriov brings it back. The node link's alias names the interfaces, so that Remove needs no
// record.
//
// # Closed interfaces
//
// Close silences a container's interfaces temporarily, and does not change them or their routes
// (closure.go). Only the kernel or the card has the closed state: a port that is down, sets of
// addresses in the table of the lower link's guard, or the state of a virtual function.
//
// # VLAN links and bridges
//
// An existing VLAN link of the uplink is used and stays, with its bridge. Missing VLAN links and
// bridges are made, with the names bthl and bthg, the uplink's index, a dot and the VLAN, and
// removed with their last user. Addresses of the uplink are never moved: in mode bridge, addresses
// without a VLAN need a bridge from the configuration.
//
// # Packets that a container may send
//
// An nftables chain at each interface accepts packets that the container sends in its own name, and
// drops all others (speech): frames with another MAC address or a VLAN tag, packets from other
// addresses, ARP and neighbour discovery for them, router advertisements, redirects and replies of
// DHCP servers. Another nftables chain drops router advertisements to the container, which gets its
// addresses and gateways from its pools. In mode bridge the nftables chains are on the node, at the
// port. In the other modes they are in the container's namespace, where a container with
// CAP_NET_ADMIN can change them, and an AF_XDP socket bypasses them; CheckNode compares them.
//
// So there is a second guard for packets that leave the node in the modes macvlan and ipvlan l2
// (lowerGuard): an nftables chain on the node at the egress of the link below. It identifies the
// containers' macvlan links by their MAC address. It refuses an unknown MAC address only if the
// link below is Berth's own: others may have macvlan links or virtual routers on the uplink. No MAC
// address may answer for the pool's gateway.
//
// # Caveats
//
// Callers must not run two operations on one address at the same time, such as the withdrawal of an
// old container and the set-up of a new one. A link either carries macvlan links, or carries ipvlan
// links, or is a port of a bridge.
package vlan
