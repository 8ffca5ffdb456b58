// SPDX-License-Identifier: Apache-2.0

// Package floatingip is the scheduler plugin: no pod lands on a node that has no
// address for it.
//
//	PreFilter  serial    compiles the pod into a request; which pools can serve it
//	Filter     parallel  is the node in one of them?
//	Reserve    serial    takes an address in memory
//	Bind       parallel  claims it: one API write; then the stock Binding, with the
//	                     FloatingIP's name as an annotation
//	Unreserve  parallel  gives it back
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
// (Handle.Activate) when its own book has seen an address come free, and
// registers no cluster event for FloatingIPs: the scheduler would watch them by
// another informer, which may be ahead of the book, and a pod woken by it would
// find the book unchanged and go back to wait
// (https://github.com/kubernetes/kubernetes/issues/93552). Activate also reaches
// a pod that is being scheduled at that moment.
//
// # Caveats
//
// A process has one [Factory]: its New is called for every profile, and all
// share one book.
package floatingip
