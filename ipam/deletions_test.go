// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestCooldowns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var short atomic.Int64
		short.Store(int64(time.Minute))
		var mu sync.Mutex
		var over []string
		r := newDeletions(func(pool string) time.Duration {
			if pool == "short" {
				return time.Duration(short.Load())
			}
			return 10 * time.Minute
		}, func(addr netip.Addr) {
			mu.Lock()
			defer mu.Unlock()
			over = append(over, addr.String())
		})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go r.run(ctx)
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(over, want) {
				t.Fatalf("over are %v, want %v", over, want)
			}
		}
		pass := time.Sleep //nolint:forbidigo // on the clock of synctest
		a, b, c := netip.MustParseAddr("10.0.70.2"), netip.MustParseAddr("10.0.70.3"), netip.MustParseAddr("10.0.70.4")
		r.begin(a, "long", 0)
		pass(time.Second)
		r.begin(b, "short", 0)
		pass(time.Minute - time.Nanosecond)
		expect()
		pass(time.Nanosecond)
		expect(b.String())
		// A change of the pool's cooldown applies to addresses that are cooling down.
		r.begin(c, "short", 0)
		pass(30 * time.Second)
		short.Store(int64(40 * time.Second))
		r.again.Send()
		pass(10*time.Second - time.Nanosecond)
		expect(b.String())
		pass(time.Nanosecond)
		expect(b.String(), c.String())
		pass(10 * time.Minute)
		expect(b.String(), c.String(), a.String())
		// One that its last node may carry rests for longer.
		r.begin(a, "short", time.Hour)
		pass(time.Hour - time.Nanosecond)
		expect(b.String(), c.String(), a.String())
		pass(time.Nanosecond)
		expect(b.String(), c.String(), a.String(), a.String())
	})
}
