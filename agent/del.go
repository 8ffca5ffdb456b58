// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/api"
	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/fault"
	"github.com/berth-dev/berth/agent/state"
)

// Del detaches the container. It succeeds where nothing is left to detach.
func (a *Agent) Del(ctx context.Context, req *api.Request) error {
	if err := checkIDs(req); err != nil {
		return err
	}
	key := state.Key{ContainerID: req.ContainerID, IfName: req.IfName}
	return a.detach(ctx, key, req)
}

// detach undoes the record of key. req is the runtime's call; it is nil where the
// agent acts on its own.
func (a *Agent) detach(ctx context.Context, key state.Key, req *api.Request) error {
	unlock, err := a.lockContainer(ctx, key.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	record, err := a.Store.Get(key)
	if err != nil {
		return err
	}
	if record == nil {
		if req != nil {
			a.detachUnknown(ctx, req)
		}
		return nil
	}
	if req != nil {
		// It is empty where the namespace is gone.
		record.NetNS = req.NetNS
	}
	if err := a.undo(context.WithoutCancel(ctx), record); err != nil {
		a.reconcile.finishLater(key)
		return err
	}
	klog.FromContext(ctx).V(2).Info("Detached", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name),
		"containerID", record.ContainerID, "ips", addressList(record))
	return nil
}

// delTimeout limits the plugins' DEL, which may outlive the runtime's call.
const delTimeout = 90 * time.Second

// undo takes an attachment down and removes its record: it withdraws the addresses, then
// runs the plugins' DEL, and then removes the interface. The caller holds the container's
// lock. undo goes on after a failure, but then keeps the record.
func (a *Agent) undo(ctx context.Context, record *state.Attachment) error {
	floating := len(record.Addresses) > 0
	if err := a.deleting(ctx, record); err != nil {
		return err
	}
	fault.Point("del/intent")
	network, err := chain.Parse(record.Network)
	if err != nil {
		err = fmt.Errorf("the record of container %s: %w", record.ContainerID, err)
	} else {
		err = a.delPlugins(ctx, network, record)
	}
	fault.Point("del/plugins")
	if floating {
		err = errors.Join(err, a.teardown(ctx, record))
	}
	if err != nil {
		return err
	}
	if err := a.Store.Delete(record.Key()); err != nil {
		return err
	}
	fault.Point("del/record")
	return nil
}

func (a *Agent) delPlugins(ctx context.Context, network *chain.Network, record *state.Attachment) error {
	ctx, cancel := context.WithTimeout(ctx, delTimeout)
	defer cancel()
	if len(record.Addresses) > 0 {
		network = network.Chained()
	}
	return a.Plugins.Del(ctx, network, attachmentOf(record), record.Result)
}

// deleting writes the record and stops answering for its addresses: no plugin that hangs
// or fails may keep the node from that. Where the withdrawal fails, teardown tries again.
func (a *Agent) deleting(ctx context.Context, record *state.Attachment) error {
	unlock, err := a.lockAddresses(ctx, record.Addresses)
	if err != nil {
		return err
	}
	defer unlock()
	deleting := *record
	deleting.Phase = state.Deleting
	if err := a.Store.Put(&deleting); err != nil {
		return err
	}
	if len(record.Addresses) == 0 {
		return nil
	}
	if err := a.Driver.Withdraw(record); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot withdraw the addresses of a container before its DEL", "containerID", record.ContainerID, "ips", addressList(record))
	}
	return nil
}

func (a *Agent) teardown(ctx context.Context, record *state.Attachment) error {
	unlock, err := a.lockAddresses(ctx, record.Addresses)
	if err != nil {
		return err
	}
	defer unlock()
	if err := a.Driver.Teardown(record); err != nil {
		return fmt.Errorf("remove the interface %s of container %s: %w", record.IfName, record.ContainerID, err)
	}
	return nil
}

// detachUnknown cleans up after a container without a record: mostly this is a
// second DEL, but the record may also have been lost with the state file. The
// container's network is not known, so detachUnknown tries both. It only logs
// failures, because a container that never was looks the same.
func (a *Agent) detachUnknown(ctx context.Context, req *api.Request) {
	logger := klog.FromContext(ctx)
	if err := a.Driver.Teardown(&state.Attachment{ContainerID: req.ContainerID, IfName: req.IfName, NetNS: req.NetNS}); err != nil {
		logger.Error(err, "Cannot clean up after a container without a record", "containerID", req.ContainerID)
	}
	network, err := a.Networks.Default()
	if err != nil {
		return
	}
	conf, err := parseConfig(req.Config)
	if err != nil {
		return
	}
	err = a.Plugins.Del(ctx, network, chain.Attachment{
		ContainerID: req.ContainerID, NetNS: req.NetNS, IfName: req.IfName, Args: req.Args, Capabilities: conf.RuntimeConfig,
	}, nil)
	if err != nil {
		logger.V(2).Info("The default network could not clean up after a container without a record", "containerID", req.ContainerID, "err", err)
	}
}
