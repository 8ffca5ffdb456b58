// SPDX-License-Identifier: Apache-2.0

package register

import (
	"cmp"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
)

type ServiceAddress struct {
	Namespace string `json:"namespace"`
	// Service is the name of the one whose annotations decide, if several share the address.
	Service string `json:"service"`
	standing.Address
	// Carriers are the nodes that carry the address, or are to.
	Carriers []Carrier `json:"carriers"`
}

// Carrier is a node that is to carry an address of a Service.
type Carrier struct {
	Node string `json:"node"`
	// Answers says that the node confirms that it carries the address.
	Answers bool `json:"answers"`
	// Problem is why it does not, if it says so.
	Problem string `json:"problem,omitempty"`
}

// AssignmentOf returns what a NodeAssignment says of Services; ok: it says something.
func AssignmentOf(whole *v1alpha1.NodeAssignment) (of *v1alpha1.NodeAssignment, ok bool) {
	of = &v1alpha1.NodeAssignment{ObjectMeta: metav1.ObjectMeta{Name: whole.Name}, Status: v1alpha1.NodeAssignmentStatus{Carried: whole.Status.Carried, Refused: whole.Status.Refused}}
	for _, address := range whole.Spec.Addresses {
		if address.Use == v1alpha1.UseService {
			of.Spec.Addresses = append(of.Spec.Addresses, v1alpha1.AssignedAddress{Address: address.Address, Use: address.Use})
		}
	}
	return of, len(of.Spec.Addresses) > 0
}

// Services returns the addresses of Services by namespace, Service and address.
func (r *Register) Services(scope Scope) []ServiceAddress {
	pools := r.pools().all
	r.mu.RLock()
	defer r.mu.RUnlock()
	carriers := map[string][]Carrier{}
	for _, assignment := range r.Objects.Assignments.seen(Everything) {
		for i := range assignment.Spec.Addresses {
			address := assignment.Spec.Addresses[i].Address
			of := assignment.Carrier(address)
			carriers[address] = append(carriers[address], Carrier{of.Node, of.Carried, of.Refused.Message})
		}
	}
	all := []ServiceAddress{}
	sees := r.sees(scope)
	for _, row := range r.seen(scope) {
		if row.service && sees(row) {
			address := r.addressOf(row, pools, now())
			all = append(all, ServiceAddress{row.namespace.String(), row.lastPod, address, append([]Carrier{}, carriers[address.Address]...)})
		}
	}
	slices.SortStableFunc(all, func(a, b ServiceAddress) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Service, b.Service))
	})
	return all
}

// Peers returns the BGPPeers by name, which are for those who see everything.
func (r *Register) Peers(scope Scope) []*v1alpha1.BGPPeer {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.Objects.Peers.seen(scope)
}

// Node is a node, or one that FloatingIPs name and that is gone.
type Node struct {
	Name string `json:"name"`
	// Ready is the status of its condition; Gone: there is no such node; empty: nodes cannot be read.
	Ready string `json:"ready,omitempty"`
	// Addresses is how many floating IPs the pods on it have, as far as the asker may see them.
	Addresses int64 `json:"addresses"`
	// Lost says that berth-failover moves its pods: it has the taint berth.dev/lost.
	Lost bool `json:"lost,omitempty"`
}

func (n *Node) GetNamespace() string { return "" }
func (n *Node) GetName() string      { return n.Name }

func (n *Node) IsBad() bool { return n.Lost || n.Ready != "" && n.Ready != string(v1.ConditionTrue) }

func NodeOf(node *v1.Node) *Node {
	n := &Node{Name: node.Name, Ready: string(v1.ConditionUnknown)}
	n.Lost = slices.ContainsFunc(node.Spec.Taints, func(taint v1.Taint) bool { return taint.Key == v1alpha1.TaintLost })
	for _, condition := range node.Status.Conditions {
		if condition.Type == v1.NodeReady {
			n.Ready = string(condition.Status)
		}
	}
	return n
}

// Gone is [Node.Ready] of a node that there is not.
const Gone = "Gone"

// Nodes returns the nodes with the number of their addresses, by name. Who may not see everything
// gets the nodes where the pods are that he sees.
func (r *Register) Nodes(scope Scope) []Node {
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := []Node{}
	r.eachNode(scope, func(node Node) { all = append(all, node) })
	slices.SortFunc(all, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// eachNode calls do with the nodes of a scope, in no order. The caller holds the lock.
func (r *Register) eachNode(scope Scope, do func(Node)) {
	counts := map[text]int64{}
	sees := r.sees(scope)
	for _, row := range r.seen(scope) {
		// A pod on the node, or the node itself, has the address.
		if row.state.of() == standing.Held && row.node != (text{}) && sees(row) {
			counts[row.node]++
		}
	}
	for of, n := range counts {
		node := Node{Name: of.String(), Addresses: n}
		switch known := r.Objects.Nodes.all[keyFor(&node)]; {
		case known != nil:
			node.Ready, node.Lost = known.Ready, known.Lost
		case r.listed[Nodes] && r.missing[Nodes] == "":
			node.Ready = Gone
		}
		do(node)
	}
	if !scope.All() {
		return
	}
	for key, node := range r.Objects.Nodes.all {
		if counts[textOf(key.name)] == 0 {
			do(*node)
		}
	}
}

// WaitingPod is a pod that asks for addresses and has no node.
type WaitingPod struct {
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	Since     time.Time `json:"since"`
	Asks      int64     `json:"asks"`
	Scheduler string    `json:"scheduler"`
	// Reason and Message are its scheduler's; empty: no scheduler has looked at it yet.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// WaitingPodOf returns a pod that waits for addresses; ok is false of others.
func WaitingPodOf(pod *v1.Pod) (w *WaitingPod, ok bool) {
	asks, _ := podrequest.Reader{}.Requested(&pod.Spec)
	if asks == 0 || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || pod.Status.Phase != v1.PodPending {
		return nil, false
	}
	w = &WaitingPod{Namespace: pod.Namespace, Pod: pod.Name, Since: pod.CreationTimestamp.UTC(), Asks: asks, Scheduler: pod.Spec.SchedulerName}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == v1.PodScheduled && condition.Status == v1.ConditionFalse {
			w.Reason, w.Message = condition.Reason, condition.Message
		}
	}
	return w, true
}

func (w *WaitingPod) GetNamespace() string { return w.Namespace }
func (w *WaitingPod) GetName() string      { return w.Pod }

// Waiting returns the pods that wait and have a text in their name, longest first.
func (r *Register) Waiting(scope Scope, text string) []WaitingPod {
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := []WaitingPod{}
	r.eachWaiting(scope, text, func(pod *WaitingPod) { all = append(all, *pod) })
	slices.SortFunc(all, func(a, b WaitingPod) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Pod, b.Pod))
	})
	return all
}

// CountWaiting returns how many pods wait that have a text in their name.
func (r *Register) CountWaiting(scope Scope, text string) int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	n := 0
	r.eachWaiting(scope, text, func(*WaitingPod) { n++ })
	return n
}

func (r *Register) eachWaiting(scope Scope, text string, do func(*WaitingPod)) {
	for of, pod := range r.Objects.Waiting.all {
		if scope.Sees(of.namespace) && strings.Contains(of.namespace+"/"+of.name, text) {
			do(pod)
		}
	}
}
