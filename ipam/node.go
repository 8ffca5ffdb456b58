// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/ipam/pools"
)

// Node is the properties of a node that matter to IPAM.
type Node struct {
	Name string
	// Addresses are the node's InternalIPs.
	Addresses []netip.Addr
	Labels    labels.Set
	// ProviderID is the node's spec.providerID, for the external assigner.
	ProviderID string
}

// NodeOf returns the properties of a node.
func NodeOf(node *v1.Node) Node {
	return Node{Name: node.Name, Addresses: pools.InternalIPs(node), Labels: labels.Set(node.Labels), ProviderID: node.Spec.ProviderID}
}

// ReachOf returns the pools that serve a node.
func ReachOf(s *pools.Snapshot, node Node) *pools.Reach { return s.Reach(node.Addresses, node.Labels) }
