// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"

	"github.com/containernetworking/cni/pkg/ns"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
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
	if err := a.undoOrLater(ctx, record); err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("Detached", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name),
		"containerID", record.ContainerID, "ips", addressesOf(record))
	return nil
}

// detachUnknown cleans up after a container without a record: mostly this is a
// second DEL, but the record may also have ended with the node's kernel or with the state file. The
// plugins of the container's networks are run again. It only logs failures, because a container that
// never was looks the same.
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
	// A runtime that names no pod has no host ports either.
	if args, err := parseArgs(req.Args); err == nil {
		if args.uid != "" {
			defer a.Policies.Forget(args.uid)
		}
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
