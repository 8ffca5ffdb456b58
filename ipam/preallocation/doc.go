// SPDX-License-Identifier: Apache-2.0

// Package preallocation takes addresses before any pod asks for them. One [Loop] reconciles all
// owners that may want this: IPClaims, of which package claims has the rules, Nodes, of which
// package assignments has them, Services, of which package services has them, and workloads, of
// which package spares has them. A [Goal] is the addresses that an owner should have. Missing
// addresses are taken in portions, within the namespace's ResourceQuota. If too few are free, it
// retries when pools change, when it is the owner's turn to try for an address that came free
// ([line]), and after a backoff.
//
// It frees nothing; package reclaim does.
package preallocation
