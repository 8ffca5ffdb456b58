// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"

	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
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
	record := a.Store.Get(state.Key{ContainerID: req.ContainerID, IfName: req.IfName})
	if record == nil {
		return fmt.Errorf("%w: %s, interface %s", ErrUnknownContainer, req.ContainerID, req.IfName)
	}
	if record.Phase != state.Added {
		return fmt.Errorf("container %s, interface %s of pod %s is not attached but %s", record.ContainerID, record.IfName, record.Pod, record.Phase)
	}
	return a.check(ctx, record)
}

// podChecker is a driver that verifies the pod's side of an interface as well as the node's. It
// is for CHECK alone, because a pod may change its own side.
type podChecker interface {
	// Check returns an error that names the missing pieces of the interface.
	Check(i *nettype.Interface) error
}

// check verifies the network of a complete record.
func (a *Agent) check(ctx context.Context, record *state.Container) error {
	err := a.eachInterface(record, func(d nettype.Driver, i *nettype.Interface) error {
		return ifCan(d, func(c podChecker) error { return c.Check(i) })
	})
	if err != nil {
		return err
	}
	if err := a.attachments.checkDefaultRoute(record); err != nil {
		return err
	}
	if err := a.ports.Check(record); err != nil {
		return err
	}
	for i, attachment := range record.Attachments {
		network, err := nettype.NetworkOf(record, i)
		if err != nil {
			return err
		}
		if err := a.Plugins.Check(ctx, network, nettype.ForPlugins(record, i), attachment.Result); err != nil {
			return err
		}
	}
	return nil
}
