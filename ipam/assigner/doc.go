// SPDX-License-Identifier: Apache-2.0

// Package assigner is the client of an external assigner: a gRPC server, not
// part of Berth, that makes a network deliver an address to a node. v1/assigner.proto
// defines its duties.
//
// # Rules for callers
//
// Attach and Detach go over the network and may take three times [remote.Options].Timeout:
// never call them under a lock. Both are idempotent. The caller must order the calls for one
// address:
//
//   - Before Attach, write externallyAssigned and the node into the FloatingIP. If the
//     caller then crashes, the record says that the address may be attached there.
//   - Before Detach, remove the pod from the FloatingIP. From that write until the write
//     that clears externallyAssigned, no caller may attach the address: otherwise a
//     delayed Detach could take it from a new pod on the same node.
//
// # Caveats
//
// An Attach that failed may still have taken effect: a failure does not prove that the
// address is not attached.
package assigner
