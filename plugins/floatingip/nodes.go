// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"net/netip"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/pools"
)

// nodePools remembers which pools serve a node, so that Filter is one look-up.
// An entry holds as long as the node object and the pools are the same. Safe for
// concurrent use.
type nodePools struct {
	byNode sync.Map // node name → *nodeEntry
}

type nodeEntry struct {
	node      *v1.Node
	snapshot  *pools.Snapshot
	positions []int
}

func newNodePools() *nodePools { return &nodePools{} }

// of returns the positions in the snapshot of the pools that serve a node.
func (n *nodePools) of(snapshot *pools.Snapshot, node *v1.Node) []int {
	if known, ok := n.byNode.Load(node.Name); ok {
		if entry := known.(*nodeEntry); entry.node == node && entry.snapshot == snapshot {
			return entry.positions
		}
	}
	entry := &nodeEntry{node: node, snapshot: snapshot, positions: ipam.PoolsOf(snapshot, nodeOf(node))}
	n.byNode.Store(node.Name, entry)
	return entry.positions
}

// forget drops a node that is gone.
func (n *nodePools) forget(name string) { n.byNode.Delete(name) }

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
