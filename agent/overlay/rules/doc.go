// SPDX-License-Identifier: Apache-2.0

// Package rules owns the nftables table of the overlay on a node, beside the table of package
// cni/netfilter.
//
//	table inet berth-overlay
//	  set subnets4, subnets6     the node's own pod CIDRs
//	  set inside4, inside6       destinations never masqueraded: the pods of all nodes, the pools'
//	                             ranges, Services, and networks that the administrator names
//
//	  chain sources (prerouting, raw), of packets from the links of pods, btho…:
//	    router advertisements              drop
//	    from a link-local address or ::    accept, because nothing forwards them
//	    the way to the source is another   drop
//
//	  with flannel's bridge, of packets from that, the last one is instead:
//	    source not in subnets              drop
//
//	  chain masquerade (postrouting, source NAT):
//	    source in subnets, not to a pod's link, destination not in inside and not multicast
//	                                       masquerade
//
//	with the backend vxlan:
//	  set peers4, peers6         the other nodes
//	  chain tunnel (input):
//	    to the tunnel's port, source not in peers       drop
//	  chain to_tunnels (forward):
//	    to the tunnel's port, destination in peers,
//	    source not in peers                             drop; the node itself sends past this hook
//
// Only addresses of the node's own pod CIDRs are masqueraded. So a floating IP is never
// masqueraded, and a server in the cluster sees the address of its client pod.
package rules
