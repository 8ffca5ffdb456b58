// SPDX-License-Identifier: Apache-2.0

// Package announce repeats announcements of addresses in the background, so that ADD returns at
// once. It does not know how an address is announced.
package announce

import (
	"context"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

// announcements is how often an address is announced after the first time, because frames get lost:
// 1, 2 and 4 s after it. Linux ignores a second answer within a second of the first (locktime).
const announcements = 3

// Announcer repeats announcements in the background, for things that have addresses. Its methods
// are safe in parallel and, except Run, return at once.
type Announcer[K comparable] struct {
	announce func(ctx context.Context, of K) (carried bool, err error)
	queue    workqueue.TypedRateLimitingInterface[K]
}

// New returns an Announcer that is idle until Run. announce returns false if the node no longer
// carries the addresses, which ends their announcements.
func New[K comparable](announce func(ctx context.Context, of K) (carried bool, err error)) *Announcer[K] {
	// The pauses are 1 s, 1 s and 2 s.
	return &Announcer[K]{announce, workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemFastSlowRateLimiter[K](time.Second, 2*time.Second, 2))}
}

// Later schedules the announcements after the first one.
func (n *Announcer[K]) Later(of K) { n.queue.AddRateLimited(of) }

// Soon schedules announcements and makes the first one at once.
func (n *Announcer[K]) Soon(of K) { n.queue.Add(of) }

// Run announces until the context ends.
func (n *Announcer[K]) Run(ctx context.Context) {
	defer context.AfterFunc(ctx, n.queue.ShutDown)()
	for {
		of, shutdown := n.queue.Get()
		if shutdown {
			return
		}
		n.fire(ctx, of)
		n.queue.Done(of)
	}
}

// fire announces once and schedules the next announcement.
func (n *Announcer[K]) fire(ctx context.Context, of K) {
	carried, err := n.announce(ctx, of)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot announce", "of", of, "err", err)
	}
	if err != nil || !carried || n.queue.NumRequeues(of) == announcements {
		n.queue.Forget(of)
		return
	}
	n.queue.AddRateLimited(of)
}
