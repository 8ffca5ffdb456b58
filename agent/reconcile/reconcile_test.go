// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-dev/berth/agent/state"
)

// A record that fails is tried again, and delays no other; its outcome says so until it succeeds.
func TestFailureIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad, good := state.Key{ContainerID: "bad"}, state.Key{ContainerID: "good"}
		boom := errors.New("boom")
		var tries, others atomic.Int32
		r := New(Work{Check: func(_ context.Context, key state.Key) error {
			if key == good {
				others.Add(1)
				return nil
			}
			if tries.Add(1) < 3 {
				return boom
			}
			return nil
		}})
		ctx, cancel := context.WithCancel(t.Context())
		go r.Run(ctx)
		r.CheckSoon(bad)
		r.CheckSoon(good)
		synctest.Wait()
		if others.Load() != 1 || tries.Load() != 1 {
			t.Errorf("at once: %d checks of one and %d of the other, want one each", tries.Load(), others.Load())
		}
		if came := r.Outcomes()[bad]; !errors.Is(came.Err, boom) || !came.Checked.IsZero() {
			t.Errorf("outcome after a failure: %+v", came)
		}
		<-time.After(firstRetry + 2*firstRetry)
		synctest.Wait()
		if came := r.Outcomes()[bad]; tries.Load() != 3 || came.Err != nil || came.Checked.IsZero() {
			t.Errorf("after %d tries: %+v", tries.Load(), came)
		}
		r.Forget(bad)
		if _, has := r.Outcomes()[bad]; has {
			t.Error("the outcome of a record that is gone stays")
		}
		cancel()
		synctest.Wait()
	})
}

// A record that goes while it is compared leaves no outcome.
func TestForgottenMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key, gone, forgotten := state.Key{ContainerID: "c"}, atomic.Bool{}, make(chan struct{})
		r := New(Work{
			Known: func(state.Key) bool { return !gone.Load() },
			Check: func(context.Context, state.Key) error { <-forgotten; return errors.New("boom") },
		})
		ctx, cancel := context.WithCancel(t.Context())
		go r.Run(ctx)
		r.CheckSoon(key)
		synctest.Wait()
		gone.Store(true)
		r.Forget(key)
		close(forgotten)
		synctest.Wait()
		if came := r.Outcomes(); len(came) > 0 {
			t.Errorf("outcomes of records that are gone: %+v", came)
		}
		cancel()
		synctest.Wait()
	})
}

// A record that cannot be finished is tried again at its own rate, however often it is compared,
// and says so all the while.
func TestUnfinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key, boom := state.Key{ContainerID: "c"}, errors.New("boom")
		var tries atomic.Int32
		var r *Reconciler
		r = New(Work{
			Check: func(context.Context, state.Key) error { r.FinishSoon(key); return nil },
			Finish: func(context.Context, state.Key) error {
				if tries.Add(1) < 3 {
					return boom
				}
				return nil
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		go r.Run(ctx)
		for _, c := range []struct {
			wait  time.Duration
			tries int32
			err   error
		}{{0, 1, boom}, {firstRetry / 2, 1, boom}, {firstRetry, 2, boom}, {2 * firstRetry, 4, nil}} {
			<-time.After(c.wait)
			r.CheckSoon(key)
			synctest.Wait()
			if came := r.Outcomes()[key]; tries.Load() != c.tries || !errors.Is(came.Err, c.err) || came.Checked.IsZero() {
				t.Errorf("after %s more %d tries and %+v, want %d and %v", c.wait, tries.Load(), came, c.tries, c.err)
			}
		}
		cancel()
		synctest.Wait()
	})
}

// A plugin that hangs in one finish delays no check.
func TestHangingFinishDelaysNoCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		checked := false
		r := New(Work{
			Check:  func(context.Context, state.Key) error { checked = true; return nil },
			Finish: func(ctx context.Context, _ state.Key) error { <-ctx.Done(); return ctx.Err() },
		})
		ctx, cancel := context.WithCancel(t.Context())
		go r.Run(ctx)
		for _, id := range []string{"1", "2", "3", "4", "5", "6", "7", "8", "9"} {
			r.FinishSoon(state.Key{ContainerID: id})
		}
		synctest.Wait()
		r.CheckSoon(state.Key{ContainerID: "c"})
		synctest.Wait()
		if !checked || r.Waiting() != 1 {
			t.Errorf("checked: %v, %d wait, want a check and one that waits", checked, r.Waiting())
		}
		cancel()
		synctest.Wait()
	})
}
