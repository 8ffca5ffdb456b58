// SPDX-License-Identifier: Apache-2.0

package inquiry

// PathWitness is the agent's resource for whoever suspects that another node is lost: GET a [Testimony], with the queries
// node, its name; host, an InternalIP of it; and address, a floating IP that it may answer for. host and address may be
// given several times.
const PathWitness = "/v1/witness"

// Testimony is what a node found out about another one within about a second.
type Testimony struct {
	// Control: the gateway, or a third node, answered meanwhile a question of the same form on a segment of this node.
	// Without it the silence of the other node says nothing.
	Control bool `json:"control"`
	// Host: an InternalIP answered, by ICMP, or at the kubelet's port, also by a refusal.
	Host bool `json:"host"`
	// Agent: the agent of the other node answered, at its port, or on a segment.
	Agent bool `json:"agent"`
	// Addresses are the floating IPs of the question for which a host on a segment answered, with its MACs. It may be
	// a proxy for others.
	Addresses []ProbedAddress `json:"addresses"`
}
