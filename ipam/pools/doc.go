// SPDX-License-Identifier: Apache-2.0

// Package pools compiles IPPool objects into an immutable [Snapshot]. It defines the meaning of a
// pool's fields: ranges, exclusions, and the nodes and namespaces that a pool serves. It does no
// I/O and does not know which addresses are in use.
//
// In a snapshot no address belongs to two pools: where pools overlap, the older pool keeps the
// address, and the overlap is reported. An invalid pool is left out and reported; the other pools
// remain usable.
package pools
