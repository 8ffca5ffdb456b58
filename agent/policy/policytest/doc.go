// SPDX-License-Identifier: Apache-2.0

// Package policytest proves the rulesets of package policy. It has an oracle, which decides from
// the objects alone whether a connection is allowed, and random clusters, small enough that labels,
// addresses and ports often match. The oracle is written from the documents of NetworkPolicy
// (networking.k8s.io/v1) and ClusterNetworkPolicy (policy.networking.k8s.io/v1alpha2), sentence by
// sentence, and shares only the types of objects and addresses with the compiler. It has its own
// matching of selectors and its own parser of address blocks. It is for tests, and part of no
// program.
package policytest
