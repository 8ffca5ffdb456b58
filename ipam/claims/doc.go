// SPDX-License-Identifier: Apache-2.0

// Package claims reconciles IPClaims in the loop of package preallocation: it preallocates their addresses, moves addresses
// that a claim takes over from another, and writes the claims' status. It is a
// level-triggered loop: its actions depend on the present state, never on an event.
//
// It frees nothing. Package reclaim frees the addresses beyond a claim's size, or after
// the claim is deleted; until then the claim is Oversized.
//
// # Addresses of a claim
//
// A claim has every FloatingIP with an owner of its namespace and name. If the owner has
// another UID, an earlier claim of that name left the address: the claim adopts it, up to
// its size. The release policy and retainFor of the addresses follow the claim.
//
// # Taking over
//
// A claim with takeOver moves the addresses recorded under the other claim's name,
// whether that claim exists or not, up to its own size of each family; addresses with
// pods go first. Only the owner in the FloatingIP changes, by a conditional write, so an
// address always belongs to exactly one of the two, and its pod is not affected.
//
//   - If several claims take over the same claim, only the oldest moves addresses; the
//     others wait and report a conflict.
//   - Claims that take over each other, directly or in a circle, move nothing and report
//     a conflict.
//   - A claim that is being taken over preallocates nothing, so that it does not refill
//     while it is emptied.
//
// Before an owner is written, the API server is asked whether the claim still has that
// UID: otherwise an address could be recorded for a deleted claim, and be freed.
package claims
