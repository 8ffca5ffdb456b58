// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/pools"
)

// preemption has the assumptions under which a node is filtered. kube-scheduler removes victims and
// adds nominated pods. PostFilter assumes that ending pods have ended.
type preemption struct {
	// ended has the addresses of the pods that PostFilter assumes to have ended; nil: none. It is not
	// modified.
	ended *ipam.Preemption
	// removed are the victims, with their namespaces.
	removed map[types.UID]string
	// nominated pods get their addresses before the pod that is being scheduled.
	nominated map[types.UID]nominee
}

// nominee has the number of free addresses that a nominated pod needs, and its namespace. On its
// own node it needs all of them. Before pods on other nodes it needs only addresses that are free
// already: its victims leave it the others. Without a node it needs all of them on every node.
type nominee struct {
	wanted    int
	namespace string
	node      string
	free      int
}

// on returns how many addresses the nominated pod needs before a pod on a node.
func (n nominee) on(node string) int {
	if n.node != "" && n.node != node {
		return n.free
	}
	return n.wanted
}

func (r *preemption) clone() *preemption {
	if r == nil {
		return nil
	}
	return &preemption{ended: r.ended, removed: maps.Clone(r.removed), nominated: maps.Clone(r.nominated)}
}

// sum returns the preemption's changes on a node, for the pod that is being scheduled.
func (r *preemption) sum(candidates *ipam.Candidates, namespace, node string) *ipam.Preemption {
	sum := &ipam.Preemption{}
	if r.ended != nil {
		*sum = *r.ended
		sum.Freed, sum.Held, sum.Left = slices.Clip(sum.Freed), slices.Clip(sum.Held), slices.Clip(sum.Left)
	}
	for uid, namespace := range r.removed {
		candidates.AddVictim(sum, namespace, string(uid))
	}
	for _, nominated := range r.nominated {
		sum.Demand += nominated.on(node)
		if nominated.namespace == namespace {
			sum.OwnDemand += nominated.on(node)
		}
	}
	return sum
}

// PreFilterExtensions returns the plugin, which follows the pods that preemption
// removes and adds.
func (pl *Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return pl }

// RemovePod removes a victim from the node, or takes back AddPod.
func (pl *Plugin) RemovePod(_ context.Context, state fwk.CycleState, _ *v1.Pod, removed fwk.PodInfo, _ fwk.NodeInfo) *fwk.Status {
	s := stateOf(state)
	pod := removed.GetPod()
	if s == nil || !pl.reader.Asks(&pod.Spec) {
		return nil
	}
	s.updatePreemption(func(r *preemption) {
		if _, nominated := r.nominated[pod.UID]; nominated {
			delete(r.nominated, pod.UID)
		} else {
			r.removed[pod.UID] = pod.Namespace
		}
	})
	return nil
}

// AddPod takes back RemovePod, or adds a nominated pod to the node. A nominated pod needs its
// addresses before the pod that is being scheduled. If it is being deleted, it needs none.
func (pl *Plugin) AddPod(_ context.Context, state fwk.CycleState, _ *v1.Pod, added fwk.PodInfo, _ fwk.NodeInfo) *fwk.Status {
	s := stateOf(state)
	pod := added.GetPod()
	if s == nil || !pl.reader.Asks(&pod.Spec) {
		return nil
	}
	s.updatePreemption(func(r *preemption) {
		if _, removed := r.removed[pod.UID]; removed {
			delete(r.removed, pod.UID)
			return
		}
		if isPending(pod) {
			if wanted := pl.wanted(pod); wanted > 0 {
				r.nominated[pod.UID] = nominee{wanted: wanted, namespace: pod.Namespace}
			}
		}
	})
	return nil
}

