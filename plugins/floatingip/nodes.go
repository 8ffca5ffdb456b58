// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/pools"
)

// nodes remembers which pools are reachable at a node, for Filter and Score, which
// ask for hundreds of nodes for each pod, and which differ from node to node: they
// are few where nodes share subnets. Safe for concurrent use.
type nodes struct {
	table atomic.Pointer[nodeTable]
	// changes counts what may make the table wrong, and renewals the node objects
	// that came in place of others that say the same, as with every heartbeat.
	changes, renewals atomic.Int64
}

// nodeTable is what is known under one snapshot of the pools. Immutable.
type nodeTable struct {
	snapshot          *pools.Snapshot
	changes, renewals int64
	nodes             map[string]knownNode
	// reaches are those of all nodes, each once.
	reaches []*pools.Reach
	// capped: some node advertises how many addresses it may have.
	capped bool
}

type knownNode struct {
	node  *v1.Node
	reach *pools.Reach
}

// mostRenewals is how many nodes may have another object than the table has before
// the table is made anew: what a look at such a node costs more comes to about as
// much by then.
const mostRenewals = 128

// reach returns the pools that are reachable at a node. It is right for every node,
// and quick for those of the table.
func (n *nodes) reach(snapshot *pools.Snapshot, node *v1.Node) *pools.Reach {
	table := n.table.Load()
	if table == nil || table.snapshot != snapshot {
		return ipam.ReachOf(snapshot, nodeOf(node))
	}
	known, ok := table.nodes[node.Name]
	if !ok || known.node != node && !sameReach(known.node, node) {
		return ipam.ReachOf(snapshot, nodeOf(node))
	}
	return known.reach
}

// refresh returns a table of these nodes, which it makes anew if the pools or nodes
// have changed since. It is called by one goroutine at a time. The nodes may be older
// than a change that was noted: a caller that finds the table wrong calls invalidate.
func (n *nodes) refresh(snapshot *pools.Snapshot, infos []fwk.NodeInfo) *nodeTable {
	before := n.table.Load()
	changes, renewals := n.changes.Load(), n.renewals.Load()
	if before != nil && before.snapshot == snapshot && before.changes == changes && len(before.nodes) == len(infos) && renewals-before.renewals <= mostRenewals {
		return before
	}
	table := &nodeTable{snapshot: snapshot, changes: changes, renewals: renewals, nodes: make(map[string]knownNode, len(infos))}
	shared := map[string]*pools.Reach{}
	for _, info := range infos {
		node := info.Node()
		reach := n.reach(snapshot, node)
		key := reach.Key()
		if first, ok := shared[key]; ok {
			reach = first
		} else {
			shared[key] = reach
			table.reaches = append(table.reaches, reach)
		}
		table.nodes[node.Name] = knownNode{node: node, reach: reach}
		table.capped = table.capped || len(capOf(node)) > 0
	}
	n.table.Store(table)
	return table
}

// changed takes note of a node that came (before is nil), went (after is nil) or
// changed.
func (n *nodes) changed(before, after *v1.Node) {
	if before == nil || after == nil || !sameReach(before, after) || !sameCap(before, after) {
		n.changes.Add(1)
	} else {
		n.renewals.Add(1)
	}
}

// invalidate has the table made anew.
func (n *nodes) invalidate() { n.changes.Add(1) }

// sameReach says that nothing differs which pools go by.
func sameReach(a, b *v1.Node) bool {
	return maps.Equal(a.Labels, b.Labels) && slices.Equal(a.Status.Addresses, b.Status.Addresses)
}

func nodeOf(node *v1.Node) ipam.Node {
	result := ipam.Node{Name: node.Name, Labels: labels.Set(node.Labels), ProviderID: node.Spec.ProviderID}
	for _, address := range node.Status.Addresses {
		if address.Type != v1.NodeInternalIP {
			continue
		}
		if addr, err := netip.ParseAddr(address.Address); err == nil {
			result.Addresses = append(result.Addresses, addr.Unmap())
		}
	}
	return result
}
