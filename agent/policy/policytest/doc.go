// SPDX-License-Identifier: Apache-2.0

// Package policytest proves the rulesets of package policy. It has an oracle, which says from the
// objects alone whether a connection is allowed, and clusters drawn at random, small enough that
// labels, addresses and ports meet all the time. The oracle is written from the documents of
// NetworkPolicy (networking.k8s.io/v1) and ClusterNetworkPolicy
// (policy.networking.k8s.io/v1alpha2), sentence by sentence, and shares nothing with the compiler
// but the types of objects and addresses: neither how selectors match nor how blocks of addresses
// are read. It is for tests, and part of no program.
package policytest
