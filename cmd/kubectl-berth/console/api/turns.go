// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"sync"
)

// mostTurns is how many answers are made at once. More at once would not be made sooner, and each
// takes up to a megabyte.
const mostTurns = 8

// Turns lets some requests at a time make their answers, so that many take no more memory. It is
// for answers from memory: one that waits for others would have all wait.
type Turns chan struct{}

// NewTurns returns turns that nobody has.
func NewTurns() Turns { return make(Turns, mostTurns) }

// Take waits for a turn. The caller ends it once the answer is made, before it is sent to a client,
// which may be slow. ok is false if ctx ends first.
func (t Turns) Take(ctx context.Context) (end func(), ok bool) {
	select {
	case t <- struct{}{}:
		return sync.OnceFunc(func() { <-t }), true
	case <-ctx.Done():
		return nil, false
	}
}
