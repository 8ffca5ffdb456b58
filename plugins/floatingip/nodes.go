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

// nodes caches the reach of each node, because Filter and Score ask for hundreds of
// nodes per pod. It also lists the distinct reaches: they are few where nodes share
// subnets. Safe for concurrent use.
type nodes struct {
	table atomic.Pointer[nodeTable]
	// sessions: nodes without one have fewer pools. nil: all nodes have what they need.
	sessions *sessions
	// changes counts changes that may make the table wrong. renewals counts updates of
	// node objects that do not, such as heartbeats.
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
	// reaches are the distinct reaches of all nodes, and names the nodes of each.
	reaches []*pools.Reach
	names   [][]string
	// capped: some node caps its addresses.
	capped bool
}

type knownNode struct {
	node  *v1.Node
	reach *pools.Reach
	// lacks: the reach is of the node without a BGP session.
	lacks bool
}

// mostRenewals is how many node objects may be newer than the table's before the
// table is rebuilt. A lookup of such a node compares labels and addresses; at this
// number, that costs about as much as a new table.
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

// refresh returns a table of these nodes. It builds a new one if the pools or nodes have changed.
// some: they may be any of the cluster's nodes, and as many others are not the same. Only one
// goroutine at a time may call it. The nodes may be older than a change already counted, so that
// the table is wrong until the change has settled: a caller that finds it wrong calls invalidate.
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

// hasSettled says whether kube-scheduler may have come to see a change in between.
func (n *nodes) hasSettled(since, now time.Time) bool {
	settled := n.settled.Load()
	return settled != nil && since.Before(*settled) && !now.Before(*settled)
}

// sessionChanged counts a node that lost its BGP session, or has one again.
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
