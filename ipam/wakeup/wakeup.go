// SPDX-License-Identifier: Apache-2.0

// Package wakeup wakes a loop once, however many signals come meanwhile. It runs nothing itself:
// the loop receives the signal in a select, with its timers and its context. client-go's workqueue
// does not allow this: its Get cannot be used in a select and ends only by a shutdown.
package wakeup

// Signal wakes one loop. Several signals before the loop receives one count as one.
type Signal chan struct{}

// New returns a Signal that nobody has sent.
func New() Signal { return make(Signal, 1) }

// Send wakes the loop, now or when it next receives. It does not block. The loop sees all writes
// that were made before Send.
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
