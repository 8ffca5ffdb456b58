// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/pools"
)

const stateKey = fwk.StateKey(Name)

// cycleState holds the findings of PreFilter and the reservation of Reserve.
type cycleState struct {
	*found
	// preemption is the preemption that kube-scheduler is trying out, or that earlier pods of the gang
	// need; nil: none.
	preemption *preemption
}

// found is shared by all copies of a state.
type found struct {
	candidates *ipam.Candidates
	// reaches are the distinct reaches of all nodes.
	reaches []*pools.Reach
	// agentless is the number of nodes without a ready agent.
	agentless int
	// fitsAll says that every node can serve the pod, so kube-scheduler skips Filter.
	fitsAll bool
	// levels has the level of room of each reach, for Score.
	levels map[*pools.Reach]int64
	// bySession says that Score looks at the nodes' BGP sessions.
	bySession bool
	// short has isShort if a node lacked an address for the pod, and the bits of ipam.Lack
	// and of cause of all such nodes.
	short atomic.Uint32
	// reservation is written once, in Reserve, which runs alone. Copies of the state
	// are made for preemption and do not read it.
	reservation *ipam.Reservation
	// preBound says that PreBind began to commit the reservation, and Bind has not begun.
	preBound bool
}

const isShort = 1 << 16

// lacking records a lack and its cause, and says whether either is new for the pod.
func (f *found) lacking(lack ipam.Lack, why cause) bool {
	bits := isShort | uint32(lack) | uint32(why)<<8
	return f.short.Or(bits)&bits != bits
}

// Clone copies the preemption and shares the rest.
func (s *cycleState) Clone() fwk.StateData {
	return &cycleState{found: s.found, preemption: s.preemption.clone()}
}

// stateOf returns nil if PreFilter wrote no state: it skipped or rejected the pod.
func stateOf(state fwk.CycleState) *cycleState {
	data, err := state.Read(stateKey)
	if err != nil {
		return nil
	}
	return data.(*cycleState)
}

// PreFilter compiles the pod's request and finds its candidates. It rejects the pod only if no
// address can serve it, even if addresses become free: a pod that finds no address now may get one
// by preemption, which runs only after the Filters. PreFilter skips Filter if every node can serve
// the pod, even after the waiting pods that may use the same pools took their addresses.
func (pl *Plugin) PreFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	request, err := ipam.RequestOfPod(pl.reader, pod, pl.between, pl.namespace)
	if errors.Is(err, podrequest.ErrNone) {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	if err == nil {
		err = request.CheckVolumes(pod, func(name string) (*v1.PersistentVolumeClaim, error) { return pl.volumeClaim(pod.Namespace, name) })
	}
	if err != nil {
		pl.waiting.forget(pod.UID)
		return nil, toStatus(err)
	}
	if rejected := pl.boundElsewhere(pod); rejected != nil {
		pl.waiting.forget(pod.UID)
		return nil, rejected
	}
	forgetInResourcesFit(state)
	_ = pl.sets.limit(&request) // asked again below
	// The pod joins the line before PreFilter looks, so a change in between wakes it.
	pl.waiting.add(pod, request)
	before := request.MaxPods
	if err = pl.sets.limit(&request); request.MaxPods != before {
		// The size of the set changed, or was read, before the pod joined the line.
		pl.waiting.add(pod, request)
	}
	if err != nil {
		pl.waiting.short(pod.UID, ipam.LackOwner, why{causes: causeOwner})
		return nil, toStatus(err)
	}
	if err := pl.migrates(pod, &request); err != nil {
		return nil, toStatus(err)
	}
	candidates, err := pl.addresses.Candidates(request)
	if err != nil {
		lack := lackOf(err)
		pl.waiting.short(pod.UID, lack, why{causes: causeOf(lack)})
		return nil, toStatus(err)
	}
	table := pl.nodes.refresh(candidates.Snapshot(), nodes, state.IsPodGroupSchedulingCycle())
	s := &cycleState{found: &found{candidates: candidates, reaches: table.reaches, agentless: pl.agents.missing(len(nodes))}, preemption: gangOf(state).assumed()}
	state.Write(stateKey, s)
	if s.preemption == nil && !table.capped && s.agentless == 0 && candidates.FitAll(table.reaches, pl.waiting.demand(candidates.Snapshot())) {
		s.fitsAll = true
		return nil, fwk.NewStatus(fwk.Skip)
	}
	if len(candidates.Kept()) == 0 {
		return nil, nil
	}
	return pl.withinKept(pod, candidates, table, nodes)
}

