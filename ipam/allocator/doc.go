// SPDX-License-Identifier: Apache-2.0

// Package allocator is the book of addresses: which are in use, for which owner and
// pod, and which are free, all in memory under one mutex. It does no I/O and does not
// know Kubernetes; it imports the standard library and packages iprange and sorted only.
//
// The state of an address has two layers. The record is the part that the API server
// stores; it arrives by [Allocator.Observe] and [Allocator.Forget] and is the truth. A
// reservation is a promise of this process to a pod that is being scheduled; it is
// taken by [Allocator.Reserve] and given back by [Allocator.Release]. An address is
// free when it has neither.
//
// # Cost
//
// A pool first gives the addresses that were not freed since the start, in order from the one
// behind the address whose object was created last, then the address that was freed longest
// ago. So an address stays unused as long as possible before another owner gets it, also after a
// restart, and when the pool's ranges change. Once for each pool its entries are gone through
// for the newest. No other operation goes through the addresses in
// use: a bitmap with summaries finds the next unused address.
//
// An owner may have thousands of addresses. The book lists its idle ones by pool and terms, the
// oldest first, and the others by their pods, so a pod of the owner costs a look at the first few
// of each list.
//
// Only addresses in use and addresses freed since the start take memory. In a pool so
// large that it is never used up, only addresses in use do: an IPv6 /64 costs as little
// as one address. Data that many records repeat is stored once.
//
// For a pool with a cap per namespace, every change of an address updates the counts of
// its namespace. Other pools have no such cost.
//
// # Caveats
//
// The free count of a pool is a snapshot: between a read of it and Reserve another pod
// may take the last address. Then Reserve fails.
package allocator
