// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// EventsToRegister returns the events that can make a rejected pod schedulable,
// other than changes of the book: a new node or new node labels, a change of the pod's
// annotations, and room on a node that caps addresses. For freed addresses, changed
// pools and nodes whose own addresses changed see the package documentation.
func (pl *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeLabel}},
		{
			Event:          fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.UpdateNodeAllocatable},
			QueueingHintFn: isSchedulableAfterNodeUpdated,
		},
		{
			Event:          fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Update},
			QueueingHintFn: pl.isSchedulableAfterPodUpdated,
		},
		{
			Event:          fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Delete},
			QueueingHintFn: pl.isSchedulableAfterPodDeleted,
		},
	}, nil
}

// capOf returns the extended resources in countedHere that a node advertises.
func capOf(node *v1.Node) v1.ResourceList {
	limits := v1.ResourceList{}
	for _, name := range countedHere {
		if limit, ok := node.Status.Allocatable[name]; ok {
			limits[name] = limit
		}
	}
	return limits
}

func sameCap(a, b *v1.Node) bool { return equality.Semantic.DeepEqual(capOf(a), capOf(b)) }

// isSchedulableAfterNodeUpdated queues a pod when a node's cap of addresses changed.
func isSchedulableAfterNodeUpdated(_ klog.Logger, _ *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	before, ok := oldObj.(*v1.Node)
	after, isNode := newObj.(*v1.Node)
	if !ok || !isNode || sameCap(before, after) {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}

// isSchedulableAfterPodDeleted queues a pod when another pod with addresses left a
// node that caps them. The book reports the freed addresses themselves.
func (pl *Plugin) isSchedulableAfterPodDeleted(_ klog.Logger, _ *v1.Pod, oldObj, _ any) (fwk.QueueingHint, error) {
	deleted, ok := oldObj.(*v1.Pod)
	if !ok || deleted.Spec.NodeName == "" || !pl.reader.Asks(&deleted.Spec) {
		return fwk.QueueSkip, nil
	}
	node, err := pl.nodeLister.Get(deleted.Spec.NodeName)
	if err != nil || len(capOf(node)) == 0 {
		return fwk.QueueSkip, nil //nolint:nilerr // a node that is gone has no room
	}
	return fwk.Queue, nil
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
