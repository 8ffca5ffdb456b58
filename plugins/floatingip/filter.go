// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Reasons that a user reads in `kubectl describe pod`.
const (
	ErrReasonNode     = "node(s) in no IPPool that has an address for the pod"
	ErrReasonKeptNode = "node(s) where the pod's retained floating IP is not reachable"
)

const stateKey = fwk.StateKey(Name)

// cycleState is what PreFilter found and Reserve took. The reservation is
// written once, in Reserve, which runs alone; a clone made before, for
// preemption, never sees it.
type cycleState struct {
	candidates  *ipam.Candidates
	reservation *ipam.Reservation
}

// Clone returns the state itself: only Reserve changes it, and never on a clone.
func (s *cycleState) Clone() fwk.StateData { return s }

// stateOf returns nil for a pod without a floating IP, whose PreFilter was
// skipped and wrote none.
func stateOf(state fwk.CycleState) *cycleState {
	data, err := state.Read(stateKey)
	if err != nil {
		return nil
	}
	return data.(*cycleState)
}

// PreFilter compiles the pod's request and finds the pools that can serve it.
func (pl *Plugin) PreFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if !asks(pod) {
		if name := strayAnnotation(pod); name != "" {
			return nil, toStatus(fmt.Errorf("the pod has annotation %s but no container requests %s: add resources.requests[%[2]q]: 1 to one, or remove the annotation", name, v1alpha1.ResourceIP))
		}
		return nil, fwk.NewStatus(fwk.Skip)
	}
	request, err := pl.request(pod)
	if err != nil {
		return nil, toStatus(err)
	}
	// First wait, then look: what comes free in between wakes the pod.
	pl.waiting.add(pod, request)
	candidates, err := pl.addresses.Candidates(request)
	if err != nil {
		return nil, toStatus(err)
	}
	state.Write(stateKey, &cycleState{candidates: candidates})
	if _, kept := candidates.Kept(); !kept {
		return nil, nil
	}
	names := sets.New[string]()
	for _, node := range nodes {
		if candidates.Serves(pl.nodes.of(candidates.Snapshot(), node.Node())) {
			names.Insert(node.Node().Name)
		}
	}
	if len(names) == 0 {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, ErrReasonKeptNode)
	}
	return &fwk.PreFilterResult{NodeNames: names}, nil
}

// PreFilterExtensions do not exist: see the package documentation.
func (pl *Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter says whether the node is in a pool that can serve the pod.
func (pl *Plugin) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, nodeInfo fwk.NodeInfo) *fwk.Status {
	s := stateOf(state)
	if s == nil {
		// PreFilter found no address. Preemption asks nevertheless.
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, ErrReasonNode)
	}
	if !s.candidates.Serves(pl.nodes.of(s.candidates.Snapshot(), nodeInfo.Node())) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, ErrReasonNode)
	}
	return nil
}

// SignPod lets pods without a floating IP be batched: the plugin adds nothing
// for them. A pod with one is not to be batched, since each address taken changes
// what the next pod can have.
func (pl *Plugin) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if asks(pod) || strayAnnotation(pod) != "" {
		return nil, fwk.NewStatus(fwk.Unschedulable, "pods with a floating IP are scheduled one by one")
	}
	return nil, nil
}
