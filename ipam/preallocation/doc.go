// SPDX-License-Identifier: Apache-2.0

// Package preallocation takes addresses before any pod asks for them: for IPClaims (on
// behalf of package claims) and for the replicas of workloads ([Workloads]). A [Goal]
// is the addresses that an owner should have. Missing addresses are taken in portions. If
// pools are exhausted, it retries when they change, and after a backoff.
//
// It frees nothing; package reclaim does.
package preallocation
