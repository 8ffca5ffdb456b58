// SPDX-License-Identifier: Apache-2.0

// Package ruleset is the form of policies between their compiler and the kernel: sets, maps
// and chains as nftables has them, as values. A Ruleset can be drawn as text, compared, walked
// by a packet (Walk) and brought into the kernel (package table). It knows no Kubernetes objects
// and does no I/O.
//
// # Values
//
// A Ruleset and everything below it is never changed after it was made. An object that did not
// change between two rulesets is the same pointer in both, so that a comparison costs no more than
// the changes. Names of sets and chains give their meaning and not their content: the set of a
// selector keeps its name while pods come and go.
//
// # Chains
//
// Each base chain begins with the established connections, so that their packets meet one rule. A
// packet runs through all base chains of its hook in the order of their names; Accept in one leaves
// it to the next, Drop ends it. So the node has two of hook Forward: "egress" looks the source up
// in a map and leaves for the egress chain of that pod, and "ingress" looks the destination up and
// leaves for the ingress chain of that pod. A new connection meets the rules of its own two pods
// only, however many there are on the node.
//
// No chain that a map leads to may lead to another map, as a Goto from the egress chains to a chain
// that looks the destination up would: at each transaction the kernel follows every path through a
// table, and that would be a path for each rule of each pod that sends and each rule of each pod
// that receives. Only new kernels follow a chain once.
package ruleset
