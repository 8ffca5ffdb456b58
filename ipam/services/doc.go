// SPDX-License-Identifier: Apache-2.0

// Package services gives Services of type LoadBalancer and class [v1alpha1.LoadBalancerClass]
// addresses of pools, and decides which nodes carry them. A group is one Service, or the Services
// of a namespace that share their addresses by the annotation [v1alpha1.AnnotationShare]; it is an
// owner in a [preallocation.Loop]. The Service that has the addresses of a group leads, at first
// the oldest: its annotations decide, and the FloatingIPs name it (spec.service). Package
// assignments writes which node carries which address, kube-proxy has the data path.
//
// # Order of effects
//
//	give:  FloatingIP (spec.service.node) → NodeAssignment → the agent confirms (status.carried) → Service.status
//	move:  the FloatingIP names the next node, which is assigned; it asserts the address, and the node before falls silent → it
//	       confirms → the node before is released; one that is lost, at once
//	take:  Service.status is cleared → NodeAssignments are → agents confirm, or their nodes are lost → spec.service is cleared
//
// After that package reclaim frees or keeps the address by its release policy. On a link one node
// answers for an address; of the mode Routed, which has no spec.service.node, several carry it.
//
// A crash between any two steps is fixed by the next look: each step follows from objects, and
// none from an event.
package services
