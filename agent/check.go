// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"

	"github.com/berth-dev/berth/agent/api"
	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/state"
)

// Check verifies the container's network. It returns ErrUnknownContainer for a
// container without a record.
func (a *Agent) Check(ctx context.Context, req *api.Request) error {
	if err := checkIDs(req); err != nil {
		return err
	}
	unlock, err := a.lockContainer(ctx, req.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	record, err := a.Store.Get(state.Key{ContainerID: req.ContainerID, IfName: req.IfName})
	if err != nil {
		return err
	}
	if record == nil {
		return fmt.Errorf("%w: %s, interface %s", ErrUnknownContainer, req.ContainerID, req.IfName)
	}
	if record.Phase != state.Added {
		return fmt.Errorf("container %s, interface %s of pod %s is not attached but %s", record.ContainerID, record.IfName, record.Pod, record.Phase)
	}
	return a.check(ctx, record)
}

// check verifies the network of a complete record.
func (a *Agent) check(ctx context.Context, record *state.Attachment) error {
	network, err := chain.Parse(record.Network)
	if err != nil {
		return fmt.Errorf("the record of container %s: %w", record.ContainerID, err)
	}
	if len(record.Addresses) > 0 {
		if err := a.Driver.Check(record); err != nil {
			return err
		}
		network = network.Chained()
	}
	return a.Plugins.Check(ctx, network, attachmentOf(record), record.Result)
}
