// SPDX-License-Identifier: Apache-2.0

// Package policy compiles network policies for the pods of a node: NetworkPolicies of
// networking.k8s.io/v1 and ClusterNetworkPolicies of policy.networking.k8s.io/v1alpha2, which
// say who may talk, into a ruleset, which says which packets pass. It owns what the two APIs mean.
// It does no I/O and knows no kernel.
package policy
