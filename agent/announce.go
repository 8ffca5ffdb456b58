// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/state"
)

// announceAfter is when an address is announced again after the plugin did so
// once: frames get lost, and neighbours ignore a second answer within a second
// of the first (Linux: locktime).
var announceAfter = [...]time.Duration{time.Second, 2 * time.Second, 4 * time.Second}

// announcer repeats announcements without holding up ADD.
type announcer struct {
	kernel kernel
	queue  chan *state.Attachment
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

// fire announces what is due and returns what is still to come.
func (n *announcer) fire(ctx context.Context, pending []announcement, now time.Time) []announcement {
	var rest []announcement
	for _, p := range pending {
		if p.at.After(now) {
			rest = append(rest, p)
			continue
		}
		if err := n.kernel.Announce(p.record); err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot announce", "ips", addressList(p.record), "err", err)
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
