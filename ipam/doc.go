// SPDX-License-Identifier: Apache-2.0

// Package ipam gives addresses to pods. It joins three packages: pools compiles
// IPPool objects, allocator is the book in memory, store writes FloatingIPs to the
// API server.
//
// A [Request] has a part for each address that the pod wants. [Candidates] has, for each part, the
// addresses that the owner has already and the pools that the pod may use, at one moment. All parts
// are served, or none.
//
// # Life of an address
//
//	free ──Reserve──▶ reserved ──Commit──▶ held by a pod ──▶ free       policy PodDeleted
//	  ▲                  │    (FloatingIP created)    │
//	  └────Unreserve─────┘                            ├──▶ retained ──▶ held again: Reserve, Commit (FloatingIP updated)
//	                                                  └──────┴───▶ free (FloatingIP deleted by the controller)
//
// A reservation is a promise in the memory of one process and costs no I/O. Commit is
// one write per address, and the API server arbitrates it: a FloatingIP is named by
// its address, so a second creation fails, and an update carries the resource version
// that it is based on. The loser unreserves and tries again.
//
// # Invariants
//
//   - Memory is a cache of the API server. Until it has synced, nothing is
//     reserved.
//   - No lock is held across I/O.
//   - An address that a policy keeps for its owner is never given to another owner.
//   - No scheduler takes back an address of a bound pod: every write for a pod changes the resource
//     version, so an earlier writer fails.
//   - One book per process: [IPAM] is shared by all profiles of a scheduler.
//
// # Why an object per address
//
// With one object per pool, all allocations would contend for it. A block per node
// would tie addresses to nodes, but floating addresses must move between nodes.
// Kubernetes itself has an object per Service address (KEP-1880).
package ipam
