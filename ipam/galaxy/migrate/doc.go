// SPDX-License-Identifier: Apache-2.0

// Package migrate plans how a cluster's addresses go from Galaxy to Berth: which
// IPPools, IPClaims and FloatingIPs are to be created, and what is left out and
// why. It does no I/O.
//
// What it guards above all: an address that a live pod of Galaxy's uses is
// recorded for that pod, so that Berth gives it to nobody else. A live pod is one
// that is bound to a node and has not finished. It is found by the UID that
// Galaxy recorded, and where Galaxy's record says something else or is missing,
// by what Galaxy wrote into the pod when it bound it.
//
// # What becomes of a Galaxy FloatingIP
//
//	label "reserved"                  reserved
//	a live pod has it                 held by the pod, for the pod's workload or claim
//	key with a pool                   retained for the claim, policy Never
//	no pod, policy immutable or never retained for the workload of the key
//	... never, and no such workload   retained for a workload of that name, as Galaxy does
//	... immutable, no such workload   not imported: Galaxy frees it, or forgot to
//	no pod, policy pod-delete         not imported: Galaxy frees it
//
// Galaxy's pools are those of the cluster, Berth's claims belong to a namespace:
// a Galaxy pool that several namespaces use becomes a claim in each.
package migrate
