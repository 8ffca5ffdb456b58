// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"sync"

	"github.com/berth-dev/berth/agent/state"
)

// adds knows the ADDs under way and the ends of withdrawals, so that the loss of an address ends the
// work that wires it. Methods are safe in parallel.
type adds struct{ cancels sync.Map }

// begin returns the context of an ADD and the function that its caller calls at the end.
// The caller holds the lock of the container.
func (s *adds) begin(ctx context.Context, key state.Key) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	s.cancels.Store(key, cancel)
	return ctx, func() {
		s.cancels.Delete(key)
		cancel(nil)
	}
}

// has returns whether such work is under way for key.
func (s *adds) has(key state.Key) bool {
	_, has := s.cancels.Load(key)
	return has
}

// end ends the context of the ADD for key, if one is under way.
func (s *adds) end(key state.Key, cause error) {
	if cancel, ok := s.cancels.Load(key); ok {
		cancel.(context.CancelCauseFunc)(cause)
	}
}
