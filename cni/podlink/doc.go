// SPDX-License-Identifier: Apache-2.0

// Package podlink makes the interfaces of the overlay's pods: veth pairs for which the node routes.
//
//	pod   10.244.1.5/32 dev eth0
//	      default via 169.254.1.1, neighbour permanent = MAC of the host end
//	node  btho…                       the host end, with the alias "berth overlay 10.244.1.5 …"
//	      10.244.1.5 dev btho…        in the table main
//	      neigh 10.244.1.5            permanent = MAC of the pod
//
// Two pods of a node have no common layer 2 network: every packet of a pod comes to the node, and
// the node forwards only IP packets, by its own routes. So a pod is reached only at its given
// addresses, and the hook forward sees all packets between pods.
//
// The alias has the addresses of the pod, so that deleted routes can be restored. The routes do not
// have Berth's protocol number, by which package veth/wire recognizes floating IPs. They go with
// their link.
package podlink
