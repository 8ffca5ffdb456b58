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
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/fault"
)

// Del detaches the container. It succeeds where nothing is left to detach.
func (a *Agent) Del(ctx context.Context, req *api.Request) error {
	if err := checkIDs(req); err != nil {
		return err
	}
	req, err := withoutNodeNetNS(req)
	if err != nil {
		return err
	}
	key := state.Key{ContainerID: req.ContainerID, IfName: req.IfName}
	return a.detach(ctx, key, req)
}

// withoutNodeNetNS returns the request of a DEL without a network namespace where it names the
// node's. ADD refuses that; a plugin would remove a link of the node that has the name of the
// container's interface.
func withoutNodeNetNS(req *api.Request) (*api.Request, error) {
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
	if err := a.undo(context.WithoutCancel(ctx), record); err != nil {
		a.reconciler.FinishLater(key)
		return err
	}
	klog.FromContext(ctx).V(2).Info("Detached", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name),
		"containerID", record.ContainerID, "ips", addressList(record))
	return nil
}

// delTimeout limits the plugins' DEL, which may outlive the runtime's call.
const delTimeout = 90 * time.Second

// undo takes the network of a container down and removes its record: it withdraws all
// addresses and closes the host ports, and then, last attachment first, runs the plugins' DEL and removes the
// interface. The caller holds the container's lock. undo goes on after a failure, but then
// keeps the record.
func (a *Agent) undo(ctx context.Context, record *state.Container) error {
	if err := a.deleting(ctx, record); err != nil {
		return err
	}
	fault.Point("del/intent")
	errs := []error{a.closePorts(ctx, record)}
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
	a.reconciler.Forget(record.Key())
	a.unseen.Delete(record.Key())
	fault.Point("del/record")
	a.policiesDetached(ctx, record)
	a.shapeSoon()
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
	unlock, err := a.lockAddresses(ctx, record.Addresses())
	if err != nil {
		return err
	}
	defer unlock()
	deleting := *record
	deleting.Phase = state.Deleting
	unwritten := a.Store.Put(&deleting)
	if err := a.eachInterface(record, driver.Withdraw); err != nil && !isUnseen(record, err) {
		klog.FromContext(ctx).Error(err, "Cannot withdraw the addresses of a container before its DEL", "containerID", record.ContainerID, "ips", addressList(record))
	}
	return unwritten
}

// teardown removes the interface of an attachment that a driver wired.
func (a *Agent) teardown(ctx context.Context, record *state.Container, i int) error {
	d, err := a.driverOf(record, i)
	if err != nil || d == nil {
		return err
	}
	unlock, err := a.lockAddresses(ctx, record.Addresses())
	if err != nil {
		return err
	}
	defer unlock()
	if err := d.Teardown(interfaceOf(record, i)); err != nil {
		return fmt.Errorf("remove the interface %s of container %s: %w", record.Attachments[i].IfName, record.ContainerID, err)
	}
	return nil
}

// detachUnknown cleans up after a container without a record: mostly this is a
// second DEL, but the record may also have ended with the node's kernel or with the state file. The
// plugins of the container's networks are run again. It only logs failures, because a container that
// never was looks the same.
func (a *Agent) detachUnknown(ctx context.Context, req *api.Request) {
	logger := klog.FromContext(ctx)
	unknown := &Interface{ContainerID: req.ContainerID, NetNS: req.NetNS, Attachment: state.Attachment{IfName: req.IfName}}
	for name, d := range a.Drivers {
		if err := d.Teardown(unknown); err != nil {
			logger.Error(err, "Cannot clean up after a container without a record", "containerID", req.ContainerID, "driver", name)
		}
	}
	conf, err := parseConfig(req.Config)
	if err != nil {
		return
	}
	// A runtime that names no pod has no host ports either.
	if args, err := parseArgs(req.Args); err == nil {
		defer func() {
			if a.Policies != nil && args.uid != "" {
				a.Policies.Forget(args.uid)
			}
		}()
		if err := a.closeUnrecorded(ctx, args, conf); err != nil {
			logger.Error(err, "Cannot close the host ports of a container without a record", "containerID", req.ContainerID)
		}
	}
	known, err := a.delUnrecorded(ctx, req.NetNS, func(one chain.Attached) bool { return one.ContainerID == req.ContainerID })
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
