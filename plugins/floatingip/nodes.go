// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"net/netip"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/pools"
)

// nodePools remembers which pools serve a node, for Filter and Score, which ask
// for hundreds of nodes for each pod. It is a map that nobody writes, and beside
// it a small one of the nodes that changed since that was made. Safe for
// concurrent use.
type nodePools struct {
	table atomic.Pointer[nodeTable]
}

// nodeTable is what is known under one snapshot of the pools. A node object that
// changes is another object.
type nodeTable struct {
	snapshot *pools.Snapshot
	settled  map[*v1.Node][]int
	changed  sync.Map // *v1.Node → []int
	changes  atomic.Int32
}

// mostChanged is how many nodes may be in the small map before the large one is
// made anew, which costs a look at every node.
const mostChanged = 128

func newNodePools() *nodePools { return &nodePools{} }

// of returns the positions in the snapshot of the pools that serve a node.
func (n *nodePools) of(snapshot *pools.Snapshot, node *v1.Node) []int {
	table := n.table.Load()
	if table == nil || table.snapshot != snapshot {
		return ipam.PoolsOf(snapshot, nodeOf(node))
	}
	if positions, known := table.look(node); known {
		return positions
	}
	positions := ipam.PoolsOf(snapshot, nodeOf(node))
	if _, known := table.changed.LoadOrStore(node, positions); !known {
		table.changes.Add(1)
	}
	return positions
}

// settle makes the table anew if the pools or many of the nodes have changed
// since, of what is known of the nodes there are. It is called by one goroutine at
// a time.
func (n *nodePools) settle(snapshot *pools.Snapshot, nodes []fwk.NodeInfo) {
	before := n.table.Load()
	if before != nil && before.snapshot == snapshot && before.changes.Load() <= mostChanged {
		return
	}
	table := &nodeTable{snapshot: snapshot, settled: make(map[*v1.Node][]int, len(nodes))}
	if before != nil && before.snapshot == snapshot {
		for _, info := range nodes {
			if positions, known := before.look(info.Node()); known {
				table.settled[info.Node()] = positions
			}
		}
	}
	n.table.Store(table)
}

func (t *nodeTable) look(node *v1.Node) (positions []int, known bool) {
	if positions, known := t.settled[node]; known {
		return positions, true
	}
	if positions, known := t.changed.Load(node); known {
		return positions.([]int), true
	}
	return nil, false
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
