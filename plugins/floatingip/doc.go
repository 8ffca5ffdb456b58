// SPDX-License-Identifier: Apache-2.0

// Package floatingip is the scheduler plugin: no pod lands on a node that has no
// address for it.
//
//	PreFilter  serial    compiles the pod into a request; what can serve it
//	Filter     parallel  have the node's pools an address for every part of it?
//	Score      parallel  how much room have they?
//	Reserve    serial    takes the addresses in memory, all or none
//	Bind       parallel  claims them: one API write each; then the stock Binding,
//	                     with the FloatingIPs' names as an annotation
//	Unreserve  parallel  gives them back
//
// PreFilterExtensions think victims of a preemption away: [Plugin.RemovePod].
//
// The claim is made in Bind and not in PreBind because kube-scheduler writes
// status.nominatedNodeName before it calls a PreBind that has work to do
// (NominatedNodeNameForExpectation, on since 1.35): that would be a second write
// per pod. Bind runs after everything slow, such as volumes, and a failed Bind
// is unreserved as a failed PreBind is.
//
// # Waking pods up
//
// Pods that found no address wait in the scheduling queue. The plugin wakes them
// (Handle.Activate), as many as addresses came free, when its own book has seen it: see
// [line]. It registers no cluster event for FloatingIPs: the scheduler would watch them by
// another informer, which may be ahead of the book, and a pod woken by it would
// find the book unchanged and go back to wait
// (https://github.com/kubernetes/kubernetes/issues/93552). Activate also reaches
// a pod that is being scheduled at that moment. So it does where a node's InternalIP
// changed and a pool serves it by that: kube-scheduler has no event for it.
//
// # Caveats
//
// A process has one [Factory]: its New is called for every profile, and all
// share one book.
package floatingip
