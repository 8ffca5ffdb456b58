// SPDX-License-Identifier: Apache-2.0

// Package preallocation takes addresses before any pod asks for them: for IPClaims, as
// package claims has it do, and for the fixed sets of workloads ([Workloads]). What an
// owner is to have is a [Goal]; what is missing is taken in portions, and where pools
// have no more it is tried again as they change, or some time after.
//
// It frees nothing: package reclaim does, and knows what is to stay.
package preallocation
