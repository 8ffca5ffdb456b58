// SPDX-License-Identifier: Apache-2.0

// Package claims reconciles IPClaims in the loop of package preallocation: it
// preallocates their addresses and writes the claims' status. It is level-triggered: its
// actions depend on the present state, never on an event.
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
// Before an owner is written, the API server is asked whether the claim still has that
// UID: otherwise an address could be recorded for a deleted claim, and be freed.
package claims
