// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// EventsToRegister names what, other than the book, can make a pod schedulable
// that the plugin rejected: a node that serves a pool, and the pod's own
// annotations. For freed addresses and changed pools see the package
// documentation.
func (pl *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeLabel}},
		{
			Event:          fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Update},
			QueueingHintFn: pl.isSchedulableAfterPodUpdated,
		},
	}, nil
}

// isSchedulableAfterPodUpdated queues a pod whose own annotations changed.
func (pl *Plugin) isSchedulableAfterPodUpdated(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	before, ok := oldObj.(*v1.Pod)
	after, isPod := newObj.(*v1.Pod)
	if !ok || !isPod || after.UID != pod.UID || maps.Equal(before.Annotations, after.Annotations) {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}
