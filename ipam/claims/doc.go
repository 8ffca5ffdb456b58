// SPDX-License-Identifier: Apache-2.0

// Package claims keeps IPClaims: it takes the addresses that a claim asks for
// before any pod does, moves those that it takes over from another claim, and
// writes the claim's status. It is a level-triggered loop: what it does depends
// on what is, never on which event it saw.
//
// It frees nothing. What a claim has beyond its size, or after its end, is freed
// by package reclaim, and shows here as Oversized until it is gone.
//
// # What belongs to a claim
//
// Every FloatingIP whose owner has the claim's namespace and name. Where the UID
// is another's, an earlier claim of the name left it: the claim makes it its own,
// up to its size. What is written about release (policy, retainFor) follows the
// claim.
//
// # Taking over
//
// A claim with takeOver moves what is recorded under the other claim's name,
// whether that still exists or not, up to its own size of each family; those with
// pods go first. Only the owner in the FloatingIP changes, by a conditional
// write, so an address always belongs to exactly one of the two, and a pod that
// holds it notices nothing.
//
//   - Of several claims that take over the same one, the oldest does; the others
//     wait and say so.
//   - Claims that take over each other, directly or in a circle, move nothing and
//     say so.
//   - A claim that is being taken over preallocates nothing, so that it does not
//     fill up again while it is emptied.
//
// Before an owner is written the API server itself is asked whether the claim is
// the one under that UID: otherwise an address could be recorded for a claim that
// was deleted, and be freed for that.
package claims
