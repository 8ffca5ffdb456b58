// SPDX-License-Identifier: Apache-2.0

package keylock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
)

func TestLocks(t *testing.T) {
	var l Locks
	var inside, total atomic.Int32
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() {
			unlock, err := l.Lock(t.Context(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			if inside.Add(1) != 1 {
				t.Error("two hold one lock")
			}
			total.Add(1)
			inside.Add(-1)
			unlock()
		})
	}
	group.Wait()
	unlock, err := l.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Lock(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("Lock() = %v for a caller that gave up", err)
	}
	other, err := l.Lock(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	other()
	unlock()
	if total.Load() != 50 || len(l.held) != 0 {
		t.Errorf("%d calls, %d locks left", total.Load(), len(l.held))
	}
}
