// SPDX-License-Identifier: Apache-2.0

// Package galaxyimport plans the move of a cluster's addresses from Galaxy to Berth: the
// IPPools, IPClaims and FloatingIPs to create, and the objects that are left out, with
// reasons. It does no I/O.
//
// Its first rule: an address that a live pod uses through Galaxy is recorded for that
// pod, so that Berth gives it to no other pod. A live pod is bound to a node and has not
// finished. It is found by the UID in Galaxy's record. If the record is missing or names
// another pod, it is found by the annotation that Galaxy wrote when it bound the pod.
//
// # Import of a Galaxy FloatingIP
//
//	label "reserved"                  reserved
//	a live pod has it                 held by the pod, for the pod's workload or claim
//	key with a pool                   retained for the claim, policy Never
//	no pod, policy immutable or never retained for the workload of the key
//	... never, and no such workload   retained for a workload of that name, as Galaxy does
//	... immutable, no such workload   not imported: Galaxy frees it, or failed to
//	no pod, policy pod-delete         not imported: Galaxy frees it
//
// Galaxy's pools have no namespace, Berth's claims do: a Galaxy pool that several
// namespaces use becomes a claim in each of them.
package galaxyimport
