// SPDX-License-Identifier: Apache-2.0

// Package allocator is the book of addresses. It knows which addresses are free, and which owner
// and pod have the others. It keeps everything in memory, under one mutex. It does no I/O and does
// not know Kubernetes: it imports only the standard library and the packages iprange and sorted.
//
// The state of an address has two layers. The record is the part that the API server
// stores; it arrives by [Allocator.Observe] and [Allocator.Forget] and is the truth. A
// reservation is a promise of this process to a pod that is being scheduled; it is
// taken by [Allocator.Reserve] and given back by [Allocator.Release]. An address is
// free when it has neither.
//
// # Cost
//
// A pool first gives the addresses that were not freed since the start, in ascending order. It
// begins behind the address whose object was created last. Then it gives the address that was freed
// longest ago. So an address stays unused as long as possible before another owner gets it, also
// after a restart, and when the pool's ranges change. To find the address to begin behind, the book
// goes through the entries of a pool once. No other operation goes through the addresses in use: a
// bitmap with summaries finds the next unused address.
//
// An owner may have thousands of addresses. The book lists idle addresses by pool and terms, the
// oldest first, and the others by their pods. So a request of a pod needs only the first few
// addresses of each list.
//
// Only addresses in use and addresses freed since the start take memory. If a pool is so large that
// it is never used up, freed addresses take none either: an IPv6 /64 costs no more than its
// addresses in use. Data that many records repeat is stored once.
//
// For a pool with a cap per namespace, every change of an address updates the counts of
// its namespace. Other pools have no such cost.
//
// # Caveats
//
// The free count of a pool is a snapshot: between a read of it and Reserve another pod
// may take the last address. Then Reserve fails.
package allocator
