// SPDX-License-Identifier: Apache-2.0

package register

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Node is a node, or one that FloatingIPs name and that is gone.
type Node struct {
	Name string `json:"name"`
	// Ready is the status of its condition Ready; Gone: there is no such node; empty: nodes cannot be
	// read.
	Ready string `json:"ready,omitempty"`
	// Addresses is how many floating IPs the pods on it have, as far as the asker may see them.
	Addresses int64 `json:"addresses"`
	// Lost says that berth-failover moves its pods: it has the taint berth.dev/lost.
	Lost bool `json:"lost,omitempty"`
}

// GetNamespace returns none.
func (n *Node) GetNamespace() string { return "" }

// GetName returns the node's.
func (n *Node) GetName() string { return n.Name }

// IsBad says whether the node is gone, lost or not ready.
func (n *Node) IsBad() bool { return n.Lost || n.Ready != "" && n.Ready != string(v1.ConditionTrue) }

// NodeOf returns a node.
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
