// SPDX-License-Identifier: Apache-2.0

// Package place finds out where the packets of a pod can be seen, so that policies hold for
// them: on the node, or in the pod's own network namespace. The kernel's description of an
// interface decides, and not its maker:
//
//	veth whose end on the node is no port     the node routes: its hook forward
//	veth on a bridge where the node has an    the node's hook forward, as long as the bridge
//	address (upstream's plugin bridge, cni0)  shows it the packets between its ports
//	veth on any other bridge, also of         the pod's namespace, hooks input and output
//	package cni/vlan
//	macvlan, ipvlan l2 and l3, a network      the pod's namespace, hooks input and output
//	card or one of its virtual functions
//	ipvlan l3s; macvtap, ipvtap; a link of    nowhere: packets come to the pod past the hooks
//	the row before that the pod made a port   of its namespace
//	of a bridge
//
// An interface whose packets are seen in the pod's namespace is called direct. The node does not
// translate packets to Services that leave by a direct interface, so the pod's namespace and the
// network see the same destination.
//
// Only links of CNI plugins count: interfaces with a name that the caller knows, and links whose
// other end or parent is in another namespace. Links that a pod itself makes, such as a tunnel or
// the bridge of a container engine, do not count.
//
// The package's only change of the node is that Show makes a bridge show its packets to netfilter.
package place
