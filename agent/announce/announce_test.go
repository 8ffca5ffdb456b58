// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestAnnouncements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var announced atomic.Int32
		a := New(func(context.Context, string) (bool, error) {
			announced.Add(1)
			return true, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		go a.Run(ctx)
		a.Later("c")
		for _, step := range []struct {
			wait time.Duration
			want int32
		}{{900 * time.Millisecond, 0}, {200 * time.Millisecond, 1}, {time.Second, 2}, {2 * time.Second, 3}, {time.Hour, 3}} {
			synctest.Wait()
			<-time.After(step.wait)
			synctest.Wait()
			if got := announced.Load(); got != step.want {
				t.Errorf("after %v: %d announcements, want %d", step.wait, got, step.want)
			}
		}
		cancel()
		synctest.Wait()
	})
}