// wanted returns how many free addresses a nominated pod needs. Addresses that its owner keeps for
// it are not free in the pools.
func (pl *Plugin) wanted(pod *v1.Pod) int {
	request, err := ipam.RequestOfPod(pl.reader, pod, pl.between, pl.namespace)
	if err == nil {
		if candidates, err := pl.addresses.Candidates(request); err == nil {
			return candidates.Wanted()
		}
	}
	return len(request.Parts)
}

// updatePreemption modifies the state's preemption. Copies of the state do not share it.
func (s *cycleState) updatePreemption(mutate func(*preemption)) {
	if s.preemption == nil {
		s.preemption = &preemption{removed: map[types.UID]string{}, nominated: map[types.UID]nominee{}}
	}
	mutate(s.preemption)
}

const notNeeded = "preemption: not needed, because addresses of ending pods are about to become free"

// PostFilter prevents a preemption while the pod waits only for addresses that become free anyway.
// A victim's addresses become free when the controller has deleted their FloatingIPs: milliseconds
// after the victim is gone, or minutes later if there is no controller. Until then
// DefaultPreemption sees neither a free address nor a terminating victim, and would preempt another
// victim at every attempt. This would not help, because the same controller would have to free the
// new victim's addresses.
//
// Filter cannot prevent this by calling such a node unresolvable: DefaultPreemption would clear the
// pod's nominated node, on which it made room, and would continue with nodes that lack something
// else.
//
// A pod is not held for any other reason. A node counts only if the pod would fit there in every
// other respect, so a pod that lacks CPU on all nodes may preempt. An address counts only if the
// pod may have it: not if it will be retained or go into cooldown, and not if pods with an earlier
// turn need it. The line wakes the pod when an address becomes free, and also at intervals
// ([line.hold]), because another pod may get the address, and a pod may take too long to end. Even
// if the controller is slow, another victim would not help: the controller would have to free its
// address, too.
func (pl *Plugin) PostFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, statuses fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	s := stateOf(state)
	if s == nil || s.short.Load()&isShort != 0 {
		pl.breakUp(pod)
	}
	covered := s != nil && pl.fitsSoon(ctx, state, pod, statuses)
	pl.waiting.hold(pod.UID, covered)
	if covered {
		// With this status the framework asks no other plugin, and the pod keeps its nominated node.
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, notNeeded)
	}
	return nil, fwk.NewStatus(fwk.Unschedulable)
}

// fitsSoon says whether some node will fit the pod when pods that are ending, or have ended, have
// left their addresses to the waiting pods.
func (pl *Plugin) fitsSoon(ctx context.Context, state fwk.CycleState, pod *v1.Pod, statuses fwk.NodeToStatusReader) bool {
	s := stateOf(state)
	if s.short.Load()&isShort == 0 || pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == v1.PreemptNever {
		return false
	}
	left, changes, ok := pl.ending.preemption(s.candidates)
	if !ok {
		return false
	}
	nodes, err := statuses.NodesForStatusCode(pl.handle.SnapshotSharedLister().NodeInfos(), fwk.Unschedulable)
	if err != nil {
		return false // DefaultPreemption reports it.
	}
	assumed := &preemption{ended: left, removed: map[types.UID]string{}, nominated: pl.waiting.ahead(pod.UID, changes)}
	if s.preemption != nil {
		maps.Copy(assumed.nominated, s.preemption.nominated)
	}
	state = state.Clone()
	stateOf(state).preemption = assumed
	serves := map[*pools.Reach]bool{}
	for _, info := range nodes {
		// Another plugin's Filter rejected the node.
		if statuses.Get(info.Node().Name).Plugin() != Name {
			continue
		}
		reach := pl.nodes.reach(s.candidates.Snapshot(), info.Node())
		if _, known := serves[reach]; !known {
			serves[reach] = s.candidates.RejectsAfter(reach, assumed.sum(s.candidates, pod.Namespace, "")) == nil
		}
		if serves[reach] && pl.handle.RunFilterPluginsWithNominatedPods(ctx, state, pod, info).IsSuccess() {
			return true
		}
	}
	return false
}
