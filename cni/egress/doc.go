// SPDX-License-Identifier: Apache-2.0

// Package egress has packets of ordinary pods leave the node with an address of the node itself, or
// from a block of ports of an address that several nodes share, by the gateway of that address's
// network. It never decides which pods these are, nor which address the node has, and keeps no
// state outside the kernel.
//
// For pods 10.244.1.7 and the node's address 10.0.80.11 on eth0.80, whose network has the gateway
// 10.0.80.1:
//
//	table inet berth-egress
//	  chain mark (prerouting, after other programs):
//	    by eth0.80 to a shared address still        drop: of no connection
//	    answers, also to such pods                  none of it, but for the mark of the reverse path filter
//	    destination translated, or the node's       none of it: Services, host ports
//	    source 10.244.1.7                           chain way1_4
//	  chain way1_4:
//	    to an exception, a group, or link-local     none of it
//	    to 10.0.80.0/24 by eth0.80                  mark 0x1020
//	    where the node has a route of its own to    none of it
//	    else                                        mark 0x1020
//	  chain source (postrouting, before other programs):
//	    source 10.244.1.7                           chain source1_4
//	  chain source1_4:
//	    mark 0x1020                                 source 10.0.80.11
//	  chain check (postrouting, after other programs):
//	    mark 0x1020 with another source             drop
//	    mark 0x1020, and the node lost 10.0.80.11   drop
//
//	rule 32295: fwmark 0x1020 lookup main suppress_prefixlength 0, and fwmark 0x1030
//	rule 32296: fwmark 0x1020 iif lo unreachable
//	rule 32297: fwmark 0x1020 lookup T, and fwmark 0x1030
//	T: 10.0.80.0/24 dev eth0.80 scope link
//	T: default via 10.0.80.1 dev eth0.80 onlink
//	T: unreachable default metric 1073741824
//
// # Shared addresses
//
// Each node translates to its block of ports of a shared address, and sends by itself. One node
// answers for the address on the link, and leads packets to the node that has the block
// ([PutLeads]) as they are: the kernel sends a copy to the node's own address in the network, and
// drops the packet, before it tracks connections (tables berth-egress-lead). Errors of ICMP go by
// the port in the packet that they are about. So another node can go on with it at any time, two at
// once do no harm, and a block of its own the node leaves to the rules above. It puts fragments
// together, as each has no port. Answers of its own pods with floating IPs it leads after they were
// tracked. Rules 32288 and 32289 have the reverse path filter find the link for what other nodes
// send from the address.
//
// # What leaves
//
// The node knows the ways to the pods and nodes of a cluster by routes, whatever network plugin
// made them, and leads nowhere else but by its default route. So a connection leaves with the
// address where the main table has no route but the default one. Rules 32295 and 32296 are that
// question: nftables' fib looks up routes as for packets of the node itself (iif lo). It is asked
// for each packet, so a node that comes, and its route, count at once. The network of the address
// is another one: connections to it leave by its link also where the node has a route of its own to
// it.
//
// # What never leaves
//
// A marked packet has the address, or is dropped, whatever translated its source before. The kernel
// looks at each packet whether the node has the address: another node may have taken it, and this
// one be told later. While the node has no address or link, T is unreachable, and pods are told so.
// The kernel removes the routes of a link that is down: then, too.
//
// # Marks
//
// A node has up to [Ways] ways of each family, told apart by two more bits beside the ones of
// package netfilter. Rules for [netfilter.Mark] would match as well; ours come before. Ways by one
// network share theirs. The second mark is of answers, where they come by the way's link: the
// reverse path filter's look-up of the way back finds T with it, where the link has src_valid_mark.
// Rule 32295 leads answers to the pod, and look-ups of the way back to the pod, too.
package egress
