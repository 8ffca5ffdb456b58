// SPDX-License-Identifier: Apache-2.0

// Package wakeup has a loop run soon, once, however often it is asked meanwhile. It runs
// nothing itself: the loop receives the signal beside its timers and its context. That is why
// client-go's workqueue does not serve: its Get cannot stand in a select and ends by a shutdown
// only.
package wakeup

// Signal wakes one loop. Signals that come before the loop receives one are one.
type Signal chan struct{}

// New returns a Signal that nobody has sent.
func New() Signal { return make(Signal, 1) }

// Send wakes the loop, now or when it next receives. It does not block. The loop sees all that
// was done before Send.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Drop takes back a signal that the loop has not received.
func (s Signal) Drop() {
	select {
	case <-s:
	default:
	}
}
