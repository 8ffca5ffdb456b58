// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-dev/berth/agent/chain"
)

// syncPatience is how long STATUS waits for an agent that has just started to
// learn of the node's pods. The kubelet takes a node whose STATUS fails once for
// not Ready, and a runtime that is silent for 30 s for dead; the shim may have
// waited 10 s before.
const syncPatience = 10 * time.Second

// Status says whether ADD would be served.
func (a *Agent) Status(ctx context.Context) error {
	wait, cancel := context.WithTimeout(ctx, syncPatience)
	defer cancel()
	if !a.Pods.WaitForSync(wait) {
		return fmt.Errorf("%w: the pods of this node are not known yet: the API server has not answered", ErrNotReady)
	}
	floating, _, err := a.Networks.Floating()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	if err := a.Plugins.Status(ctx, floating); err != nil {
		return fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	network, err := a.Networks.Default()
	if errors.Is(err, chain.ErrNoNetwork) {
		// The node serves pods with a floating IP; the others are told.
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	if err := a.Plugins.Status(ctx, network); err != nil {
		return fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	return nil
}
