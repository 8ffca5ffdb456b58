// SPDX-License-Identifier: Apache-2.0

// Package backup says what of Berth's objects a backup has, and plans how a cluster
// gets them back. It does no I/O.
//
// # What a backup is
//
// All IPPools, IPClaims and FloatingIPs, without what the API server sets. Each kind
// is one snapshot, addresses first: whatever an address refers to is there, unless it
// was deleted since.
//
// # What becomes of an address
//
//	its pod lives, by UID          held by the pod, as it was
//	a live pod got it later        held by that pod ([planner.lateAddress])
//	Retain, Never, or a claim's    retained for its owner
//	PodDeleted, and its pod gone   not restored
//	at rest                        rests for the remaining time
//	reserved                       reserved
//
// # Owners
//
// A rebuilt cluster has the same workloads under other UIDs, now or later. An owner
// that exists is written with its present UID, one that does not with
// [v1alpha1.NilUID]: the scheduler gives such an address to the pods of the first
// owner of that group, kind, namespace and name, and writes its UID. Spec.keepUntil
// holds all that has no pod until then, also where the owner exists: it may have its
// replicas later. When the time is over the controller looks for the owner a last
// time by name, and then the release policy decides.
//
// # What a plan guards
//
// An object that exists is never changed but in two cases: a live pod runs with the
// address, or it is at rest, so nobody's; and only as it was seen. An address of
// another owner is a conflict.
package backup
