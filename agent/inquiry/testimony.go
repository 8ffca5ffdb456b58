// SPDX-License-Identifier: Apache-2.0

package inquiry

import "net/netip"

// PathWitness is the agent's resource for whoever suspects that another node is lost: GET a [Testimony] about a
// [WitnessQuestion], whose fields are the queries node, host, control, vlan, gateway and address. All but node and vlan may be given
// several times.
const PathWitness = "/v1/witness"

// The most of each kind in a WitnessQuestion: the answer has to come within a second or two.
const (
	MostHosts     = 16
	MostAddresses = 1024
)

// WitnessQuestion asks about another node.
type WitnessQuestion struct {
	// Node is its name.
	Node string
	// Hosts are its InternalIPs.
	Hosts []netip.Addr
	// Controls are InternalIPs of nodes that live: a filter between nodes hides these, too. There may be none.
	Controls []netip.Addr
	// VLAN is the network of the addresses on the uplink; 0 is untagged. Gateways are the network's.
	VLAN     int
	Gateways []netip.Addr
	// Addresses are floating IPs that the node may answer for.
	Addresses []netip.Addr
}

// Testimony is what a node found out about another one within about a second.
type Testimony struct {
	// Control: in the network of the addresses the gateway, or a third node, answered meanwhile a question of the same form; and
	// so did one of the question's controls, if it has any. Without it the silence of the other node says nothing.
	Control bool `json:"control"`
	// Host: an InternalIP answered, by ICMP, or at the kubelet's port, also by a refusal.
	Host bool `json:"host"`
	// Agent: the agent of the other node answered, at its port, or on a segment.
	Agent bool `json:"agent"`
	// Addresses are the floating IPs of the question for which a host on a segment answered, with its MACs. It may be
	// a proxy for others.
	Addresses []ProbedAddress `json:"addresses"`
}
