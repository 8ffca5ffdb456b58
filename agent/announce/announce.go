// SPDX-License-Identifier: Apache-2.0

// Package announce repeats announcements of addresses in the background, so that ADD returns at
// once. It does not know how an address is announced.
package announce

import (
	"context"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/state"
)

// announcements is how often the agent announces an address after ADD did so
// once, because frames get lost: 1, 2 and 4 s after ADD. Linux ignores a second
// answer within a second of the first (locktime).
const announcements = 3

// announceBackoff waits 1 s twice and then 2 s.
func announceBackoff() workqueue.TypedRateLimiter[*state.Container] {
	return workqueue.NewTypedItemFastSlowRateLimiter[*state.Container](time.Second, 2*time.Second, 2)
}

// Announcer repeats announcements in the background, so that ADD returns at once.
type Announcer struct {
	// announce returns false where the node no longer carries the record's
	// addresses.
	announce func(ctx context.Context, record *state.Container) (carried bool, err error)
	queue    workqueue.TypedRateLimitingInterface[*state.Container]
}

// New returns an Announcer that is idle until Run. announce returns false where the node no longer
// carries the record's addresses, which ends their announcements.
func New(announce func(context.Context, *state.Container) (bool, error)) *Announcer {
	return &Announcer{announce: announce, queue: workqueue.NewTypedRateLimitingQueue(announceBackoff())}
}

// Later schedules the announcements of the record's addresses and returns at once.
func (n *Announcer) Later(record *state.Container) {
	if len(record.Addresses()) > 0 {
		n.queue.AddRateLimited(record)
	}
}

// Soon schedules announcements of which the first does not wait; it returns at once.
func (n *Announcer) Soon(record *state.Container) {
	if len(record.Addresses()) > 0 {
		n.queue.Add(record)
	}
}

// Run announces until the context ends.
func (n *Announcer) Run(ctx context.Context) {
	defer context.AfterFunc(ctx, n.queue.ShutDown)()
	for {
		record, shutdown := n.queue.Get()
		if shutdown {
			return
		}
		n.fire(ctx, record)
		n.queue.Done(record)
	}
}

// fire announces once and schedules the next announcement.
func (n *Announcer) fire(ctx context.Context, record *state.Container) {
	carried, err := n.announce(ctx, record)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot announce", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name), "err", err)
	}
	if err != nil || !carried || n.queue.NumRequeues(record) == announcements {
		n.queue.Forget(record)
		return
	}
	n.queue.AddRateLimited(record)
}
