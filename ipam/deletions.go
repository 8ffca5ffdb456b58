// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/berth-dev/berth/ipam/wakeup"
)

// deletions ends cooldowns in the book that began because somebody deleted the FloatingIP of an
// address with an owner. The controller records such a cooldown in a new FloatingIP (package
// reclaim, deletions.go). Only the book keeps the address from other pods until it sees this
// FloatingIP, or if no controller runs. Safe for concurrent use.
type deletions struct {
	// cooldown returns the cooldown of a pool.
	cooldown func(pool string) time.Duration
	// over is called when the cooldown of an address is over, serially, without a lock.
	over func(addr netip.Addr)

	mu    sync.Mutex
	all   map[netip.Addr]deletion
	again wakeup.Signal // makes run check all addresses, because there is a new one or pools have changed
}

type deletion struct {
	pool  string
	since time.Time
	// least is the shortest cooldown of the address.
	least time.Duration
}

func newDeletions(cooldown func(pool string) time.Duration, over func(addr netip.Addr)) *deletions {
	return &deletions{cooldown: cooldown, over: over, all: map[netip.Addr]deletion{}, again: wakeup.New()}
}

// begin notes that the cooldown of an address begins now. The cooldown takes at least least. It
// does not block.
func (r *deletions) begin(addr netip.Addr, pool string, least time.Duration) {
	r.mu.Lock()
	r.all[addr] = deletion{pool, time.Now(), least}
	r.mu.Unlock()
	r.again.Send()
}

// run ends cooldowns when they are over, until ctx ends. It blocks.
func (r *deletions) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.again:
		case <-timer.C:
		}
		ended, next := r.take(time.Now())
		for _, addr := range ended {
			r.over(addr)
		}
		if timer.Stop(); next > 0 {
			timer.Reset(next)
		}
	}
}

// take removes and returns the addresses whose cooldown is over. next is the time until the next
// cooldown is over; 0: there is none.
func (r *deletions) take(now time.Time) (ended []netip.Addr, next time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for addr, deleted := range r.all {
		left := deleted.since.Add(max(r.cooldown(deleted.pool), deleted.least)).Sub(now)
		switch {
		case left <= 0:
			ended = append(ended, addr)
			delete(r.all, addr)
		case next == 0 || left < next:
			next = left
		}
	}
	return ended, next
}
