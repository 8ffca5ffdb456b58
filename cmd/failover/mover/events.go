// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/failover"
	"github.com/berth-dev/berth/ipam/failover/status"
)

const (
	// EventNodeGone (Warning on Node): no node hears anything of this one, so its pods with
	// `berth.dev/failover: Automatic` are deleted, and start elsewhere. Do: fix the node; see
	// docs/how-to/failover.md.
	EventNodeGone = "NodeGone"
	// EventNodeWithoutAPIServer (Warning on Node): its Lease is not renewed, but its agent answers
	// other nodes. Its pods stay until Kubernetes marks them for deletion. Do: have the node reach the
	// API server; see docs/how-to/failover.md#what-moves-and-when.
	EventNodeWithoutAPIServer = "NodeWithoutAPIServer"
	// EventNodeHangs (Warning on Node): its kernel answers, or some host for its addresses, and its
	// agent does not. Its pods stay. Do: power the node off, or restart its agent; see
	// docs/how-to/failover.md#what-moves-and-when.
	EventNodeHangs = "NodeHangs"
	// EventNodeLossUnclear (Warning on Node): its Lease is not renewed, and no other node can say
	// whether it answers. Its pods stay. Do: see the note;
	// docs/how-to/failover.md#what-moves-and-when.
	EventNodeLossUnclear = "NodeLossUnclear"
	// EventNodeBack (Normal on Node): a node from which pods were moved renews its Lease again.
	EventNodeBack = "NodeBack"
	// EventNodeFenced (Warning on Node): the fencer has powered the node off, because nobody hears it
	// or it hangs. Its volumes are detached, and its pods with `berth.dev/failover: Automatic` move.
	// Do: fix the node and switch it on; see docs/how-to/failover.md#power-nodes-off.
	EventNodeFenced = "NodeFenced"
	// EventFencingFailed (Warning on Node): the fencer could not power the node off, or did not say so
	// in time; it is asked again. Do: see the note; docs/how-to/troubleshooting.md#berthfencingfails.
	EventFencingFailed = "FencingFailed"
	// EventMovedFromLostNode (Normal on Pod): the pod was deleted, because its node is lost, and its
	// workload makes the next one.
	EventMovedFromLostNode = "MovedFromLostNode"
)

func (m *Mover) tell(ctx context.Context, j failover.Judged) {
	klog.FromContext(ctx).Info("Judged a node whose Lease is not renewed", "node", j.Node, "verdict", j.Verdict, "pods", len(j.Pods), "moves", len(j.Moves), "testimonies", text(j.Testimonies))
	note := text(j.Testimonies) + ": " + waits(j.Verdict, len(j.Moves), m.Fencer != nil)
	var e event.Event
	switch j.Verdict {
	case status.Off:
		return // NodeFenced told it.
	case status.Gone:
		e = event.Warning(EventNodeGone, note)
	case status.APILost:
		e = event.Warning(EventNodeWithoutAPIServer, note)
	case status.Hung:
		e = event.Warning(EventNodeHangs, note)
	default:
		e = event.Warning(EventNodeLossUnclear, note)
	}
	if n := m.cluster.node(j.Node); n != nil {
		e.Record(m.Events, node(n.Name, string(n.UID)), nil, "Judge")
	}
}

// tellFenced tells users that the fencer has powered a node off, or why not.
func (m *Mover) tellFenced(ctx context.Context, n *v1.Node, err error) {
	e := event.Warning(EventNodeFenced, "the fencer has powered it off: its volumes are detached, and its pods that asked for it move")
	failure := ""
	if err != nil {
		failure = err.Error()
		e = event.Warning(EventFencingFailed, failure+": it is asked again; if you know that the node is off, taint it "+outOfServiceByHand)
		klog.FromContext(ctx).Error(err, "The fencer has not powered a node off, will ask again", "node", n.Name)
	} else {
		klog.FromContext(ctx).Info("The fencer has powered a node off", "node", n.Name)
	}
	e.Record(m.Events, node(n.Name, string(n.UID)), nil, "Fence")
	m.machine.Lock()
	defer m.machine.Unlock()
	m.timing(n.Name).unfenced = failure
}

// outOfServiceByHand is a person's word for Kubernetes.
const outOfServiceByHand = v1.TaintNodeOutOfService + "=nodeshutdown:NoExecute"

func (m *Mover) tellMoved(from string, pod failover.Pod) {
	about := &v1.Pod{}
	about.Namespace, about.Name, about.UID = pod.Namespace, pod.Name, types.UID(pod.UID)
	event.Normal(EventMovedFromLostNode, "node "+from+" is lost: deleted, so that the next pod runs elsewhere").Record(m.Events, about, nil, "Delete")
}

