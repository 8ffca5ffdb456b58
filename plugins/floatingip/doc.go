// SPDX-License-Identifier: Apache-2.0

// Package floatingip is the scheduler plugin: no pod lands on a node that has no
// address for it.
//
//	PreFilter  serial    compiles the pod into a request; finds its candidates
//	Filter     parallel  do the node's pools have an address for every part, and is its
//	                     agent ready?
//	PostFilter serial    prevents preemption for addresses that become free anyway
//	Score      parallel  how many free addresses do the pools have?
//	Reserve    serial    takes the addresses in memory, all or none
//	PreBind    parallel  commits them, and the external assigner attaches them, if a
//	                     pool needs it
//	Bind       parallel  commits the others: one API write each; then posts the Binding,
//	                     with the FloatingIPs' names as an annotation
//	Unreserve  parallel  gives them back
//
// PreFilterExtensions remove the victims of a preemption: [Plugin.RemovePod].
//
// kube-scheduler writes status.nominatedNodeName before it calls a PreBind that has work to do
// (NominatedNodeNameForExpectation, on since 1.35). This would be a second write for each pod. So
// PreBind has work only for the external assigner, which may be slow. Then PreBind has advantages:
// the cluster autoscaler sees the node, volumes are provisioned meanwhile, and a preemption cancels
// the attempt instead of deleting the pod.
//
// # Waking pods up
//
// Pods that found no address wait in the scheduling queue. When the book sees that addresses became
// free, the plugin wakes as many pods (Handle.Activate): see [line]. It registers no cluster event
// for FloatingIPs: the scheduler would watch them with another informer, which may be ahead of the
// book. A pod woken by that informer would find the book unchanged and wait again
// (https://github.com/kubernetes/kubernetes/issues/93552). Activate also reaches a pod that is
// being scheduled at that moment. The plugin also wakes pods in three cases for which
// kube-scheduler has no event: a pool serves a node because the node's InternalIP changed; the
// node's agent became ready; a nominated pod will not get addresses on the node any more.
//
// # Caveats
//
// A process has one [Factory]. The framework calls its New for every profile, and all
// profiles share one book.
package floatingip
