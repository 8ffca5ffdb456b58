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

// preemption is the pods that are thought away from a node, and those thought onto
// it because they were nominated for it. A copy changes independently.
type preemption struct {
	removed map[types.UID]*v1.Pod
	// nominated pods have precedence.
	nominated map[types.UID]nominee
}

// nominee is how many addresses a pod wants, of which namespace.
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

// sum is what it comes to for the pod that is being scheduled. The victims'
// annotations only say where to look.
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

// PreFilterExtensions let preemption count the addresses of its victims.
func (pl *Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return pl }

// RemovePod thinks a pod away from the node.
func (pl *Plugin) RemovePod(_ context.Context, state fwk.CycleState, _ *v1.Pod, removed fwk.PodInfo, _ fwk.NodeInfo) *fwk.Status {
	s := stateOf(state)
	pod := removed.GetPod()
	if s == nil || !pl.reader.Asks(&pod.Spec) {
		return nil
	}
	s.change(func(r *preemption) {
		if _, nominated := r.nominated[pod.UID]; nominated {
			delete(r.nominated, pod.UID)
		} else {
			r.removed[pod.UID] = pod
		}
	})
	return nil
}

// AddPod takes back RemovePod, or thinks a nominated pod onto the node, which
// needs its addresses before the pod that is being scheduled.
func (pl *Plugin) AddPod(_ context.Context, state fwk.CycleState, _ *v1.Pod, added fwk.PodInfo, _ fwk.NodeInfo) *fwk.Status {
	s := stateOf(state)
	pod := added.GetPod()
	if s == nil || !pl.reader.Asks(&pod.Spec) {
		return nil
	}
	s.change(func(r *preemption) {
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

// change gives the state a preemption of its own, for no other copy to see.
func (s *cycleState) change(mutate func(*preemption)) {
	if s.preemption == nil {
		s.preemption = &preemption{removed: map[types.UID]*v1.Pod{}, nominated: map[types.UID]nominee{}}
	}
	mutate(s.preemption)
}
