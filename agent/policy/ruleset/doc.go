// SPDX-License-Identifier: Apache-2.0

// Package ruleset is the form of policies between their compiler and the kernel: sets, maps
// and chains as nftables has them, as values. A Ruleset can be drawn as text, compared, walked
// by a packet (Walk) and brought into the kernel (package table). It knows no Kubernetes objects
// and does no I/O.
//
// # Values
//
// A Ruleset and everything below it is immutable. An object that did not change between two
// rulesets is the same pointer in both, so that a comparison costs no more than the changes. Names
// of sets and chains follow from their meaning and not from their content: the set of a selector
// keeps its name while pods come and go.
//
// # Chains
//
// Each base chain begins with the established connections, so that their packets meet a single
// rule. A packet passes all base chains of its hook in the order of their names; after Accept the
// next base chain follows, Drop ends the packet. So the node has two base chains of the hook
// Forward: "egress" looks the source up in a map and goes to the egress chain of the source pod,
// and "ingress" looks the destination up and goes to the ingress chain of the destination pod. A
// new connection meets only the rules of its own two pods, whatever the number of pods on the node.
//
// A chain behind a map must not lead to another map, for example by a Goto from the egress chains
// to a chain that looks the destination up. At each transaction the kernel follows every path
// through a table, and there would be a path for each combination of a rule of a sending pod and a
// rule of a receiving pod. Only new kernels follow each chain once.
package ruleset
