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
// Only addresses in use and those freed since the start take memory, so an IPv6
// /64 costs as little as one address. A pool hands out addresses it never gave
// before, in order, then the one freed longest ago: no operation walks a range
// from its start, and an address rests as long as the pool allows before it is
// given to somebody else.
//
// # Caveats
//
// The free count of a pool is a snapshot: between Candidates and Reserve another
// pod may have taken the last address, and Reserve says so.
package allocator
