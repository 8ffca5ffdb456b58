// SPDX-License-Identifier: Apache-2.0

// Package policy compiles network policies for the pods of a node: NetworkPolicies of
// networking.k8s.io/v1 and ClusterNetworkPolicies of policy.networking.k8s.io/v1alpha2, which
// decide about connections, into a ruleset, which decides about packets. It owns the meaning of the
// two APIs. It does no I/O and knows no kernel.
//
// # The rules of a pod
//
// The maps egress4, egress6, ingress4 and ingress6 lead from a pod's address to the chain of its
// combination of policies, which it shares with all pods that have the same:
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
// Peers are sets: a4-… of the addresses of the pods that a selector has, n4-… of their endpoints of
// a named port, r4-… of blocks of addresses. Each is named after its meaning, so all policies that
// name the same peers share it. Names of ports in ingress mean ports of the pod itself, so they are
// numbers in the rules, and pods on which the names mean other numbers have a chain of their own.
//
// # Invalid and unknown policies
//
// A policy that is not valid, or uses a field that this version does not know, fails closed and is
// a Problem. A NetworkPolicy allows nothing by the piece in question. Of a ClusterNetworkPolicy the
// rule in question accepts nothing, or denies everything where it would deny or pass, as the API
// says.
package policy
