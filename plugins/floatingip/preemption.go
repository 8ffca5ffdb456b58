// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// preemption has the assumptions of kube-scheduler while it filters a node: the victims that
// it removes, and the nominated pods that it adds.
type preemption struct {
	removed map[types.UID]*v1.Pod
	// nominated pods get their addresses before the pod that is being scheduled.
	nominated map[types.UID]nominee
}

// nominee is how many addresses a nominated pod wants, and its namespace.
type nominee struct {
	wanted    int
	namespace string
}

func (r *preemption) clone() *preemption {
	if r == nil {
		return nil
	}
	return &preemption{removed: maps.Clone(r.removed), nominated: maps.Clone(r.nominated)}
}

// sum returns the preemption's changes for the pod that is being scheduled. AddVictim checks
// the names in the victims' annotations against the book.
func (r *preemption) sum(candidates *ipam.Candidates, namespace string) *ipam.Preemption {
	sum := &ipam.Preemption{}
	for uid, pod := range r.removed {
		names, _ := podrequest.NamesOf(pod)
		candidates.AddVictim(sum, string(uid), names)
	}
	for _, nominated := range r.nominated {
		sum.Demand += nominated.wanted
		if nominated.namespace == namespace {
			sum.OwnDemand += nominated.wanted
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
			r.removed[pod.UID] = pod
		}
	})
	return nil
}

// AddPod takes back RemovePod, or adds a nominated pod to the node. That pod needs its
// addresses before the pod that is being scheduled.
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
		if request, err := pl.reader.Compile(pod); err == nil && pod.Spec.NodeName == "" {
			r.nominated[pod.UID] = nominee{wanted: len(request.Parts), namespace: pod.Namespace}
		}
	})
	return nil
}

// updatePreemption modifies the state's preemption, which no copy of the state shares.
func (s *cycleState) updatePreemption(mutate func(*preemption)) {
	if s.preemption == nil {
		s.preemption = &preemption{removed: map[types.UID]*v1.Pod{}, nominated: map[types.UID]nominee{}}
	}
	mutate(s.preemption)
}
