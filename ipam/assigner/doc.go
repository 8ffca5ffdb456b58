// SPDX-License-Identifier: Apache-2.0

// Package assigner is the client of an external assigner: a gRPC server, not
// part of Berth, that makes a network deliver an address to a node. What it must
// do is said in v1/assigner.proto.
//
// # Rules for callers
//
// Attach and Detach go over the network and may take [Options.Longest]: never
// call them under a lock. Both are idempotent. The order of calls for one
// address is the caller's business:
//
//   - Before Attach, the FloatingIP says externallyAssigned and the node. What
//     happens to the caller afterwards, the record tells that the address may be
//     attached there.
//   - Before Detach, the FloatingIP has no pod any more, and from that write until
//     the one that clears externallyAssigned nobody attaches the address: else a
//     Detach on its way would take it from a pod that has just come back to the
//     same node.
//
// # Caveats
//
// An Attach that failed may have been carried out all the same. So a failure is
// no proof that the address is not attached.
package assigner
