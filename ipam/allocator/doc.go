// SPDX-License-Identifier: Apache-2.0

// Package allocator is the book of addresses: which are in use, by whom, and
// which are free, all in memory under one mutex. It does no I/O and knows no
// Kubernetes; it imports the standard library only.
//
// An address has two layers. What the API server stores of it arrives by
// [Allocator.Observe] and [Allocator.Forget] and is the truth; what this
// process promised to a pod that is being scheduled is a reservation, taken by
// [Allocator.Reserve] and given back by [Allocator.Release]. An address is free
// when it has neither.
//
// # Cost
//
// A pool hands out addresses it never gave before, in order, then the one freed
// longest ago, so that an address rests as long as the pool allows before it is
// given to somebody else. No operation walks over addresses in use: a bitmap with
// summaries tells the next that is not.
//
// Only addresses in use and those freed since the start take memory, and of pools
// so large that they are never used up only those in use: an IPv6 /64 costs as
// little as one address. What the records of many addresses repeat is kept once.
//
// Of a pool that has a cap per namespace it is counted what each namespace has, with
// every change of an address. Other pools cost nothing for it.
//
// # Caveats
//
// The free count of a pool is a snapshot: between Candidates and Reserve another
// pod may have taken the last address, and Reserve says so.
package allocator