func (m *Mover) tellBrake(ctx context.Context, b failover.Braked) {
	if b.On {
		klog.FromContext(ctx).Error(nil, "The brake is on: too many nodes renew no Lease, and no pod moves", "nodes", b.Suspects, "of", b.Of)
		return
	}
	klog.FromContext(ctx).Info("The brake is off", "nodes", b.Suspects, "of", b.Of)
}

// waits says what is waited for after a verdict, or what a person is to do. fences: there is a
// fencer.
func waits(verdict status.Verdict, moves int, fences bool) string {
	switch {
	case verdict == status.Off:
		return fmt.Sprintf("%d pods move, whatever answers for their addresses", moves)
	case verdict == status.Gone, moves > 0:
		return fmt.Sprintf("%d pods move", moves)
	case verdict == status.APILost:
		return "its pods stay until Kubernetes marks them for deletion: have the node reach the API server"
	case verdict == status.Hung && fences:
		return "its pods stay until the fencer has powered it off"
	case verdict == status.Hung:
		return "its pods stay: power it off, or restart its agent"
	default:
		return "its pods stay until another node of their pools can say whether it answers; if you know that it is off, delete them with --force"
	}
}

// text says what witnesses found.
func text(testimonies []status.Testimony) string {
	if len(testimonies) == 0 {
		return "no other node with a ready agent is in the pools of its addresses"
	}
	var all []string
	for _, t := range testimonies {
		said := "hears nothing of it"
		var heard []string
		if t.Agent {
			heard = append(heard, "its agent")
		}
		if t.Host {
			heard = append(heard, "its kernel")
		}
		for _, addr := range t.Addresses {
			heard = append(heard, addr.String())
		}
		switch {
		case t.Error != "":
			said = "cannot say: " + t.Error
		case len(heard) > 0:
			said = "hears " + strings.Join(heard, ", ")
		case !t.Control:
			said = "hears nobody at all"
		}
		all = append(all, t.Witness+" "+said)
	}
	return strings.Join(all, "; ")
}

// statusOf says a state in the words of the protocol. m.machine is held.
func (m *Mover) statusOf(state failover.State) status.Status {
	s := status.Status{Leads: state.Leads, Watching: state.Watching, Known: state.Known, Nodes: []status.Node{}}
	if state.Braked {
		s.Brake = &status.Brake{Since: m.start.Add(state.BrakedAt), Suspects: state.Suspects}
	}
	for i := range state.Nodes {
		n := &state.Nodes[i]
		told := status.Node{Name: n.Node, Tainted: n.Tainted}
		if n.Suspect {
			told.Since, told.Waits = m.start.Add(n.Seen), m.suspectWaits(&state, n)
			told.Verdict, told.Testimonies = n.Verdict, n.Testimonies
		}
		if n.Judged != 0 {
			told.Judged = m.start.Add(n.Judged)
		}
		for _, pod := range n.Pods {
			told.Pods = append(told.Pods, status.Pod{Namespace: pod.Namespace, Name: pod.Name, Addresses: pod.Addresses, Terminating: pod.Terminating})
		}
		s.Nodes = append(s.Nodes, told)
	}
	return s
}

// suspectWaits says what is waited for of a suspect node. m.machine is held.
func (m *Mover) suspectWaits(state *failover.State, n *failover.NodeState) string {
	switch {
	case !state.Leads:
		return "another replica leads, and asks"
	case state.Braked:
		return "the brake is on: nothing moves while too many nodes renew no Lease, and for a minute after"
	case n.Looked && len(n.Pods) == 0 && n.Fenced:
		return "the fencer has powered it off, and it has no pods with an address that asked to be moved"
	case n.Looked && len(n.Pods) == 0:
		return "it has no pods with an address that asked to be moved" + m.unfenced(n)
	case n.Verdict == "":
		return "other nodes are asked about it"
	}
	return waits(n.Verdict, len(n.Moves), m.Fencer != nil) + m.unfenced(n)
}

// unfenced says whether the fencer is to power a node off, and has not.
func (m *Mover) unfenced(n *failover.NodeState) string {
	switch times := m.rounds[n.Node]; {
	case n.Boots:
		return "; it may be starting: the fencer is asked where it still has not come back five minutes later"
	case !n.Unfenced:
		return ""
	case times == nil || times.unfenced == "":
		return "; the fencer is asked to power it off"
	default:
		return "; " + times.unfenced + ": it is asked again"
	}
}
