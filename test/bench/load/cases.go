// SPDX-License-Identifier: Apache-2.0

package load

import (
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Case is one way to schedule the same pods onto the same nodes.
type Case struct {
	ID    string
	Title string
	// Berth says that the scheduler has the plugin, with the profile of the
	// manifests; else it is the stock scheduler with the stock profile.
	Berth bool
	// Asks says that each pod asks for a floating IP.
	Asks bool
	// Claims says that another client creates a minimal custom resource for each
	// pod that is bound.
	Claims bool
	// Pools returns the pools of the case, for a number of nodes. Nil: none.
	Pools func(nodes int) []*v1alpha1.IPPool
	// Owner is the kind of an owner, StatefulSet or IPClaim, that has two idle addresses for
	// each node, in the pools of all racks. Nine of ten of the measured pods are its. Empty: all
	// are ordinary.
	Owner string
	// Waits is how many pods wait for ever, all the time, but no more than are measured: with Lists
	// each for one of some addresses that are reserved, while another address comes free for every ten
	// pods that are bound; without, for a claim that nobody makes, or for a node that there is not.
	Waits int
	Lists bool
}

// Cases returns all cases.
func Cases() []Case {
	return []Case{
		{ID: "a", Title: "stock"},
		{ID: "b", Title: "stock, and another client makes one object per pod", Claims: true},
		{ID: "c", Title: "Berth, every pod with an address, a pool per rack", Berth: true, Asks: true, Pools: PoolPerRack},
		{ID: "c1", Title: "Berth, every pod with an address, one big pool", Berth: true, Asks: true, Pools: OnePool},
		{ID: "cn", Title: "Berth, every pod with an address, 10,000 pools", Berth: true, Asks: true, Pools: ManyPools},
		{ID: "d", Title: "Berth, pods without an address, a pool per rack", Berth: true, Pools: PoolPerRack},
		{ID: "cs", Title: "c, and nine of ten pods are of a StatefulSet that keeps addresses", Berth: true, Asks: true, Pools: PoolPerRack, Owner: "StatefulSet"},
		{ID: "cc", Title: "c, and nine of ten pods are of a claim with addresses in all racks", Berth: true, Asks: true, Pools: PoolPerRack, Owner: kindClaim},
		{ID: "cw", Title: "c, while 200 pods wait for a claim", Berth: true, Asks: true, Pools: PoolPerRack, Waits: 200},
		{ID: "cl", Title: "c, while 5,000 pods wait for addresses of lists", Berth: true, Asks: true, Pools: PoolPerRack, Waits: 5000, Lists: true},
		{ID: "al", Title: "stock, while 5,000 pods wait for a node", Waits: 5000},
	}
}

// Waiting is how many pods wait beside this number of measured ones.
func (c Case) Waiting(pods int) int { return min(c.Waits, pods) }

// CaseOf returns the case of an ID.
func CaseOf(id string) (Case, error) {
	for _, c := range Cases() {
		if c.ID == id {
			return c, nil
		}
	}
	return Case{}, fmt.Errorf("there is no case %q", id)
}

// Rack is how many nodes share a subnet.
const Rack = 50

// NodeAddress is the InternalIP of the i-th node: its rack is the subnet's
// number.
func NodeAddress(i int) netip.Addr {
	rack := i / Rack
	return netip.AddrFrom4([4]byte{10, byte(rack / 256), byte(rack % 256), byte(i%Rack + 1)})
}

// NodeTemplate is a node for scheduler_perf, with the same address.
var NodeTemplate = fmt.Sprintf(`apiVersion: v1
kind: Node
metadata:
  name: node-{{.Index}}
spec: {}
status:
  addresses:
  - type: InternalIP
    address: 10.{{DivideInt (DivideInt .Index %[1]d) 256}}.{{Mod (DivideInt .Index %[1]d) 256}}.{{AddInt (Mod .Index %[1]d) 1}}
  capacity:
    pods: "110"
    cpu: "4"
    memory: 32Gi
  conditions:
  - type: Ready
    status: "True"
  phase: Running
`, Rack)

// Node is the i-th node.
func Node(i int) *v1.Node {
	capacity := v1.ResourceList{
		v1.ResourcePods: resource.MustParse("110"), v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("32Gi"),
	}
	name := fmt.Sprintf("node-%d", i)
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}},
		Status: v1.NodeStatus{
			Capacity: capacity, Allocatable: capacity,
			Addresses:  []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: NodeAddress(i).String()}},
			Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}},
		},
	}
}

// PoolPerRack has 1,021 addresses for each rack of nodes, which is more than its
// nodes can run pods at 4 CPUs each.
func PoolPerRack(nodes int) []*v1alpha1.IPPool {
	var pools []*v1alpha1.IPPool
	for rack := range racks(nodes) {
		pools = append(pools, pool(rackPool(rack), netip.PrefixFrom(rackAddress(rack, 0), 22), rackSubnet(rack)))
	}
	return pools
}

// racks is how many racks have this number of nodes.
func racks(nodes int) int { return (nodes + Rack - 1) / Rack }

func rackPool(rack int) string { return fmt.Sprintf("rack-%d", rack) }

// rackAddress is the n-th address of the subnet of a rack's pool.
func rackAddress(rack, n int) netip.Addr {
	return netip.AddrFrom4([4]byte{172, byte(16 + rack/64), byte(rack%64*4 + n/256), byte(n % 256)})
}

// OnePool has a million addresses for all nodes.
func OnePool(int) []*v1alpha1.IPPool {
	return []*v1alpha1.IPPool{pool("all", netip.MustParsePrefix("172.16.0.0/12"))}
}

// ManyPools is 10,000 pools of 125 addresses, spread evenly over the racks.
func ManyPools(nodes int) []*v1alpha1.IPPool {
	var pools []*v1alpha1.IPPool
	for i := range 10_000 {
		at := netip.AddrFrom4([4]byte{172, byte(16 + i/512), byte(i / 2 % 256), byte(i % 2 * 128)})
		pools = append(pools, pool(fmt.Sprintf("pool-%d", i), netip.PrefixFrom(at, 25), rackSubnet(i%racks(nodes))))
	}
	return pools
}

func rackSubnet(rack int) string {
	return netip.PrefixFrom(NodeAddress(rack*Rack), 24).Masked().String()
}

func pool(name string, subnet netip.Prefix, nodeSubnets ...string) *v1alpha1.IPPool {
	return &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.IPPoolSpec{
			Subnet: subnet.String(), Gateway: subnet.Addr().Next().String(), Ranges: []string{subnet.String()}, NodeSubnets: nodeSubnets,
			Cooldown: &metav1.Duration{},
		},
	}
}
