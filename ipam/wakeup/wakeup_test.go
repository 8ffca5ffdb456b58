// SPDX-License-Identifier: Apache-2.0

package wakeup

import (
	"sync"
	"testing"
	"testing/synctest"
)

// pending returns how often a loop would wake.
func pending(s Signal) (times int) {
	for {
		select {
		case <-s:
			times++
		default:
			return times
		}
	}
}

func TestSignal(t *testing.T) {
	for name, test := range map[string]struct {
		do   func(s Signal)
		want int
	}{
		"nobody sent":            {func(Signal) {}, 0},
		"sent":                   {Signal.Send, 1},
		"sent three times":       {func(s Signal) { s.Send(); s.Send(); s.Send() }, 1},
		"sent after a wake":      {func(s Signal) { s.Send(); <-s; s.Send() }, 1},
		"dropped":                {func(s Signal) { s.Send(); s.Drop() }, 0},
		"dropped without a send": {Signal.Drop, 0},
		"sent after a drop":      {func(s Signal) { s.Send(); s.Drop(); s.Send() }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := New()
			test.do(s)
			if got := pending(s); got != test.want {
				t.Errorf("the loop wakes %d times, want %d", got, test.want)
			}
		})
	}
}

// The loop sees the last value although it wakes less often than values come.
func TestNothingIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		var mu sync.Mutex
		var value, seen int
		done := make(chan struct{})
		go func() {
			for {
				select {
				case <-done:
					return
				case <-s:
				}
				mu.Lock()
				seen = value
				mu.Unlock()
			}
		}()
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				for range 100 {
					mu.Lock()
					value++
					mu.Unlock()
					s.Send()
				}
			})
		}
		group.Wait()
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if seen != 800 {
			t.Errorf("the loop saw %d, want 800", seen)
		}
		close(done)
	})
}
