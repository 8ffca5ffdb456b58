// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/fault"
)

// delTimeout limits the plugins' DEL, which may outlive the runtime's call.
const delTimeout = 90 * time.Second

// undoOrLater undoes an ADD that failed, and the ADD of a container that ends, whether or not the
// runtime waits. After a failure the reconciler tries again.
func (a *Agent) undoOrLater(ctx context.Context, record *state.Container) error {
	err := a.undo(context.WithoutCancel(ctx), record)
	if err != nil {
		a.reconciler.FinishLater(record.Key())
	}
	return err
}

// undo takes the network of a container down and removes its record: it withdraws all
// addresses and closes the host ports, and then, last attachment first, runs the plugins' DEL and removes the
// interface. The caller holds the container's lock. undo goes on after a failure, but then
// keeps the record.
func (a *Agent) undo(ctx context.Context, record *state.Container) error {
	if err := a.deleting(ctx, record); err != nil {
		return err
	}
	fault.Point("del/intent")
	errs := []error{a.ports.Close(ctx, record)}
	deadline := time.Now().Add(delTimeout)
	for i := range slices.Backward(record.Attachments) {
		// A network that hangs must not take the time of the others.
		share := time.Until(deadline) / time.Duration(i+1)
		errs = append(errs, a.delPlugins(ctx, record, i, share))
		fault.Point("del/plugins")
		errs = append(errs, a.teardown(ctx, record, i))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := a.Store.Delete(record.Key()); err != nil {
		return err
	}
	if record.Phase != state.Adding {
		a.leave(record)
	}
	a.reconciler.Forget(record.Key())
	a.unseen.Delete(record.Key())
	fault.Point("del/record")
	a.endPolicies(ctx, record)
	a.Shaper.Soon()
	a.TellSoon()
	return nil
}

func (a *Agent) delPlugins(ctx context.Context, record *state.Container, i int, limit time.Duration) error {
	network, err := networkOf(record, i)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return a.Plugins.Del(ctx, network, forPlugins(record, i), record.Attachments[i].Result)
}

// deleting writes the record and stops answering for its addresses: no plugin that hangs
// or fails may keep the node from that, and no file system that is full. Where the withdrawal fails,
// teardown tries again.
func (a *Agent) deleting(ctx context.Context, record *state.Container) error {
	deleting := *record
	deleting.Phase = state.Deleting
	return a.locked(ctx, record.Addresses(), func() error {
		unwritten := a.Store.Put(&deleting)
		if err := a.eachInterface(record, nettype.Driver.Withdraw); err != nil && !isUnseen(record, err) {
			klog.FromContext(ctx).Error(err, "Cannot withdraw the addresses of a container before its DEL", "containerID", record.ContainerID, "ips", addressesOf(record))
		}
		return unwritten
	})
}

// teardown removes the interface of an attachment that a driver wired.
func (a *Agent) teardown(ctx context.Context, record *state.Container, i int) error {
	d, err := a.driverOf(record, i)
	if err != nil || d == nil {
		return err
	}
	err = a.locked(ctx, record.Addresses(), func() error { return d.Teardown(interfaceOf(record, i)) })
	if err != nil {
		return fmt.Errorf("remove the interface %s of container %s: %w", record.Attachments[i].IfName, record.ContainerID, err)
	}
	return nil
}
