// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-dev/berth/ipam"
)

// Reserve takes the pod's addresses in memory, all or none.
func (pl *Plugin) Reserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodeName string) *fwk.Status {
	s := stateOf(state)
	if s == nil {
		return nil
	}
	nodeInfo, err := pl.handle.SnapshotSharedLister().NodeInfos().Get(nodeName)
	if err != nil {
		return fwk.AsStatus(fmt.Errorf("find node %s: %w", nodeName, err))
	}
	if s.fitsAll && withinNode(pl.reader, pod, nodeInfo) != nil {
		pl.nodes.invalidate()
		return fwk.AsStatus(fmt.Errorf("node %s began to cap addresses a moment ago", nodeName))
	}
	if !pl.agents.has(nodeName) {
		return fwk.AsStatus(errors.New(ipam.NoAgentOn(nodeName)))
	}
	reservation, err := pl.addresses.Reserve(s.candidates, ipam.NodeOf(nodeInfo.Node()), pl.nodes.reach(s.candidates.Snapshot(), nodeInfo.Node()))
	if err != nil {
		// The findings of PreFilter or Filter are out of date. Another node may have
		// addresses, so the pod is tried again.
		pl.nodes.invalidate()
		return fwk.AsStatus(err)
	}
	s.reservation = reservation
	// From here on the pod does not wait for an address: after a failure it is
	// retried with back-off, or waits for something else. An address that comes free
	// must not wake it early, least of all its own when Unreserve gives it back.
	if since, ok := pl.waiting.reserved(pod.UID, reservation.Addrs(), reservation.Kept()); ok {
		allocationDuration.Observe(time.Since(since).Seconds())
	}
	klog.FromContext(ctx).V(4).Info("Reserved floating IPs", "pod", klog.KObj(pod), "floatingIPs", reservation.Names(), "pools", reservation.Pools(), "node", nodeName)
	return nil
}

// Unreserve gives back the addresses that Reserve took and PreBind committed.
func (pl *Plugin) Unreserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, _ string) {
	s := stateOf(state)
	if s == nil || s.reservation == nil {
		return
	}
	if s.preBound {
		if err := pl.abandon(ctx, pod, s.reservation, nil); err != nil {
			klog.FromContext(ctx).Error(err, "Committed floating IPs stay with a pod that was not bound", "pod", klog.KObj(pod))
		}
	}
	pl.addresses.Unreserve(s.reservation)
}

// PostBind gives back the addresses of a pod that another binder bound without them: the pod gets none any more.
func (pl *Plugin) PostBind(_ context.Context, state fwk.CycleState, _ *v1.Pod, _ string) {
	if s := stateOf(state); s != nil && s.reservation != nil && len(s.reservation.Committed()) == 0 {
		pl.addresses.Unreserve(s.reservation)
	}
}
