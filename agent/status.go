// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/cni/relay"
)

// syncPatience limits how long STATUS waits until the first agent since the node's start knows the
// node's pods. It is shorter than the plugin's own limit (see [relay.PostStatus]).
const syncPatience = 10 * time.Second

// uplinkChecker is a driver that uses the node's uplink.
type uplinkChecker interface {
	// Ready returns an error where the uplink cannot carry addresses.
	Ready(uplink string) error
}

// Status returns ErrNotReady while the default network fails, or from the node's start until the
// agent knows the node's pods. The answer concerns every pod of the node, so nothing else may make
// it fail: not an agent that starts anew and may not read pods. Ready says whether the agent can
// serve ADD.
func (a *Agent) Status(ctx context.Context) error { return a.serves(ctx, a.defaultNetwork) }

// serves returns why STATUS fails where network says whether the network is ready.
func (a *Agent) serves(ctx context.Context, network func(context.Context) error) error {
	served := relay.Served(a.Socket)
	if !served {
		if err := a.known(ctx); err != nil {
			return err
		}
	}
	if err := network(ctx); err != nil || served {
		return err
	}
	if err := relay.SetServed(a.Socket, true); err != nil {
		return fmt.Errorf("note that this node has been served: %w", err)
	}
	return nil
}

// defaultNetwork returns ErrNotReady while the network of ordinary pods is not ready.
func (a *Agent) defaultNetwork(ctx context.Context) error {
	network, err := a.Networks.Default()
	if errors.Is(err, chain.ErrNoNetwork) {
		// The node serves pods with a floating IP; ADD tells the others.
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

// known returns ErrNotReady while the pods of the node are not known.
func (a *Agent) known(ctx context.Context) error {
	wait, cancel := context.WithTimeout(ctx, syncPatience)
	defer cancel()
	if !a.Pods.WaitForSync(wait) {
		return fmt.Errorf("%w: the pods of this node are not known yet: the API server has not answered", ErrNotReady)
	}
	return nil
}

// Ready returns ErrNotReady while the agent cannot serve ADD of pods with a floating IP or
// of ordinary pods.
func (a *Agent) Ready(ctx context.Context) error {
	// It says best why the plugins of other pods cannot be run.
	if a.Configuration != nil {
		if err := a.Configuration.Ready(); err != nil {
			return fmt.Errorf("%w: %w", ErrNotReady, err)
		}
	}
	if err := a.known(ctx); err != nil {
		return err
	}
	if err := a.defaultNetwork(ctx); err != nil {
		return err
	}
	if a.Kernel != nil {
		if err := a.Kernel(); err != nil {
			return notReady(err)
		}
	}
	if a.DeadMan != nil {
		if err := a.DeadMan.Err(); err != nil {
			return notReady(err)
		}
	}
	if err := a.Policies.Ready(); err != nil {
		return fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	floating, err := a.Networks.Floating()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	d := a.Drivers[floating.Driver]
	if d == nil {
		return notReady(fmt.Errorf("this agent has no driver %q", floating.Driver))
	}
	if err := ifCan(d, func(c uplinkChecker) error { return c.Ready(floating.Uplink) }); err != nil {
		return notReady(err)
	}
	return notReady(a.Plugins.Status(ctx, nettype.Of(floating.Driver).Chain(floating.Network)))
}

// notReady says that pods with a floating IP cannot be served.
func notReady(err error) error {
	if err != nil {
		err = fmt.Errorf("%w: pods with a floating IP: %w", ErrNotReady, err)
	}
	return err
}
