// SPDX-License-Identifier: Apache-2.0

// Package audit finds contradictions between FloatingIPs, IPPools, pods, nodes, the owners of
// addresses and the agents. It writes nothing and locks nothing, so pods come and go
// meanwhile, and its lists are of different moments. A suspect is therefore looked at again,
// with new reads of all objects that it follows from, and counts only if it has lasted
// unchanged for a grace: a [Finding] names objects that disagreed all that time.
//
// The code that frees addresses and counts pools also decides whether an address should be
// freed by now and how a pool counts ([reclaim.Rehearsal], [poolstatus.Stale]). Everything
// else is compared by compare, which is pure.
//
// docs/reference/check.md explains each [Code]; they are stable.
package audit
