// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"maps"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/pools"
)

// nodes caches the reach of each node, because Filter and Score ask for hundreds of nodes per pod.
// It also lists the distinct reaches: there are few if nodes share subnets. Safe for concurrent
// use.
type nodes struct {
	table atomic.Pointer[nodeTable]
	// sessions knows the nodes without a BGP session: they have fewer pools. nil: no node lacks a
	// session.
	sessions *sessions
	// changes counts changes that may make the table wrong. renewals counts other updates of node
	// objects, such as heartbeats.
	changes, renewals atomic.Int64
	// settled is when kube-scheduler has seen the last of the changes: see nodeSettles.
	settled atomic.Pointer[time.Time]
}

// nodeTable holds the reaches under one snapshot of the pools. Immutable.
type nodeTable struct {
	snapshot          *pools.Snapshot
	changes, renewals int64
	made              time.Time
	nodes             map[string]knownNode
	// reaches are the distinct reaches of all nodes, names the nodes of each reach.
	reaches []*pools.Reach
	names   [][]string
	// capped says that some node caps its addresses.
	capped bool
}

type knownNode struct {
	node  *v1.Node
	reach *pools.Reach
	// lacks says that the reach is the node's reach without a BGP session.
	lacks bool
}

// mostRenewals is how many node objects may be newer than the table's before the table is rebuilt.
// A lookup of such a node compares labels and addresses. For this number of nodes, the comparisons
// cost about as much as a new table.
const mostRenewals = 128

// reach returns the pools that serve a node, by the sessions that it has now. It is correct for
// every node, and fast for nodes of the table.
func (n *nodes) reach(snapshot *pools.Snapshot, node *v1.Node) *pools.Reach {
	return n.reachWith(snapshot, node, n.lacks(snapshot, node.Name))
}

// lacks says whether pools do not serve the node because it has no BGP session.
func (n *nodes) lacks(snapshot *pools.Snapshot, node string) bool {
	return snapshot.RequireSession() && n.sessions.lacks(node)
}

func (n *nodes) reachWith(snapshot *pools.Snapshot, node *v1.Node, lacks bool) *pools.Reach {
	if table := n.table.Load(); table != nil && table.snapshot == snapshot {
		known, ok := table.nodes[node.Name]
		if ok && known.lacks == lacks && (known.node == node || sameReach(known.node, node)) {
			return known.reach
		}
	}
	reach := ipam.ReachOf(snapshot, ipam.NodeOf(node))
	if lacks {
		return snapshot.WithoutSession(reach)
	}
	return reach
}

// refresh returns a table of these nodes. It builds a new table if the pools or nodes have changed.
// some says that infos are only some of the cluster's nodes, so an equal number does not mean the
// same nodes. Only one goroutine at a time may call refresh. The nodes may be older than a counted
// change, so the table may be wrong until the change has settled: a caller that finds it wrong
// calls invalidate.
func (n *nodes) refresh(snapshot *pools.Snapshot, infos []fwk.NodeInfo, some bool) *nodeTable {
	before := n.table.Load()
	changes, renewals, now := n.changes.Load(), n.renewals.Load(), time.Now()
	if before != nil && before.snapshot == snapshot && before.changes == changes && len(before.nodes) == len(infos) &&
		renewals-before.renewals <= mostRenewals && !n.hasSettled(before.made, now) &&
		!(some && slices.ContainsFunc(infos, func(info fwk.NodeInfo) bool { return before.nodes[info.Node().Name].node == nil })) {
		return before
	}
	table := &nodeTable{snapshot: snapshot, changes: changes, renewals: renewals, made: now, nodes: make(map[string]knownNode, len(infos))}
	known := map[string]int{}
	for _, info := range infos {
		node := info.Node()
		lacks := n.lacks(snapshot, node.Name)
		reach := n.reachWith(snapshot, node, lacks)
		key := reach.Key()
		at, ok := known[key]
		if !ok {
			at = len(table.reaches)
			known[key] = at
			table.reaches, table.names = append(table.reaches, reach), append(table.names, nil)
		}
		table.names[at] = append(table.names[at], node.Name)
		table.nodes[node.Name] = knownNode{node: node, reach: table.reaches[at], lacks: lacks}
		table.capped = table.capped || len(capOf(node)) > 0
	}
	n.table.Store(table)
	return table
}

// changed counts a node that was added (before is nil), deleted (after is nil) or
// updated.
func (n *nodes) changed(before, after *v1.Node) {
	if before == nil || after == nil || !sameReach(before, after) || !sameCap(before, after) {
		settled := time.Now().Add(nodeSettles)
		n.settled.Store(&settled)
		n.changes.Add(1)
	} else {
		n.renewals.Add(1)
	}
}

// hasSettled says whether kube-scheduler may have begun to see a change between since and now.
func (n *nodes) hasSettled(since, now time.Time) bool {
	settled := n.settled.Load()
	return settled != nil && since.Before(*settled) && !now.Before(*settled)
}

// sessionChanged counts a node that lost or got its BGP session.
func (n *nodes) sessionChanged() {
	if table := n.table.Load(); table == nil || table.snapshot.RequireSession() {
		n.changes.Add(1)
	}
}

// invalidate makes the next refresh build a new table.
func (n *nodes) invalidate() { n.changes.Add(1) }

// sameReach says whether two states of a node have the same labels and addresses,
// which determine the reach.
func sameReach(a, b *v1.Node) bool {
	return maps.Equal(a.Labels, b.Labels) && slices.Equal(a.Status.Addresses, b.Status.Addresses)
}
