// SPDX-License-Identifier: Apache-2.0

// Package nodeaddress adds addresses of pools to the node itself: a second address of the node, on
// its link to the pool's network, with the prefix length of the pool's subnet. It does not decide
// which address the node has, does not probe or announce, and keeps no state outside of the kernel.
//
// For the address 10.0.80.11 of the pool 10.0.80.0/24 with VLAN 80:
//
//	rule 32311: from 10.0.80.11 to 10.0.80.0/24 lookup N       Berth's mark of the address
//	10.0.80.11/24 dev eth0.80 noprefixroute
//	N: 10.0.80.0/24 dev eth0.80 scope link src 10.0.80.11
//	rule 32310: not of a pod, lookup N
//
// The mark is made first and removed last, so that a restarted agent and a cleanup recognize the
// address as Berth's. A rule stays if a link goes down or away. An address without the mark does
// not belong to Berth.
//
// # Routes
//
// The address gives the node no default route. The route to the subnet is not in the main table,
// and the kernel adds none there: packets from pods with floating IPs use the main table before
// their pool's table ([wire.PriorityMain]), and would leave by the node's link instead of their
// gateway. Rule 32310 is not for packets with the marks of package netfilter. If the main table has
// a route to the subnet, or to a part of it, as on an uplink in the same subnet, N has no route, so
// the node's own routes stay in force.
//
// # The node's other addresses
//
// An IPv4 address comes after the other addresses of the link. An IPv6 address is deprecated (RFC
// 4862, section 5.5.4), so that it is the source of the node's connections only to the subnet, by
// the route.
package nodeaddress