// withinKept names the nodes that reach the pod's kept addresses, if there are few of them.
func (pl *Plugin) withinKept(pod *v1.Pod, candidates *ipam.Candidates, table *nodeTable, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	pl.waiting.wants(pod.UID, candidates.Wanted())
	var within [][]string
	served := 0
	for at, reach := range table.reaches {
		if candidates.KeptWithin(reach) { // Filter reports the other reasons.
			within, served = append(within, table.names[at]), served+len(table.names[at])
		}
	}
	if served == 0 {
		lack, because, reason := ipam.LackOwner, causeOwner, ipam.ReasonKeptNode
		if rejection := pl.keptForSession(candidates, nodes); rejection != nil {
			lack, because, reason = rejection.Lacks, causeSession, rejection.Reason
		}
		pl.waiting.short(pod.UID, lack, why{because, candidates.OnlyPool()})
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reason)
	}
	if len(within) < len(table.reaches) {
		pl.waiting.narrowed(pod.UID)
	}
	if len(nodes) < mostServed*served {
		return nil, nil // There are many nodes: Filter rejects the others.
	}
	return &fwk.PreFilterResult{NodeNames: sets.New(slices.Concat(within...)...)}, nil
}

// boundElsewhere rejects a pod that an extender would bind without its addresses.
func (pl *Plugin) boundElsewhere(pod *v1.Pod) *fwk.Status {
	for _, extender := range pl.handle.Extenders() {
		if extender.IsBinder() && extender.IsInterested(pod) {
			return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("extender %s would bind the pod without its addresses: "+
				"remove its bindVerb from the scheduler's configuration, or the pod's request for addresses", extender.Name()))
		}
	}
	return nil
}

// keptForSession returns the rejection of a node that lacks only a BGP session for the pod's kept
// addresses; nil if there is no such node.
func (pl *Plugin) keptForSession(candidates *ipam.Candidates, nodes []fwk.NodeInfo) *ipam.Rejection {
	for _, info := range nodes {
		if !pl.nodes.lacks(candidates.Snapshot(), info.Node().Name) {
			continue
		}
		if reach := pl.nodes.reachWith(candidates.Snapshot(), info.Node(), false); candidates.KeptWithin(reach) {
			return candidates.WithoutSession(reach)
		}
	}
	return nil
}

// mostServed: PreFilter names nodes only if they are at most one in mostServed of all nodes.
// kube-scheduler looks at all named nodes, but without names only until it has found enough nodes.
const mostServed = 2

// lackOf returns the Lack of a request without candidates.
func lackOf(err error) ipam.Lack {
	var shortage *ipam.ShortageError
	if errors.As(err, &shortage) {
		return shortage.Lacks
	}
	return 0
}

// rejects says why a node with this reach cannot have a pod of a namespace under the state's
// preemption; nil if it can.
func (s *cycleState) rejects(reach *pools.Reach, namespace, node string) *ipam.Rejection {
	if source := s.candidates.AtSource(node); source != nil {
		return source
	}
	if s.preemption == nil {
		return s.candidates.Rejects(reach)
	}
	return s.candidates.RejectsAfter(reach, s.preemption.sum(s.candidates, namespace, node))
}

// Filter says whether the node has addresses for the pod, and an agent to wire them.
func (pl *Plugin) Filter(_ context.Context, state fwk.CycleState, pod *v1.Pod, nodeInfo fwk.NodeInfo) *fwk.Status {
	s := stateOf(state)
	if s == nil {
		// PreFilter found that nothing can serve the pod. Preemption calls Filter
		// nevertheless.
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, ipam.ReasonNode)
	}
	reach := pl.nodes.reach(s.candidates.Snapshot(), nodeInfo.Node())
	rejection, because := s.rejects(reach, pod.Namespace, nodeInfo.Node().Name), cause(0)
	if rejection != nil && pl.nodes.lacks(s.candidates.Snapshot(), nodeInfo.Node().Name) {
		if without := s.candidates.WithoutSession(pl.nodes.reachWith(s.candidates.Snapshot(), nodeInfo.Node(), false)); without != nil {
			without.Lacks |= rejection.Lacks
			without.Unresolvable = rejection.Unresolvable // preemption may help with another pool of the node
			rejection, because = without, causeSession
		}
	}
	if s.agentless > 0 && (rejection == nil || !rejection.Unresolvable) && !pl.agents.has(nodeInfo.Node().Name) {
		rejection, because = noAgent(nodeInfo.Node().Name, s.agentless), causeAgent
	}
	if rejection == nil || !rejection.Unresolvable {
		if status := withinNode(pl.reader, pod, nodeInfo); status != nil {
			return status
		}
	}
	if rejection == nil {
		return nil
	}
	if because == 0 {
		because = causeOf(rejection.Lacks)
	}
	if s.lacking(rejection.Lacks, because) {
		pl.waiting.short(pod.UID, rejection.Lacks, why{because, s.candidates.OnlyPool()})
	}
	code := fwk.Unschedulable
	if rejection.Unresolvable {
		code = fwk.UnschedulableAndUnresolvable
	}
	return fwk.NewStatus(code, rejection.Reason)
}

// SignPod lets kube-scheduler batch pods without a floating IP. Pods with a floating IP must not be
// batched, because each address taken changes the choice for the next pod.
func (pl *Plugin) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if pl.reader.Asks(&pod.Spec) || podrequest.StrayAnnotation(pod) != "" {
		return nil, fwk.NewStatus(fwk.Unschedulable, "pods with a floating IP are scheduled one by one")
	}
	return nil, nil
}
