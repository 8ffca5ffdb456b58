// SPDX-License-Identifier: Apache-2.0

// Package overlay makes the network of pods without a floating IP: pods with addresses of their
// node's pod CIDRs, for which the node routes (package podlink), and routes between the nodes. Its
// wire format and the annotations of Node objects by which nodes find each other are flannel's, so
// nodes with flannel and nodes with this overlay can be in one cluster.
//
// # Requirements of nodes with flannel
//
// A VTEP has flannel's name, VNI 1, UDP port 8472, and the first address of the node's pod CIDR.
// Its MAC and the node's address are in annotations of the Node object; a new VTEP in place of a
// lost one gets the published MAC. Each node has a route, a neighbour and a forwarding entry for
// each other node, and learns nothing from packets. The package compares the kernel with the Node
// objects: periodically, and after changes of either.
//
// # Objects of a node
//
//	flannel.1, flannel-v6.1     the VTEPs, with the alias "berth overlay" (vxlan)
//	route   <pod CIDR>          via the VTEP of the node that has it, onlink (vxlan), or via
//	                            the node's own address (host-gw)
//	route   <floating IP>       the same, metric 2048; only with Options.FloatingIPs
//	neigh   <VTEP's address>    its MAC, permanent
//	fdb     <VTEP's MAC>        its node's address, permanent
//	table   inet berth-overlay  see package rules
//	unreachable <own pod CIDR>  addresses that no pod has
//	btho…                       a pod's link, of package podlink
//
// Routes have protocol 98, and either have a gateway or are unreachable; no other route of Berth in
// the main table is like this. The package removes anything else on the VTEPs, and such routes to
// no node.
//
// # Floating IPs
//
// Pods reach a floating IP on its pool's network, like any other client. Then an ordinary pod's
// packet leaves the overlay with the pod's own address, and the reply comes back through the
// overlay. This fails in networks that drop packets from unknown addresses or of half a connection.
// With Options.FloatingIPs a node has a route to each floating IP of other nodes, so that both
// directions use the overlay. A move replaces a single route. The option is off by default because
// it costs a watch of all FloatingIPs on every node. For a floating IP on this node, its driver
// makes a route with a better metric.
package overlay
