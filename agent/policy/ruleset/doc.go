// SPDX-License-Identifier: Apache-2.0

// Package ruleset is the form of policies between their compiler and the kernel: sets, maps
// and chains as nftables has them, as values. A Ruleset can be drawn as text, compared, walked
// by a packet (Walk) and brought into the kernel (package table). It knows no Kubernetes objects
// and does no I/O.
//
// # Values
//
// A Ruleset and everything below it is never changed after it was made. What did not change
// between two rulesets is the same pointer in both, so that a comparison costs what changed.
// Names of sets and chains say what they stand for and not what is in them: the set of a
// selector keeps its name while pods come and go.
//
// # Chains
//
// Each base chain begins with the established connections, so that their packets meet one rule.
// The first packet of a connection is looked up in a map by its source, and leaves for the chain of
// what may leave that pod. That chain ends in Drop or in Goto to the chain Ingress, which looks the
// destination up and leaves for the chain of what may come to that pod. So a new connection
// meets the rules of its own two pods only, however many there are on the node.
package ruleset
