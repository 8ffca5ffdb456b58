// SPDX-License-Identifier: Apache-2.0

// Package pools compiles IPPool objects into an immutable [Snapshot]. It owns
// the meaning of a pool's fields: ranges, exclusions, which nodes and namespaces
// a pool serves. It does no I/O and knows nothing of addresses in use.
//
// In a snapshot no address belongs to two pools: where pools overlap, the older
// one keeps the address and the younger one loses it, and the overlap is
// reported. A pool that cannot be compiled is left out and reported; the others
// stand.
package pools
