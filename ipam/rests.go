// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"net/netip"
	"sync"
	"time"
)

// rests are addresses whose FloatingIP somebody deleted although their cooldown was
// yet to come. The controller makes another FloatingIP for the rest; until that is
// seen, and where no controller runs, the book keeps them from everybody. Safe in
// parallel.
type rests struct {
	// cooldown of a pool.
	cooldown func(pool string) time.Duration
	// over is called when one has rested, serially and without a lock.
	over func(addr netip.Addr)

	mu    sync.Mutex
	all   map[netip.Addr]deletion
	again chan struct{} // one of them, or a pool, is new
}

type deletion struct {
	pool  string
	since time.Time
}

func newRests(cooldown func(pool string) time.Duration, over func(addr netip.Addr)) *rests {
	return &rests{cooldown: cooldown, over: over, all: map[netip.Addr]deletion{}, again: make(chan struct{}, 1)}
}

// begin notes that an address of a pool rests from now on. It does not block.
func (r *rests) begin(addr netip.Addr, pool string) {
	r.mu.Lock()
	r.all[addr] = deletion{pool, time.Now()}
	r.mu.Unlock()
	r.review()
}

// review looks at all anew: pools changed. It does not block.
func (r *rests) review() {
	select {
	case r.again <- struct{}{}:
	default:
	}
}

// run ends rests when they are over, until ctx ends. It blocks.
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

// take returns those that are over, and forgets them, and in how long the next is;
// 0: there is none.
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
