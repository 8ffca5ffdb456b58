// SPDX-License-Identifier: Apache-2.0

// Package netfilter owns the nftables table of Berth on a node. It works together with both
// variants of iptables and with kube-proxy, whose rules it does not touch.
//
//	table inet berth
//	  set links                  the interfaces that lead to pods
//	  set past                   the links whose pods talk to others past the node
//	  set sources4, sources6     interface . address: the sources of a pod's packets
//	  set floating4, floating6   the floating IPs of this node's pods
//	  set hairpin4, hairpin6     address . address: the same, for traffic of a pod to itself
//
//	  set arrivals               uplink . address: where packets to a pod come that the node
//	                             routes, of IPv4
//
//	  set routed                 uplinks on which packets come for pods that routers lead here. Links stay in it
//
//	  chain sources (prerouting, raw), of packets from interfaces in links:
//	    router advertisements              drop
//	    from a link-local IPv6 address     accept, because nothing forwards them
//	    interface . source not in sources  drop
//
//	  chain mark (prerouting, last):
//	    from links, a reply whose source the node translates back   accept
//	    from links                                                  set Mark
//	    interface . destination in arrivals                         set ArrivalMark
//	    interface in routed, destination translated                 set ArrivalMark
//
//	  chain keep_source (postrouting, before the node's source NAT):
//	    source . destination in hairpin    accept; kube-proxy masquerades it, and must
//	    destination translated, and
//	    from or to an interface in past    masquerade
//	    source in floating                 source NAT to the same source
//
//	  set answered4, answered6   neighbours that answered a pod
//	  set tried4, tried6         neighbours that have not answered yet
//	  set hops4, hops6           next hops of packets of pods: neighbours and routers
//
//	  chain neighbours (forward, after the filters of others), of packets from links in links:
//	    of a connection that the other side knows, or to a pod   accept
//	    destination in answered or tried                         accept
//	    destination not in hops, where the rule put the next hop accept
//	    more than 64 in a second                                 drop
//	    others                                                   into tried, and into answered after a reply
//
//	  chain secluded (input):
//	    from VLAN links and bridges that Berth made, but for neighbour
//	    discovery and packets to pods      drop; the node has no address there
//
//	  chain secluded_forward (forward):
//	    from an interface in past, but for replies and packets whose
//	    destination the node translates    drop; the pod has its pool's gateway
//	    from VLAN links and bridges that Berth made, but for packets to
//	    pods and to ports of a bridge      drop; the node is no router there
//
//	table arp berth
//	  set asked                  uplink . address: where the node answers for a pod
//	  chain mark (input):
//	    interface . target in asked        set ArrivalMark
//
// Routing rules recognize packets by the marks; see package wire. A pod cannot send from the
// address of another pod. A server that a pod calls through a Service sees the pod's own address:
// in some modes kube-proxy masquerades such connections, but the first source NAT of a connection
// counts. If a pod has direct access to its network (package vlan), replies would bypass the node,
// which must translate them back. So the server sees the node's address if such a pod calls a
// NodePort of its node, or if such a pod is the endpoint of a Service to which the node leads a
// connection.
//
// The table is complete from its first moment: Allow makes it in one transaction with all
// sources that it gets.
//
// # Names of tables
//
// A table of Berth is called berth, or berth- and its subject. The names must never change: an
// uninstall finds the tables by TablePrefix, and each version replaces its tables by their names.
//
//	inet, arp  berth            this package
//	netdev     berth            package vlan, also in network namespaces of pods
//	inet       berth-hostports  package hostport
//	inet       berth-profiles   package shaping
//	inet       berth-overlay    package overlay/rules
//	inet       berth-policy     package policy/table, also in network namespaces of pods
//	bridge     berth-policy     package policy/port
//	inet       berth-gate       package policy/gate
//	arp, inet  berth-silence    package agent/deadman
//
// No committed transaction contains the tables berth-probe and berth-bridges.
//
// # Firewalls of others
//
// An accept in one table does not overrule a drop in another table. A base chain of another program
// may drop unknown forwarded packets, by its policy (Docker, ufw) or by a last rule without
// conditions. Then Allow adds two rules to this base chain, as flannel does: accept packets from
// and to links with the prefix bth. They come after the owner's rules, and so overrule none of
// them. They have a comment that begins with "berth", and the form that iptables writes and reads.
// Repair restores them, and they go with the last pod. A table that is locked by its owner stays
// unchanged. nftables cannot reach the kernel's older iptables (iptables-legacy).
//
// Firewalld refuses unknown packets in chains behind its base chain, by zone, and mostly locks its
// table. Berth adds no rule there, because a zone may be closed on purpose. [Firewall] finds
// nftables chains that refuse all packets of pods, and names the remedy.
package netfilter
