// SPDX-License-Identifier: Apache-2.0

// Package policy compiles network policies for the pods of a node, NetworkPolicies of
// networking.k8s.io/v1 and ClusterNetworkPolicies of policy.networking.k8s.io/v1alpha2, into a
// ruleset. Policies decide about connections, a ruleset decides about packets. The package owns the
// meaning of the two APIs. It does no I/O and knows no kernel.
//
// # The rules of a pod
//
// The maps egress4, egress6, ingress4 and ingress6 lead from a pod's address to the chain of its
// combination of policies. Pods with the same combination share the chain:
//
//	i4-…  jump ai4-…     the Admin policies in their order: accept, drop, or return to pass
//	      jump pi4-…     the accepting rules of each NetworkPolicy that isolates the pod
//	      drop           if there is one of these; else
//	      jump bi4-…     the Baseline policies, and
//	      accept
//
// and likewise e4 for egress, and i6 and e6 for IPv6, so that packets meet rules of their family
// only. A pod with direct interfaces has the same chains in its own namespace.
//
// Peers are sets: a4-… has the addresses of the pods of a selector, n4-… their endpoints of a named
// port, r4-… blocks of addresses. The name follows from the meaning, so all policies with the same
// peers share a set. Names of ports in ingress mean ports of the pod itself, so the rules have
// their numbers, and pods with other numbers for the names have a chain of their own.
//
// # Invalid and unknown policies
//
// A policy that is not valid, or uses a field that this version does not know, fails closed and is
// a Problem. The unreadable part of a NetworkPolicy allows nothing. The unreadable rule of a
// ClusterNetworkPolicy accepts nothing or, if it is a Deny or Pass rule, denies everything, as the
// API says.
package policy
