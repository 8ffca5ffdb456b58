// SPDX-License-Identifier: Apache-2.0

// Package nodeaddress puts addresses of pools on the node itself: a second address of the node, on
// its link to the pool's network, with the prefix length of the pool's subnet. It never decides
// which address the node has, probes and announces nothing, and keeps no state outside the kernel.
//
// For the address 10.0.80.11 of the pool 10.0.80.0/24 with VLAN 80:
//
//	rule 32311: from 10.0.80.11 to 10.0.80.0/24 lookup N       Berth's mark of the address
//	10.0.80.11/24 dev eth0.80 noprefixroute
//	N: 10.0.80.0/24 dev eth0.80 scope link src 10.0.80.11
//	rule 32310: not of a pod, lookup N
//
// The mark comes first and goes last, so that an agent after a restart, and a cleanup, know the
// address to be Berth's. A rule stays where a link goes down or away. An address without the mark
// is somebody else's.
//
// # Routes
//
// The node has no default route by the address. The route to the subnet is not in the main table,
// and the kernel makes none there: packets from pods with floating IPs look at the main table
// before their pool's ([wire.PriorityMain]), and would leave by the node's link instead of their
// gateway. Rule 32310 is not for packets with the marks of package netfilter. Where the main table
// has a route to the subnet, or to a part of it, as on an uplink in the same subnet, N has none:
// the node's own routes stay in force.
//
// # The node's other addresses
//
// An IPv4 address comes after the ones that the link has. An IPv6 address is deprecated (RFC 4862,
// section 5.5.4), so that the node's connections do not leave with it but to the subnet, where the
// route says so.
package nodeaddress
