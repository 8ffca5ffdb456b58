// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/berth-dev/berth/ipam/wakeup"
)

// rests are addresses whose FloatingIP was deleted before their cooldown. The controller
// creates another FloatingIP for the cooldown. Until the book sees that one, and if no
// controller runs, the book gives the address to no pod. Safe for concurrent use.
type rests struct {
	// cooldown returns the cooldown of a pool.
	cooldown func(pool string) time.Duration
	// over is called when the cooldown of an address is over, serially, without a lock.
	over func(addr netip.Addr)

	mu    sync.Mutex
	all   map[netip.Addr]deletion
	again wakeup.Signal // signals a new address or new pools
}

type deletion struct {
	pool  string
	since time.Time
}

func newRests(cooldown func(pool string) time.Duration, over func(addr netip.Addr)) *rests {
	return &rests{cooldown: cooldown, over: over, all: map[netip.Addr]deletion{}, again: wakeup.New()}
}

// begin notes that the cooldown of an address begins now. It does not block.
func (r *rests) begin(addr netip.Addr, pool string) {
	r.mu.Lock()
	r.all[addr] = deletion{pool, time.Now()}
	r.mu.Unlock()
	r.review()
}

// review makes run check all addresses again, because pools may have changed. It does
// not block.
func (r *rests) review() {
	r.again.Send()
}

// run ends cooldowns when they are over, until ctx ends. It blocks.
func (r *rests) run(ctx context.Context) {
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

// take removes and returns the addresses whose cooldown is over. next is the time until
// the next one; 0: there is none.
func (r *rests) take(now time.Time) (ended []netip.Addr, next time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for addr, deleted := range r.all {
		left := deleted.since.Add(r.cooldown(deleted.pool)).Sub(now)
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
