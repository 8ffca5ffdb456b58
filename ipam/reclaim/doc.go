// SPDX-License-Identifier: Apache-2.0

// Package reclaim frees addresses when their release policy says so. It is a
// level-triggered reconcile loop over FloatingIPs: what it does depends on what
// is, never on which event it saw, so nothing it missed while it was down is
// lost.
//
// It never takes an address from a pod that may be alive. Before it acts on the
// absence of a pod whose deletion the API server did not tell it, or on a workload
// that does not want an address, it asks the API server itself, since the scheduler
// may have seen more than this process's caches have; and every write carries the
// UID and resource version it was decided on. What it cannot find out frees nothing.
//
// # Rules
//
//	policy      pod is there   pod gone or finished, workload wants the address   pod gone or finished, it does not
//	PodDeleted  keep           free                                               free
//	Retain      keep           keep for the workload                              free
//	Never       keep           keep for the workload                              keep for the workload
//
// Kept addresses are freed when spec.retainFor has passed; what an IPClaim or a
// workload preallocates stays. One that a workload preallocates and no pod ever had is
// kept as one of the fixed set only, also by Never and keepOnScaleDown: the controller
// and the scheduler may take addresses at once, and too many together. Freed means
// deleted, or, if a pod had the address and the pool has a cooldown, left without an
// owner until that is over; an address that somebody else freed by deleting its
// FloatingIP gets another one for that time. docs/release.md says
// when each kind of workload wants an address ([workload.wants] here), and what that
// means in every situation.
//
// Of the addresses that pods share out an owner keeps those with pods first, then the
// oldest, as many as its fixed set has ([fixedset.Size]). An address that is freed
// because others come before it leaves their order at once ([rankings.leave]): two that
// are looked at together are not both freed where one is too many.
//
// An address that was restored from a backup is kept without a pod until
// spec.keepUntil, whatever the rules say. When that is over, its workload is looked for
// by name if nobody wrote its UID before ([Reclaimer.findAwaited]), and the rules hold.
//
// An address is of a namespace by that one's UID. If it is gone, though there may be
// another of its name, what was kept in it is freed by every policy
// ([Reclaimer.namespaceGone]). Restored addresses wait for the first of the name
// meanwhile, and are bound to it when keepUntil is over ([Reclaimer.endWait]).
//
// # Several addresses of a pod
//
// A live pod has the addresses that its annotation names and that record it. Others
// that record it were claimed by a scheduler that crashed or was overtaken; they
// are freed as if the pod were gone, if the pod has all that it asks for without
// ([classify]).
//
// An address kept for a pod name is not wanted if the pod of that name is alive and
// bound with others.
//
// # Caveats
//
// Two Reclaimers at once do no harm but double work. An address that an external
// assigner attached is first recorded without its pod, then detached, then given
// away; between the first and the last the scheduler gives it to nobody.
package reclaim
