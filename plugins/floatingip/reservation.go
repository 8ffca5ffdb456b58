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

// Reserve takes the pod's addresses in memory, all or none. While kube-scheduler tries a PodGroup
// out, the next pods of the group see these addresses as taken. A nominated pod takes none before
// its victims are gone.
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
		return pl.outdated(pod, 0, why{}, fmt.Sprintf("node %s began to cap addresses a moment ago", nodeName))
	}
	if !pl.agents.has(nodeName) {
		return pl.outdated(pod, ipam.LackAgent, why{causes: causeAgent}, ipam.NoAgentOn(nodeName))
	}
	reach, gang := pl.nodes.reach(s.candidates.Snapshot(), nodeInfo.Node()), gangOf(state)
	if gang != nil && s.rejects(reach, pod.Namespace, nodeName) != nil {
		wanted := s.candidates.Wanted()
		gang.nominated[pod.UID] = nominee{wanted: wanted, namespace: pod.Namespace, node: nodeName, free: min(wanted, int(s.candidates.Room(reach)))}
		return nil
	}
	reservation, err := pl.addresses.Reserve(s.candidates, ipam.NodeOf(nodeInfo.Node()), reach)
	var shortage *ipam.ShortageError
	switch {
	case errors.As(err, &shortage):
		return pl.outdated(pod, shortage.Lacks, why{causeOf(shortage.Lacks), s.candidates.OnlyPool()}, err.Error())
	case err != nil:
		return fwk.AsStatus(err)
	}
	s.reservation = reservation
	if gang != nil {
		reservation.Trial = true
		return nil // It still waits.
	}
	// From here on the pod does not wait for an address: after a failure it is retried with back-off,
	// or waits for something else. A freed address must not wake it early, especially not its own
	// address when Unreserve gives it back.
	if since, ok := pl.waiting.reserved(pod.UID, reservation.Addrs(), reservation.Kept()); ok {
		allocationDuration.Observe(time.Since(since).Seconds())
	}
	klog.FromContext(ctx).V(4).Info("Reserved floating IPs", "pod", klog.KObj(pod), "floatingIPs", reservation.Names(), "pools", reservation.Pools(), "node", nodeName)
	return nil
}

// outdated rejects the pod because the findings of PreFilter or Filter are out of date. Another
// node may fit, so the pod is tried again.
func (pl *Plugin) outdated(pod *v1.Pod, lack ipam.Lack, reason why, text string) *fwk.Status {
	pl.nodes.invalidate()
	pl.waiting.outdated(pod.UID, lack, reason)
	return fwk.NewStatus(fwk.Unschedulable, text)
}

// Unreserve gives back the addresses that Reserve took and PreBind committed.
func (pl *Plugin) Unreserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, _ string) {
	if gang := gangOf(state); gang != nil {
		delete(gang.nominated, pod.UID)
	}
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

// PostBind gives back the addresses of a pod that another binder bound without them: such a pod
// cannot get them any more.
func (pl *Plugin) PostBind(_ context.Context, state fwk.CycleState, _ *v1.Pod, _ string) {
	if s := stateOf(state); s != nil && s.reservation != nil && len(s.reservation.Committed()) == 0 {
		pl.addresses.Unreserve(s.reservation)
	}
}
