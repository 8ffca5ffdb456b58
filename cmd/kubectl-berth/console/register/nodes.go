// SPDX-License-Identifier: Apache-2.0

package register

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
)

// Node is a node, or one that FloatingIPs name and that is gone.
type Node struct {
	Name string `json:"name"`
	// Ready is the status of its condition Ready; Gone: there is no such node; empty: nodes cannot be read.
	Ready string `json:"ready,omitempty"`
	// Addresses is how many floating IPs the pods on it have, as far as the asker may see them.
	Addresses int64 `json:"addresses"`
}

// IsBad says whether the node is gone or not ready.
func (n *Node) IsBad() bool { return n.Ready != "" && n.Ready != string(v1.ConditionTrue) }

// NodeOf returns a node.
func NodeOf(node *v1.Node) *Node {
	n := &Node{Name: node.Name, Ready: string(v1.ConditionUnknown)}
	for _, condition := range node.Status.Conditions {
		if condition.Type == v1.NodeReady {
			n.Ready = string(condition.Status)
		}
	}
	return n
}

// Gone is [Node.Ready] of a node that there is not.
const Gone = "Gone"

// ReplaceNodes makes the nodes of a list all that there are.
func (r *Register) ReplaceNodes(all []*Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listed[Nodes] = true
	clear(r.nodes)
	for _, node := range all {
		r.nodes[node.Name] = node
	}
	r.changed()
}

// PutNode adds a node, or replaces it. A node changes often, and what is shown of it rarely.
func (r *Register) PutNode(node *Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if before := r.nodes[node.Name]; before != nil && *before == *node {
		return
	}
	r.nodes[node.Name] = node
	r.changed()
}

// DeleteNode removes a node.
func (r *Register) DeleteNode(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.nodes, name)
	r.changed()
}

// Nodes returns the nodes with the number of their addresses, by name. Who may not see everything gets the nodes where the
// pods are that he sees.
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
	counts := r.carried
	if !scope.All() {
		counts = map[id]int64{}
		sees := r.sees(scope)
		for _, row := range r.seen(scope) {
			if carries(row) && sees(row) {
				counts[row.node]++
			}
		}
	}
	for of, n := range counts {
		node := Node{Name: r.names.of(of), Addresses: n}
		switch known := r.nodes[node.Name]; {
		case known != nil:
			node.Ready = known.Ready
		case r.listed[Nodes] && r.missing[Nodes] == "":
			node.Ready = Gone
		}
		do(node)
	}
	if !scope.All() {
		return
	}
	for name, node := range r.nodes {
		if of, known := r.names.find(name); !known || counts[of] == 0 {
			do(*node)
		}
	}
}

// carries says whether a pod on a node has the address.
func carries(row *Row) bool { return row.state.of() == standing.Held && row.node != 0 }

// tally counts an address of a node and of a namespace. The caller holds the lock.
func (r *Register) tally(row *Row, n int64) {
	count := func(counts map[id]int64, of id) {
		if counts[of] += n; counts[of] == 0 {
			delete(counts, of) // it may stand for another text soon
		}
	}
	count(r.owned, row.namespace)
	if carries(row) {
		count(r.carried, row.node)
	}
}
