// SPDX-License-Identifier: Apache-2.0

// Package netfilter owns the nftables table of Berth on a node. It is written through
// netlink, so that neither the node nor an image needs a program for it, and it works
// beside iptables of either kind and beside kube-proxy, whose rules it does not touch.
//
//	table inet berth
//	  set links                  the interfaces that lead to pods
//	  set sources4, sources6     interface . address: what a pod may send from
//	  set floating4, floating6   the floating IPs of this node's pods
//	  set hairpin4, hairpin6     address . address: the same, for traffic of a pod to itself
//
//	  chain sources (prerouting, raw), of packets from interfaces in links:
//	    router advertisements              drop
//	    from a link-local IPv6 address     accept, because nothing forwards them
//	    interface . source not in sources  drop
//
//	  chain keep_source (postrouting, before the node's source NAT):
//	    source . destination in hairpin    accept; kube-proxy masquerades it, and must
//	    source in floating                 source NAT to the same source
//
// A pod therefore cannot send from the address of another, and a server that a pod calls
// through a Service sees the pod's own address: kube-proxy masquerades such connections in
// some modes, and the first source NAT of a connection counts.
//
// The table is complete from its first moment: Allow makes it in one transaction with all
// sources that it gets. An interface that an older agent, which knows no table, makes after
// a downgrade is not in links, and its pod is not cut off.
package netfilter
