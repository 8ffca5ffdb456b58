// SPDX-License-Identifier: Apache-2.0

// Package backup defines the content of a backup of Berth's objects, and plans its restore.
// It does no I/O.
//
// # Content of a backup
//
// A backup has all of Berth's objects but NodeAssignments, without the fields that the API
// server sets. Each kind is one snapshot, addresses first: the objects that an address
// refers to are in the backup, unless they were deleted in between.
//
// # Restore of an address
//
//	its pod lives, by UID          held by the pod, as it was
//	a live pod got it later        held by that pod ([planner.lateAddress])
//	Retain, Never, or a claim's    retained for its owner
//	PodDeleted, and its pod gone   not restored
//	at rest                        rests for the remaining time
//	reserved                       reserved, as it was
//
// # Owners
//
// A rebuilt cluster has the same workloads with other UIDs, now or later. An existing
// owner is written with its present UID, a missing one with [v1alpha1.NilUID]: the
// scheduler gives such an address to the pods of the first owner of that group, kind,
// namespace and name, and writes its UID. Addresses without a pod are kept until
// spec.keepUntil, even if the owner exists, because it may get its replicas later. After
// that the controller looks the owner up by name a last time, and then the release policy
// decides.
//
// # Guarantees of a plan
//
// An existing object is changed in two cases only: a live pod runs with the address, or
// the address is at rest, so it has no owner. It is changed only if it is still as read.
// An address of another owner is a conflict.
package backup
