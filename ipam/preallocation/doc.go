// SPDX-License-Identifier: Apache-2.0

// Package preallocation takes addresses before any pod asks for them. One [Loop]
// reconciles all owners that may want this: IPClaims, of which package claims has the rules,
// Nodes, of which package assignments has them, and Services, of which package services has
// them. A [Goal] is the addresses that an owner should have. Missing addresses are taken in
// portions, within the namespace's ResourceQuota. If too few are free, it retries when pools
// change, when it is the owner's turn to try for an address that came free ([line]), and after
// a backoff.
//
// No workload is an owner here: its author needs no right but the one to create the workload,
// and could hold any number of addresses without a pod.
//
// It frees nothing; package reclaim does.
package preallocation
