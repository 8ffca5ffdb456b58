// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/ns"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/fault"
)

// Del detaches the container. It succeeds where nothing is left to detach.
func (a *Agent) Del(ctx context.Context, req *api.Request) error {
	req, err := checkDEL(req)
	if err != nil {
		return err
	}
	key := state.Key{ContainerID: req.ContainerID, IfName: req.IfName}
	return a.detach(ctx, key, req)
}

// checkDEL refuses invalid parameters of a DEL, and returns it without a network namespace where it
// names the node's. ADD refuses that; a plugin would remove a link of the node that has the name of
// the container's interface.
func checkDEL(req *api.Request) (*api.Request, error) {
	if err := checkIDs(req); err != nil {
		return nil, err
	}
	isNode, err := ns.CheckNetNS(req.NetNS)
	if err != nil {
		return nil, fmt.Errorf("compare the network namespace %s with the node's: %w", req.NetNS, err)
	}
	if !isNode {
		return req, nil
	}
	gone := *req
	gone.NetNS = ""
	return &gone, nil
}

// detach undoes the record of key. req is the runtime's call; it is nil where the
// agent acts on its own.
func (a *Agent) detach(ctx context.Context, key state.Key, req *api.Request) error {
	unlock, err := a.lockContainer(ctx, key.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	record := a.Store.Get(key)
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
	if err := a.undoOrLater(ctx, record); err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("Detached", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name),
		"containerID", record.ContainerID, "ips", addressesOf(record))
	return nil
}

// detachUnknown cleans up after a container without a record: mostly this is a second DEL, but the
// record may also have ended with the node's kernel or with the state file. The plugins of the
// container's networks are run again. It only logs failures, because a container that never was
// looks the same.
func (a *Agent) detachUnknown(ctx context.Context, req *api.Request) {
	logger := klog.FromContext(ctx)
	unknown := &nettype.Interface{ContainerID: req.ContainerID, NetNS: req.NetNS, Attachment: state.Attachment{IfName: req.IfName}}
	for name, d := range a.Drivers {
		if err := d.Teardown(unknown); err != nil {
			logger.Error(err, "Cannot clean up after a container without a record", "containerID", req.ContainerID, "driver", name)
		}
	}
	conf, err := parseConfig(req.Config)
	if err != nil {
		return
	}
	// A runtime that names no pod has no host ports either. Ports without a record lead to the
	// addresses that the ADD returned or, where the runtime does not pass them, are the pod's.
	if called, err := parseArgs(req.Args); err == nil {
		if called.UID != "" {
			defer a.Policies.Forget(called.UID)
		}
		var err error
		if addrs := chain.Addresses(conf.PrevResult); len(addrs) > 0 {
			err = a.ports.EndAddresses(ctx, addrs)
		} else {
			err = a.ports.EndPod(ctx, called)
		}
		if err != nil {
			logger.Error(err, "Cannot close the host ports of a container without a record", "containerID", req.ContainerID)
		}
	}
	known, err := a.lost.end(ctx, req.NetNS, func(one chain.Attached) bool { return one.ContainerID == req.ContainerID })
	if err != nil {
		logger.Error(err, "Cannot clean up after a container without a record, will try again", "containerID", req.ContainerID)
	}
	if known > 0 {
		return
	}
	network, err := a.Networks.Default()
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

// undo takes the network of a container down and removes its record: it withdraws all addresses and
// closes the host ports, and then, last attachment first, runs the plugins' DEL and removes the
// interface. The caller holds the container's lock. undo goes on after a failure, but then keeps
// the record.
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
		errs = append(errs, a.attachments.delPlugins(ctx, record, i, share))
		fault.Point("del/plugins")
		errs = append(errs, a.attachments.teardown(ctx, record, i))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := a.Store.Delete(record.Key()); err != nil {
		return err
	}
	if record.Phase != state.Adding {
		a.holdings.leave(record)
	}
	a.reconciler.Forget(record.Key())
	a.withdrawals.unseen.Delete(record.Key())
	fault.Point("del/record")
	a.endPolicies(ctx, record)
	a.Shaper.Soon()
	a.TellSoon()
	return nil
}

// deleting writes the record and stops answering for its addresses: no plugin that hangs or fails
// may keep the node from that, and no file system that is full. Where the withdrawal fails,
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

// endPolicies comes when the record is gone. The rules for its addresses go with it, after its
// network.
func (a *Agent) endPolicies(ctx context.Context, record *state.Container) {
	if record.Phase == state.Adding && record.NetNS != "" {
		// The namespace may get another ADD.
		if err := a.Policies.Reopen(record.NetNS); err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot look after the network namespace of a container without a network", "containerID", record.ContainerID, "err", err)
		}
	}
	a.Policies.Detached(policedID(record))
	a.Egress.Detached(policedID(record))
}
