// SPDX-License-Identifier: Apache-2.0

// Package ipam gives addresses to pods. It joins three packages: pools compiles
// IPPool objects, allocator is the book in memory, store keeps the book at the
// API server.
//
// A [Request] has a part for each address that the pod wants. [Candidates] is what
// can serve it at one moment: for each part what the owner has already, and the
// pools it may use. All parts are served, or none.
//
// # Life of an address
//
//	free ──Reserve──▶ reserved ──Commit──▶ held by a pod ──▶ free       policy PodDeleted
//	  ▲                  │    (FloatingIP created)    │
//	  └────Unreserve─────┘                            ├──▶ retained ──▶ held again: Reserve, Commit (FloatingIP updated)
//	                                                  └──────┴───▶ free (FloatingIP deleted by the controller)
//
// Reserved is a promise in the memory of one process and costs no I/O. Commit is
// one write, and the API server arbitrates it: a FloatingIP is named by its
// address, so a second creation fails, and an update carries the resource
// version it was decided on. Whoever loses unreserves and tries again.
//
// # Invariants
//
//   - Memory is a cache of the API server. Until it has synced, nothing is
//     reserved.
//   - No lock is held across I/O.
//   - An address that a policy keeps for its owner is given to nobody else.
//   - What a pod is bound with is taken back by nobody: every write for a pod moves
//     the resource version that an earlier writer would need.
//   - One book per process: [IPAM] is shared by all profiles of a scheduler.
//
// # Why an object per address
//
// One object per pool makes every allocation contend for it; a block per node
// ties addresses to nodes, which floating addresses must not be. Kubernetes
// itself keeps Service addresses this way (KEP-1880).
package ipam
