// SPDX-License-Identifier: Apache-2.0

// Package vlan gives containers interfaces in the pools' networks themselves, on top of
// the node's uplink or of VLAN links on it, where package wire lets the node answer for its
// pods. It owns the links, routes, rules and nftables tables that it makes, and knows
// them by their names and aliases; it keeps no state outside the kernel and never
// decides which pod has an address.
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
// solicitations itself and sends through the pool's gateway. In the modes l3 and l3s the
// node routes for it; in l3s the node answers for the address on the uplink as in package
// wire. In l3 nobody answers, because the kernel hands ARP requests to the container's link,
// which takes none: the network must route the addresses to the node.
//
// A container has one such interface for each VLAN of its addresses. The first one has
// the name that the runtime wants, the others that name, a dot and the VLAN.
//
// # The node link
//
// No kernel lets a node reach the macvlan and ipvlan links on its own uplink, and the
// kubelet must probe its pods. So each container has a veth pair beside them, the node link,
// for traffic between the container and its own node alone:
//
//	pod   10.0.70.5/24 dev eth0, default via 10.0.70.1        the pool's network
//	      10.0.70.5/32 dev bthv…
//	      10.0.60.11 dev bthv… scope link                      the node's address
//	      192.0.2.9 via 10.0.60.11 dev bthv…                   the node's other addresses
//	      10.96.0.0/12 via 10.0.60.11 dev bthv…                Services, which the node translates
//	node  10.0.60.11/32 dev bthv…
//	      10.0.70.5 dev bthv… scope link src 10.0.60.11
//
// Each end repeats an address that its namespace has on another link. On a link without one the
// kernel masquerades to the first address of the node, whose answers the container sends to its
// gateway; it drops what a REDIRECT takes from there, as for sidecars; and it applies a loose
// reverse path filter strictly. The node's address is one of the uplink that stays (nodeAddress).
// What looks for the link with an address of the node passes node links over ([rtnl.LinkWith],
// [rtnl.NodeAddresses]).
//
// The node's addresses come and go: virtual ones go to other nodes, to which the container must not
// send by the node link then. So CheckNode compares both ends, and Filter and Repair keep them up
// to date; the container's routes to its node's addresses have Berth's protocol. Routes to Services
// are those of the container's start. A container with addresses of several gateways has rules for
// these; before them its rule 32279 takes the main table's routes by the node link, which is in a
// group of links of its own.
//
// Packets that the node translates for or to the container take the node link too, such as
// connections to NodePorts and from Services: package netfilter masquerades these, so that answers
// come back to the node and not past it.
//
// Services, too: without them a container resolves no name. Not in the modes l3 and l3s, where the
// node translates what the container sends through its interface.
//
// Of a container that has none of its addresses any more, such as a sandbox with a network stack of
// its own (gVisor), nothing is kept.
//
// A container that may change its routes can send more by its node link. Of that the node forwards
// only answers and packets whose destination it translates (package netfilter), so the link leads
// past no gateway.
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
// The first rule is for packets as the container sent them. After a translation the second
// finds the endpoints on this node, at their node links: on the link below nobody answers the node
// for them, nor for any other address that the node itself answers for. The rest leaves by the
// pool's network, by the third rule.
//
// Packets that come by the node link (not iif lo) take the node's own routes: the node
// translates them to an address of its own, and the answers come to where that address is.
// Reverse path filtering looks for the same routes when they arrive. Only ARP requests for
// the address must come by the link below. They have a mark (package wire), and in mode
// l3s the last rule.
//
// In mode l3s the kernel gives answers from elsewhere to the container after the node translated
// them back. In mode l3 it gives them to the container at once, untranslated: there only
// Services answer whose endpoint is on the container's node.
//
// Answers of endpoints on the node come by the node link, from the Service's address, to which no
// route leads there: reverse path filtering on the container's end of it is loose.
//
// # How a withdrawal finds the container
//
// The node link is also how a withdrawal finds the container: the kernel knows the namespace of the
// other end, also where no path leads to it any more, and deletes links in it. A
// virtual function cannot be deleted; package sriov brings it back. The node link's
// alias says which interfaces there are, so that Remove needs no record.
//
// # Closed interfaces
//
// Close silences a container's interfaces for a while, and leaves them and their routes as they are
// (closure.go). What is closed is in the kernel or the card alone: a port that is down, sets of
// addresses in the table of the lower link's guard, the state of a virtual function.
//
// # VLAN links and bridges
//
// A VLAN link that the uplink has already is used and stays, with the bridge that it is a
// port of. Missing ones are made, with the names bthl and bthg, the uplink's index, a dot
// and the VLAN, and removed with their last user. Addresses of the uplink are never moved: in
// mode bridge, addresses without a VLAN need a bridge that the configuration names.
//
// # Packets that a container may send
//
// An nftables chain at each interface accepts packets that the container sends in its own name, and
// drops the rest (speech): frames with another MAC address or a VLAN tag, packets of other
// addresses, ARP and neighbour discovery for them, router advertisements, redirects and answers of
// DHCP servers. Another chain drops router advertisements to the container, whose pools give its
// addresses and gateways. In mode bridge the chains are on the node, at the port. In the other
// modes they are in the container's namespace, where a container with CAP_NET_ADMIN can change them
// and an AF_XDP socket passes them by; CheckNode compares them.
//
// So there is a second guard for packets that leave the node in the modes macvlan and ipvlan l2
// (lowerGuard): a chain on the node at the egress of the link below. It knows the containers'
// macvlan links by their MAC address. An unknown MAC address is refused only where the link below
// is Berth's own: others may have macvlan links or virtual routers on the uplink. No MAC address
// may claim the pool's gateway.
//
// # Caveats
//
// Callers must not run two operations on one address at the same time, such as the
// withdrawal of an old container and the set-up of a new one. One link carries macvlan
// or ipvlan links or is a port of a bridge, never two of these.
package vlan
