// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/state"
)

// announceAfter is when an address is announced again after the plugin did so
// once: frames get lost, and neighbours ignore a second answer within a second
// of the first (Linux: locktime).
var announceAfter = [...]time.Duration{time.Second, 2 * time.Second, 4 * time.Second}

// announcePatience is how long an announcement waits for a call that is under
// way for the same address; such a call mostly ends it anyway.
const announcePatience = time.Second

// announcer repeats announcements without holding up ADD.
type announcer struct {
	// announce says false where the record's addresses are no longer here.
	announce func(ctx context.Context, record *state.Attachment) (carried bool, err error)
	queue    chan *state.Attachment
}

// later asks for the announcements. When the queue is full they are left out:
// the plugin announced once.
func (n *announcer) later(record *state.Attachment) {
	if len(record.Addresses) == 0 {
		return
	}
	select {
	case n.queue <- record:
	default:
	}
}

type announcement struct {
	at     time.Time
	round  int
	record *state.Attachment
}

func (n *announcer) run(ctx context.Context) {
	var pending []announcement
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if next, ok := earliest(pending); ok {
			timer.Reset(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return
		case record := <-n.queue:
			pending = append(pending, announcement{at: time.Now().Add(announceAfter[0]), record: record})
		case now := <-timer.C:
			pending = n.fire(ctx, pending, now)
		}
	}
}

// announceAgain announces the record's addresses if this node still carries them
// for it. It holds their locks meanwhile: an announcement after the withdrawal
// would draw the traffic away from the node that has the address now.
func (a *Agent) announceAgain(ctx context.Context, record *state.Attachment) (carried bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, announcePatience)
	defer cancel()
	unlock, err := a.lockAddresses(ctx, record.Addresses)
	if err != nil {
		return false, fmt.Errorf("wait for another call for the pod's addresses: %w", err)
	}
	defer unlock()
	now, err := a.Store.Get(record.Key())
	if err != nil || now == nil || now.Phase != state.Added {
		return false, err
	}
	return true, a.Kernel.Announce(record)
}

// fire announces what is due and returns what is still to come.
func (n *announcer) fire(ctx context.Context, pending []announcement, now time.Time) []announcement {
	var rest []announcement
	for _, p := range pending {
		if p.at.After(now) {
			rest = append(rest, p)
			continue
		}
		carried, err := n.announce(ctx, p.record)
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot announce", "ips", addressList(p.record), "err", err)
		}
		if err != nil || !carried {
			continue
		}
		if p.round+1 < len(announceAfter) {
			step := announceAfter[p.round+1] - announceAfter[p.round]
			rest = append(rest, announcement{at: now.Add(step), round: p.round + 1, record: p.record})
		}
	}
	return rest
}

func earliest(pending []announcement) (at time.Time, ok bool) {
	for _, p := range pending {
		if !ok || p.at.Before(at) {
			at, ok = p.at, true
		}
	}
	return at, ok
}
