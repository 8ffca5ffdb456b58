// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var short atomic.Int64
		short.Store(int64(time.Minute))
		var over []string
		r := newRests(func(pool string) time.Duration {
			if pool == "short" {
				return time.Duration(short.Load())
			}
			return 10 * time.Minute
		}, func(addr netip.Addr) { over = append(over, addr.String()) })
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go r.run(ctx)
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(over, want) {
				t.Fatalf("over are %v, want %v", over, want)
			}
		}
		a, b, c := netip.MustParseAddr("10.0.70.2"), netip.MustParseAddr("10.0.70.3"), netip.MustParseAddr("10.0.70.4")
		r.begin(a, "long")
		time.Sleep(time.Second)
		r.begin(b, "short")
		time.Sleep(time.Minute - time.Nanosecond)
		expect()
		time.Sleep(time.Nanosecond)
		expect(b.String())
		// The pool's cooldown counts as it is now.
		r.begin(c, "short")
		time.Sleep(30 * time.Second)
		short.Store(int64(40 * time.Second))
		r.review()
		time.Sleep(10*time.Second - time.Nanosecond)
		expect(b.String())
		time.Sleep(time.Nanosecond)
		expect(b.String(), c.String())
		time.Sleep(10 * time.Minute)
		expect(b.String(), c.String(), a.String())
	})
}
