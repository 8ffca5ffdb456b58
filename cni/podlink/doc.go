// SPDX-License-Identifier: Apache-2.0

// Package podlink makes the interfaces of the overlay's pods: veth pairs for which the node routes.
//
//	pod   10.244.1.5/32 dev eth0
//	      default via 169.254.1.1, neighbour permanent = MAC of the host end
//	node  btho…                       the host end, with the alias "berth overlay 10.244.1.5 …"
//	      10.244.1.5 dev btho…        in the table main
//	      neigh 10.244.1.5            permanent = MAC of the pod
//
// Two pods of a node have no network in common: whatever a pod sends comes to the node, and the
// node passes on IP packets alone, by routes that it made itself. So no pod is found at an address
// that it was not given, and the hook forward sees all that pods send each other.
//
// The alias says which addresses a pod has, so that routes that somebody deletes come back. The
// routes do not have Berth's protocol number: by that package veth/wire knows floating IPs. They go
// with their link.
package podlink
