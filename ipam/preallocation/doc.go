// SPDX-License-Identifier: Apache-2.0

// Package preallocation takes addresses before any pod asks for them. One [Loop] reconciles all
// owners that may want this. Their rules are in other packages: claims (IPClaims), assignments
// (Nodes), services (Services) and spares (workloads). A [Goal] is the addresses that an owner
// should have. Missing addresses are taken in portions, within the namespace's ResourceQuota. If
// too few are free, the Loop retries when pools change, when an address became free and it is the
// owner's turn ([line]), and after a back-off.
//
// It frees nothing; package reclaim does.
package preallocation
