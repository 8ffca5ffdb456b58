// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

// Owner is the workload an address belongs to.
type Owner = allocator.Owner

// Request is a pod's wish for an address. Immutable.
type Request struct {
	// Namespace, Name and UID are the pod's.
	Namespace, Name, UID string
	Owner                Owner
	Policy               v1alpha1.ReleasePolicy
	// Pools limits the request to pools of these names; empty means any.
	Pools []string
	// NamespaceLabels are matched with a pool's namespaceSelector.
	NamespaceLabels labels.Set
}

// Node is what matters of a node.
type Node struct {
	Name string
	// Addresses are the node's InternalIPs.
	Addresses []netip.Addr
	Labels    labels.Set
}

// Candidates is what can serve a request at one moment: an address its owner
// already has, or the pools with a free one. Immutable.
type Candidates struct {
	request  Request
	snapshot *pools.Snapshot
	// kept is an address that the pod must have: its owner retained it, or the
	// pod was bound with it.
	kept *allocator.Record
	// stale are addresses that earlier attempts to schedule the pod committed, in
	// this process or in another scheduler. The pod need not run with them.
	stale []allocator.Record
	// usable marks the pools, by position in the snapshot, that can serve.
	usable []bool
}

// Kept returns the address that the pod must have, if any.
func (c *Candidates) Kept() (netip.Addr, bool) {
	if c.kept == nil {
		return netip.Addr{}, false
	}
	return c.kept.Addr, true
}

// Serves says whether a node that serves the pools at these positions can have
// the pod.
func (c *Candidates) Serves(nodePools []int) bool {
	for _, i := range nodePools {
		if c.usable[i] {
			return true
		}
	}
	return false
}

// Snapshot is what positions of pools refer to.
func (c *Candidates) Snapshot() *pools.Snapshot { return c.snapshot }

// PoolsOf returns the positions, in s.Pools(), of the pools that serve a node.
func PoolsOf(s *pools.Snapshot, node Node) []int {
	var positions []int
	for i, pool := range s.Pools() {
		if pool.ServesNode(node.Addresses, node.Labels) {
			positions = append(positions, i)
		}
	}
	return positions
}

// Reservation is an address taken for a pod in memory. It ends with Commit or
// Unreserve.
type Reservation struct {
	Addr    netip.Addr
	Pool    string
	request Request
	node    string
	// stored is the object to update; nil: one is to be created.
	stored *allocator.Record
	// stale: stored is the claim of an earlier attempt.
	stale bool
	// committed is what Commit created, for Abandon.
	committed *v1alpha1.FloatingIP
}

// Name of the reservation's FloatingIP.
func (r *Reservation) Name() string { return v1alpha1.NameOf(r.Addr) }
