// SPDX-License-Identifier: Apache-2.0

package agent

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

// announcePatience limits how long an announcement waits for another call for the
// same address. Such a call mostly ends the announcements anyway.
const announcePatience = time.Second

// announcer repeats announcements in the background, so that ADD returns at once.
type announcer struct {
	// announce returns false where the node no longer carries the record's
	// addresses.
	announce func(ctx context.Context, record *state.Container) (carried bool, err error)
	queue    workqueue.TypedRateLimitingInterface[*state.Container]
}

func newAnnouncer(announce func(context.Context, *state.Container) (bool, error)) announcer {
	return announcer{announce: announce, queue: workqueue.NewTypedRateLimitingQueue(announceBackoff())}
}

// later schedules the announcements of the record's addresses and returns at once.
func (n *announcer) later(record *state.Container) {
	if len(record.Addresses()) > 0 {
		n.queue.AddRateLimited(record)
	}
}

// soon schedules announcements of which the first does not wait; it returns at once.
func (n *announcer) soon(record *state.Container) {
	if len(record.Addresses()) > 0 {
		n.queue.Add(record)
	}
}

// run announces until the context ends.
func (n *announcer) run(ctx context.Context) {
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
func (n *announcer) fire(ctx context.Context, record *state.Container) {
	carried, err := n.announce(ctx, record)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot announce", "ips", addressList(record), "err", err)
	}
	if err != nil || !carried || n.queue.NumRequeues(record) == announcements {
		n.queue.Forget(record)
		return
	}
	n.queue.AddRateLimited(record)
}

// AnnounceAll announces every address that this node carries, now and some times more; it
// returns at once. Its caller calls it after a change of the uplink's MAC.
func (a *Agent) AnnounceAll(context.Context) {
	for _, record := range a.Store.List() {
		if record.Phase == state.Added {
			a.announce.soon(record)
		}
	}
}

// announceAgain announces the record's addresses if this node still carries them
// for it. It holds the locks of the addresses meanwhile: an announcement after the
// withdrawal would draw the traffic away from the address's new node.
func (a *Agent) announceAgain(ctx context.Context, record *state.Container) (carried bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, announcePatience)
	defer cancel()
	err = a.withAddresses(ctx, record, func(now *state.Container) error {
		if now.Phase != state.Added {
			return nil
		}
		carried = true
		return a.eachInterface(now, driver.Announce)
	})
	return carried, err
}
