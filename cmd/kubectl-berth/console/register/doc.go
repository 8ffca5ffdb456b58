// SPDX-License-Identifier: Apache-2.0

// Package register is the console's copy of Berth's objects: a row of some 300 bytes for each
// FloatingIP, in the order of the addresses, the pools, claims, BGPPeers, the nodes that carry
// Services' addresses, the pods that wait for an address, and the nodes. It answers each question
// from memory, for a [Scope]: the part of the cluster that the asker may see. It asks nobody:
// package console feeds it from watches.
//
// A Register is safe for concurrent use.
package register
