// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// scope says which pods are held. Each scope includes the scopes before it.
type scope int

const (
	nothing scope = iota
	// ownNode is the pods of this node, and all namespaces.
	ownNode
	// allNodes is the pods of all nodes, and all namespaces.
	allNodes
	// withNodes is allNodes and the nodes.
	withNodes
)

func (s scope) String() string {
	return [...]string{"none", "the node's", "all", "all, and the nodes"}[s]
}

// needOf returns the scope that a policy needs: all pods if it selects peers, or ports of
// destinations by their names.
func needOf(p *networkingv1.NetworkPolicy) scope {
	selects := func(peer networkingv1.NetworkPolicyPeer) bool {
		return peer.PodSelector != nil || peer.NamespaceSelector != nil
	}
	for i := range p.Spec.Ingress {
		if slices.ContainsFunc(p.Spec.Ingress[i].From, selects) {
			return allNodes
		}
	}
	named := func(port networkingv1.NetworkPolicyPort) bool {
		return port.Port != nil && port.Port.Type == intstr.String
	}
	for i := range p.Spec.Egress {
		if slices.ContainsFunc(p.Spec.Egress[i].To, selects) || slices.ContainsFunc(p.Spec.Egress[i].Ports, named) {
			return allNodes
		}
	}
	return ownNode
}

// needOfCluster is needOf for a ClusterNetworkPolicy. The peers of its ingress can only be pods.
func needOfCluster(p *policyv1alpha2.ClusterNetworkPolicy) scope {
	for i := range p.Spec.Egress {
		if slices.ContainsFunc(p.Spec.Egress[i].To, func(peer policyv1alpha2.ClusterNetworkPolicyEgressPeer) bool { return peer.Nodes != nil }) {
			return withNodes
		}
	}
	if len(p.Spec.Ingress) > 0 {
		return allNodes
	}
	selects := func(peer policyv1alpha2.ClusterNetworkPolicyEgressPeer) bool {
		return peer.Namespaces != nil || peer.Pods != nil
	}
	named := func(port policyv1alpha2.ClusterNetworkPolicyProtocol) bool { return port.DestinationNamedPort != "" }
	for i := range p.Spec.Egress {
		if slices.ContainsFunc(p.Spec.Egress[i].To, selects) || slices.ContainsFunc(p.Spec.Egress[i].Protocols, named) {
			return allNodes
		}
	}
	return ownNode
}
