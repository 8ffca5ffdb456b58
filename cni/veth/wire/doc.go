// SPDX-License-Identifier: Apache-2.0

// Package wire makes the kernel of a node carry a floating IP to its pod: a veth pair, a host
// route, a way out through the pool's gateway, and a proxy neighbour entry, by which the node
// answers for exactly that address on its uplink. On the pod's link it answers for the pod's
// gateway, for guests behind a bridge in the pod. It owns the kernel state with its marks (link
// prefix, protocol number, tables) and touches nothing else; package netfilter owns the rules by
// which a pod sends from its own addresses only, and the firewall marks. It never decides which pod
// has an address, and keeps no state outside the kernel.
//
// For the address 10.0.70.5 of the pool 10.0.70.0/24 with gateway 10.0.70.1:
//
//	pod   10.0.70.5/32 dev eth0
//	      169.254.1.1 dev eth0 scope link, neighbour permanent = MAC of the host end
//	      default via 169.254.1.1
//	node  10.0.60.11/32 dev bth…                             if it has several, see NodeEnd
//	      10.0.70.5 dev bth… scope link                      in main and in table P
//	      rule 32290: lookup P
//	      rule 32302: fwmark pod lookup main suppress_prefixlength 0
//	      rule 32304: from 10.0.70.0/24 fwmark pod lookup T
//	      T: 10.0.70.0/24 dev uplink scope link
//	      T: default via 10.0.70.1 dev uplink onlink
//	      neigh proxy 169.254.1.1 dev bth…                    the node answers guests
//	      neigh proxy 10.0.70.5 dev uplink                    the node answers ARP or ND
//
// P has the routes to all pods. T belongs to a pool network (link, subnet and gateway) and is
// shared by its addresses; its number is a hash of link, subnet and gateway. A packet passes three
// rules, and two more for each pool network of the node, whatever the number of addresses.
//
// # Which packets the rules select
//
// A rule cannot name the links of pods, only one link. A rule for a subnet alone would also catch
// packets of others: the node may have an address in the subnet, and forward for other hosts of it.
// So packets from pods get a firewall mark before they are routed ([netfilter.Mark]), by the link
// on which they come; the subnet then only chooses the table. Packets without our mark are routed
// as without Berth, except packets to pods, which rule 32290 gives to their pod: a node with
// several uplinks has rules by source, which would send its own packets to a pod, and answers, out.
// If all marks are lost with the nftables table, pods' packets leave by the node's routes until the
// table is made again, at once.
//
// Replies of a connection whose destination the node translated to the pod, such as to a
// NodePort or host port, have no mark either: they leave with the node's address, and so by
// the node's routes.
//
// If the subnets of two networks overlap, as after a change of a pool's gateway, the first rule
// wins, and addresses of the other network have rules of their own before it.
//
// # Reverse path filtering
//
// On the pod's link it is strict, so the kernel drops a pod's packets with the IPv4 address of
// another pod. On uplinks Berth does not change it. Its look-up of the way back has no mark and
// finds the node's own routes. This is right if the pool's link has the node's default route, and
// for packets to a NodePort on any link. If the pool's link is a VLAN or a second uplink, filtering
// could drop packets to its pods. Then packets that arrive there for the pods, and ARP requests for
// them, get another mark ([netfilter.ArrivalMark]), and the link's setting src_valid_mark makes the
// look-up heed it:
//
//	rule 32291: fwmark arrival lookup main suppress_prefixlength 31   to the pod
//	rule 32293: from 10.0.70.0/24 fwmark arrival lookup T             the way back
//
// Then the pool's link is right for every sender, also for hosts that the node itself reaches by
// another link. The filter stays strict for all other packets; Berth never changes rp_filter. (A
// loose filter would not be enough: on links without an address Linux applies it strictly.) A
// program that sets firewall marks on such a link for transparent proxies must know that
// src_valid_mark is 1.
//
// # Several addresses
//
// A pod may have up to [MaxAddresses] addresses on its one interface, of both
// families and of several subnets and VLANs; the node does the above for each. In a
// pod with several addresses of a family, the source of the default route is the
// first address with a gateway, and each subnet has a route whose source is the
// first address of the subnet:
//
//	pod   default via 169.254.1.1 src 10.0.70.5
//	      10.0.80.0/24 via 169.254.1.1 src 10.0.80.5
//
// The caller names the MAC of the pod's interface, which belongs to the pod's first
// address and so moves with it. Only the node sees it: neighbours on the uplink see
// the node's MAC, because the node answers for the address and does not bridge the
// pod's frames.
//
// Set-up starts answering last; teardown stops advertising and answering first. Rules and tables,
// except rules 32294, go with the last address that needs them.
//
// # Carrier
//
// With the carrier of a link the kernel removes its proxy entries, whether or not an agent runs:
// when the carrier is back, the addresses may be another node's. Without a carrier no entry is
// added, and a check misses none; once the carrier is back a check misses them, and Repair adds
// them. Close removes the entries, and leaves everything else. A bridge keeps its carrier while one
// of its ports has it.
//
// # Addresses that routers lead to the node
//
// An address with api.Address.Routed is on no link: the node answers nobody for it, and has no
// table T for it, so the pod's packets leave by the main table. For routing daemons it is in a
// table of its own, and packets from outside for addresses of its subnet that are not here end at
// the node (advertisement.go):
//
//	node  10.98.0.7 dev bth… metric 4203271695                  in table 98, which no rule looks up
//	      rule 32294: iif uplink to 10.98.0.0/24 fwmark none unreachable, behind the routes to pods of P
//
// # IPv6 and the node's router
//
// The first IPv6 pod makes the node a router, and routers do not heed router advertisements.
// Links that did, and the uplink, get accept_ra 2 before, so that the node keeps its way out.
//
// # Caveats
//
// Callers must not run two operations on one address at the same time, such as the teardown of an
// old link and the set-up of a new one. A teardown spares things that another set-up just begins to
// share only if both use one Wirer; otherwise the next check finds it.
package wire
