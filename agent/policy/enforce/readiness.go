// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"errors"
	"fmt"
)

// ErrNotKnown is returned by Ready while the policies are not known.
var ErrNotKnown = errors.New("the network policies are not known yet")

// Ready returns an error while the policies are not known, or not in the kernel of the node. It
// does not block.
func (e *Enforcer) Ready() error {
	select {
	case <-e.started:
	default:
		return ErrNotKnown
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.node.err; err != nil {
		return fmt.Errorf("the network policies in the kernel are not up to date: %w", err)
	}
	return nil
}
