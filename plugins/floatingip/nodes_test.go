// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

// nodeInfo is all of a NodeInfo that is asked for.
type nodeInfo struct {
	fwk.NodeInfo
	node *v1.Node
}

func (n nodeInfo) Node() *v1.Node { return n.node }

func inRack(name, rack string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"rack": rack}}}
}

// ofRacks compiles a pool for each rack.
func ofRacks(racks ...string) *pools.Snapshot {
	var objects []*v1alpha1.IPPool
	for i, rack := range racks {
		objects = append(objects, &v1alpha1.IPPool{
			ObjectMeta: metav1.ObjectMeta{Name: rack},
			Spec: v1alpha1.IPPoolSpec{
				Subnet: fmt.Sprintf("10.0.%d.0/24", i), Ranges: []string{fmt.Sprintf("10.0.%d.2", i)},
				NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"rack": rack}},
			},
		})
	}
	return pools.Compile(objects)
}

// What is remembered of a node never outlives the node object or the pools.
func TestNodePools(t *testing.T) {
	both, one := ofRacks("a", "b"), ofRacks("b")
	first, second := inRack("node1", "a"), inRack("node2", "b")
	n := newNodePools()
	expect := func(what string, snapshot *pools.Snapshot, node *v1.Node, want ...int) {
		t.Helper()
		for range 2 { // once looked at, once remembered
			if got := n.of(snapshot, node); !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
	}
	expect("before the first pod", both, first, 0)
	n.settle(both, []fwk.NodeInfo{nodeInfo{node: first}, nodeInfo{node: second}})
	expect("a node", both, first, 0)
	expect("another", both, second, 1)
	expect("a node that moved to another rack", both, inRack("node1", "b"), 1)
	expect("other pools", one, second, 0)
	n.settle(one, []fwk.NodeInfo{nodeInfo{node: first}, nodeInfo{node: second}})
	expect("other pools, settled", one, second, 0)
	expect("other pools, settled, which do not serve it", one, first)

	for i := range mostChanged + 1 {
		n.of(one, inRack(fmt.Sprint("new-", i), "b"))
	}
	n.of(one, second)
	before := n.table.Load()
	n.settle(one, []fwk.NodeInfo{nodeInfo{node: second}})
	if after := n.table.Load(); after == before || len(after.settled) != 1 {
		t.Error("nodes that are gone are remembered though many have changed")
	}
	expect("after that", one, second, 0)
}
