// SPDX-License-Identifier: Apache-2.0

// Package reclaim frees addresses when their release policy says so. It is a
// level-triggered reconcile loop over FloatingIPs: what it does depends on what
// is, never on which event it saw, so nothing it missed while it was down is
// lost.
//
// It never takes an address from a pod that may be alive. Before it acts on the
// absence of a pod or a workload it asks the API server itself, since the
// scheduler may have seen it before this process's cache did; and every write
// carries the UID and resource version it was decided on.
//
// # Rules
//
//	policy      pod is there   pod gone or finished, workload wants the address   pod gone or finished, it does not
//	PodDeleted  keep           free                                               free
//	Retain      keep           keep for the workload                              free
//	Never       keep           keep for the workload                              keep for the workload
//
// A workload wants an address while it exists under the recorded UID and: a
// StatefulSet, while the pod's ordinal is in its range; a Deployment, while the
// address is among its oldest, as many as it has replicas. So the addresses that
// a rolling update needed in addition are the ones given back when it is over. A
// pod without a controller is its own workload. Where a crash left two addresses
// for one pod name, the older is wanted.
//
// A pod that is bound has one address. Others that were claimed for it, by a
// scheduler that crashed or was overtaken, are surplus, and freed as if the pod
// were gone: those recorded for another node than the pod's, if another is recorded
// for the pod's node, and if the pod's annotation does not name them.
package reclaim
