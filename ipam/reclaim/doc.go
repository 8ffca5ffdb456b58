// SPDX-License-Identifier: Apache-2.0

// Package reclaim frees addresses by their release policy. It is a level-triggered reconcile loop
// over FloatingIPs: a decision depends on the present state, never on an event. So missed events do
// no harm.
//
// It never takes an address from a pod that may be alive. If it saw no deletion event for a missing
// pod, or if a workload seems not to want an address, it asks the API server before it acts,
// because the scheduler may know newer objects than this process's caches. Every write carries the
// UID and resource version on which the decision is based. If a lookup fails, the address is kept.
//
// # Rules
//
//	policy     | pod is there | pod gone or finished, workload wants the address | pod gone or finished, it does not
//	PodDeleted | keep         | free                                             | free
//	Retain     | keep         | keep for the workload                            | free
//	Never      | keep         | keep for the workload                            | keep for the workload
//
// Kept addresses are freed when spec.retainFor has passed, except addresses that an IPClaim
// preallocates in a pool without maxRetainFor. To free an address means to delete its FloatingIP.
// If a pod had the address and the pool has a cooldown, the FloatingIP first stays without an owner
// until the cooldown is over. If another client deletes the FloatingIP of such an address, the
// reclaimer creates a new one for the cooldown. An address that a host outside of the cluster has
// ([v1alpha1.FloatingIP.InConflict]) stays without an owner for a day, or until somebody deletes
// the FloatingIP. docs/explanation/release.md says when each kind of workload wants an address
// ([workload.wants] here) in every situation.
//
// Of addresses that any of its pods can take, an owner keeps as many as its fixed set has
// ([fixedset.Size]): first those with pods, then the oldest. An address that is freed because of
// its rank leaves the ranking immediately ([rankings.leave]), so that two concurrent decisions do
// not free two addresses if one is surplus.
//
// An address that was restored from a backup is kept without a pod until spec.keepUntil, even if
// these rules would free it. After that the reclaimer looks up its workload by name, unless its UID
// was written before ([Reclaimer.findAwaited]), and the rules apply.
//
// An address belongs to a namespace by UID. If that namespace is gone, even if another
// has its name, all addresses kept in it are freed, under any policy
// ([Reclaimer.namespaceGone]). Restored addresses wait for the first namespace of the name,
// and are bound to it when keepUntil is over ([Reclaimer.endWait]).
//
// # Live migrations
//
// While a virtual machine moves, its address has two pods: the holder, and a twin, which the
// scheduler records when it binds the target pod. When the target took over ([tookOver]), they
// swap. When the holder is gone, the twin becomes the holder; when the twin is gone, it is dropped
// ([turnOf]). So the release policy never sees an address with a twin.
//
// # Addresses of nodes
//
// A Node owns the addresses that pools give it ([v1alpha1.NodeAddresses]). It keeps an address
// while the pool gives it the address. After that the address goes into cooldown, is freed, or is
// kept for a node of the same name ([nodeClaimOf]). Release policies do not apply. Before anybody
// else gets the address, the agent of the node is asked, as for a pod's address.
//
// # Several addresses of a pod
//
// A live pod has the addresses that record it. A scheduler that crashed, or was overtaken by
// another scheduler, may have recorded the pod in more addresses. These are freed as if the pod
// were gone, once the pod's status says that it runs with others ([classify]). The annotations of a
// bound pod do not matter here.
//
// An address kept for a pod name is not wanted if a live pod of that name is bound with
// other addresses.
//
// # Caveats
//
// Two Reclaimers at the same time do no harm, but do the work twice. An address that an external
// assigner attached is first recorded without its pod, then detached, then released; between the
// first and the last step the scheduler gives it to no pod.
package reclaim
