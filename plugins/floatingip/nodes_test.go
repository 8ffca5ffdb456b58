// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

// nodeInfo has the methods of a NodeInfo that the code uses.
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

// A cached reach never outlives the state of its node or of the pools.
func TestNodes(t *testing.T) {
	both, one := ofRacks("a", "b"), ofRacks("b")
	first, second := inRack("node1", "a"), inRack("node2", "b")
	n := &nodes{}
	expect := func(what string, snapshot *pools.Snapshot, node *v1.Node, want ...int) {
		t.Helper()
		if got := n.reach(snapshot, node).Positions(); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	settle := func(snapshot *pools.Snapshot, of ...*v1.Node) *nodeTable {
		var infos []fwk.NodeInfo
		for _, node := range of {
			infos = append(infos, nodeInfo{node: node})
		}
		return n.refresh(snapshot, infos, false)
	}
	expect("before the first pod", both, first, 0)
	table := settle(both, first, second, inRack("node3", "b"))
	if len(table.reaches) != 2 {
		t.Errorf("two racks have %d reaches", len(table.reaches))
	}
	expect("a node", both, first, 0)
	expect("another", both, second, 1)
	expect("a node that moved to another rack", both, inRack("node1", "b"), 1)
	expect("a node that came since", both, inRack("node9", "b"), 1)
	if n.reach(both, inRack("node1", "a")) != n.reach(both, first) {
		t.Error("a node's next object has another reach though it says the same")
	}
	expect("other pools", one, second, 0)
	settle(one, first, second)
	expect("other pools, settled", one, second, 0)
	expect("other pools, settled, which do not serve it", one, first)
}

func TestNodesSettle(t *testing.T) {
	snapshot := ofRacks("a", "b")
	first, second := inRack("node1", "a"), inRack("node2", "b")
	capped := inRack("node2", "b")
	capped.Status.Allocatable = v1.ResourceList{v1alpha1.ResourceIP: resource.MustParse("3")}
	info := func(of ...*v1.Node) (infos []fwk.NodeInfo) {
		for _, node := range of {
			infos = append(infos, nodeInfo{node: node})
		}
		return infos
	}
	for name, test := range map[string]struct {
		happens func(*nodes)
		after   []fwk.NodeInfo
		// some: kube-scheduler asks about some of the nodes.
		some   bool
		anew   bool
		capped bool
	}{
		"nothing":           {func(*nodes) {}, info(first, second), false, false, false},
		"a heartbeat":       {func(n *nodes) { n.changed(first, first.DeepCopy()) }, info(first.DeepCopy(), second), false, false, false},
		"a node moves":      {func(n *nodes) { n.changed(first, inRack("node1", "b")) }, info(inRack("node1", "b"), second), false, true, false},
		"a node comes":      {func(n *nodes) { n.changed(nil, inRack("node3", "b")) }, info(first, second, inRack("node3", "b")), false, true, false},
		"a node goes":       {func(n *nodes) { n.changed(nil, nil) }, info(first), false, true, false},
		"it is seen before": {func(*nodes) {}, info(first, second, inRack("node3", "b")), false, true, false},
		"a node caps":       {func(n *nodes) { n.changed(second, capped) }, info(first, capped), false, true, true},
		"doubt":             {func(n *nodes) { n.invalidate() }, info(first, second), false, true, false},
		"many heartbeats": {func(n *nodes) {
			for range mostRenewals + 1 {
				n.changed(first, first.DeepCopy())
			}
		}, info(first.DeepCopy(), second), false, true, false},
		"fewer heartbeats": {func(n *nodes) {
			for range mostRenewals {
				n.changed(first, first.DeepCopy())
			}
		}, info(first.DeepCopy(), second), false, false, false},
		"some nodes":                {func(*nodes) {}, info(second, first), true, false, false},
		"as many others of a group": {func(*nodes) {}, info(first, inRack("node3", "b")), true, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := &nodes{}
			n.changed(first, first.DeepCopy()) // before the first table
			before := n.refresh(snapshot, info(first, second), false)
			test.happens(n)
			after := n.refresh(snapshot, test.after, test.some)
			if anew := before != after; anew != test.anew {
				t.Errorf("the table was made anew: %v, want %v", anew, test.anew)
			}
			if after.capped != test.capped {
				t.Errorf("capped: %v", after.capped)
			}
		})
	}
}

// A change that the plugin sees before kube-scheduler does is in no table for long.
func TestNodesSeenLate(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		snapshot, n := ofRacks("a", "b"), &nodes{}
		before, after := inRack("node1", "a"), inRack("node1", "b")
		positions := func(node *v1.Node) []int {
			return n.refresh(snapshot, []fwk.NodeInfo{nodeInfo{node: node}}, false).reaches[0].Positions()
		}
		n.changed(before, after)
		if got := positions(before); !slices.Equal(got, []int{0}) {
			t.Errorf("kube-scheduler has the node as it was: %v", got)
		}
		<-time.After(nodeSettles)
		if got := positions(after); !slices.Equal(got, []int{1}) {
			t.Errorf("kube-scheduler has seen the change: %v", got)
		}
		made := n.table.Load()
		<-time.After(nodeSettles)
		positions(after)
		if n.table.Load() != made {
			t.Error("the table was made anew without a change")
		}
	})
}
