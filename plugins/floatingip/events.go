// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// EventsToRegister returns the events, other than changes of the book, that can make a rejected pod
// schedulable: a pool that may serve the pod serves another node; the pod's annotations changed; a
// PersistentVolumeClaim of the pod was created; a node that caps addresses has room again. For
// freed addresses, changed pools and nodes whose InternalIPs changed see the package documentation.
//
// A change of a node's taints does not help a pod that this plugin rejected, but the plugin
// registers it. Without it, kube-scheduler would queue all pods at every change of taints, because
// the plugin registers new nodes, and each new node loses a taint.
//
// kube-scheduler calls it at its start, when all plugins of the profile exist. So EventsToRegister
// fails if another Bind plugin comes first.
func (pl *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	if pl.firstBinder != nil {
		if first := pl.firstBinder(pl.handle); first != Name {
			return nil, fmt.Errorf("profile %s: %s would bind pods without their addresses: name %s first in plugins.bind.enabled, and disable \"*\" there",
				pl.handle.ProfileName(), first, Name)
		}
	}
	return []fwk.ClusterEventWithHint{
		{
			Event:          fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeLabel | fwk.UpdateNodeAllocatable | fwk.UpdateNodeTaint},
			QueueingHintFn: pl.isSchedulableAfterNodeChanged,
		},
		{
			Event:          fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Update},
			QueueingHintFn: pl.isSchedulableAfterPodUpdated,
		},
		{
			Event:          fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Delete},
			QueueingHintFn: pl.isSchedulableAfterPodDeleted,
		},
		{
			// VolumeBinding registers this event, too.
			Event:          fwk.ClusterEvent{Resource: fwk.PersistentVolumeClaim, ActionType: fwk.Add | fwk.Update},
			QueueingHintFn: pl.isSchedulableAfterVolumeClaimChanged,
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

func hasMore(before, after *v1.Node) bool {
	limits := capOf(after)
	for name, limit := range capOf(before) {
		if now, ok := limits[name]; !ok || now.Cmp(limit) > 0 {
			return true
		}
	}
	return false
}

// gain has the changes that follow from an event of kube-scheduler.
type gain struct {
	before, after any
	changes       []ipam.Change
}

// gained returns the changes of an event: pools serve a node, or serve it with more addresses. The
// result is cached, because kube-scheduler asks about the same event for each of its pods.
func (pl *Plugin) gained(before, after any, node *v1.Node, pools func() []string) []ipam.Change {
	if last := pl.gain.Load(); last != nil && last.before == before && last.after == after {
		return last.changes
	}
	now := &gain{before: before, after: after, changes: pl.pods.serving(node.Name, pools())}
	pl.gain.Store(now)
	return now.changes
}

// isSchedulableAfterNodeChanged queues a pod if pools that may serve it serve another node, or a
// node that caps addresses allows more of them.
func (pl *Plugin) isSchedulableAfterNodeChanged(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	before, known := oldObj.(*v1.Node)
	after, ok := newObj.(*v1.Node)
	if !ok || oldObj != nil && !known {
		return fwk.QueueSkip, nil
	}
	return queueIf(pl.waiting.help(pod.UID, pl.gained(oldObj, newObj, after, func() []string {
		switch {
		case before == nil || hasMore(before, after):
			return pl.addresses.PoolsOf(ipam.NodeOf(after))
		case !sameReach(before, after):
			return pl.addresses.Gained(ipam.NodeOf(before), ipam.NodeOf(after))
		}
		return nil
	})))
}

func queueIf(helps bool) (fwk.QueueingHint, error) {
	if helps {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// isSchedulableAfterPodDeleted queues a pod when another pod with addresses left a
// node that caps them. The book reports the freed addresses themselves.
func (pl *Plugin) isSchedulableAfterPodDeleted(_ klog.Logger, pod *v1.Pod, oldObj, _ any) (fwk.QueueingHint, error) {
	deleted, ok := oldObj.(*v1.Pod)
	if !ok || deleted.Spec.NodeName == "" || !pl.reader.Asks(&deleted.Spec) {
		return fwk.QueueSkip, nil
	}
	node := pl.pods.Node(deleted.Spec.NodeName)
	if node == nil || len(capOf(node)) == 0 { // A deleted node has no room.
		return fwk.QueueSkip, nil
	}
	return queueIf(pl.waiting.help(pod.UID, pl.gained(oldObj, nil, node, func() []string { return pl.addresses.PoolsOf(ipam.NodeOf(node)) })))
}

// isSchedulableAfterPodUpdated queues a pod if its own annotations changed, or a workload adopted
// it.
func (pl *Plugin) isSchedulableAfterPodUpdated(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	before, ok := oldObj.(*v1.Pod)
	after, isPod := newObj.(*v1.Pod)
	if !ok || !isPod || after.UID != pod.UID ||
		maps.Equal(before.Annotations, after.Annotations) && equality.Semantic.DeepEqual(before.OwnerReferences, after.OwnerReferences) {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}

// isSchedulableAfterVolumeClaimChanged queues a pod with failover when a PersistentVolumeClaim of
// its volumes was created. The access modes of a claim never change, so an update helps only if it
// is another claim of the same name.
func (pl *Plugin) isSchedulableAfterVolumeClaimChanged(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	moves, err := podrequest.Failover(pod.Annotations)
	if err != nil || !moves {
		return fwk.QueueSkip, nil //nolint:nilerr // a change of its annotations queues the pod
	}
	after, ok := newObj.(*v1.PersistentVolumeClaim)
	if before, known := oldObj.(*v1.PersistentVolumeClaim); !ok || known && before.UID == after.UID {
		return fwk.QueueSkip, nil
	}
	return queueIf(after.Namespace == pod.Namespace && podrequest.NamesClaim(pod, after.Name))
}
