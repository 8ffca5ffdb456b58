// SPDX-License-Identifier: Apache-2.0

package inquiry

import "net/netip"

// PathProbe is the agent's resource for operators that asks a network which hosts have addresses:
// GET a [Probed], with the query address, which may be given several times, and vlan.
const PathProbe = "/v1/probe"

// Probed reports the addresses that a node carries, and the answers on the wire.
type Probed struct {
	// Carried are the addresses that this node answers for, or its pods.
	Carried []CarriedAddress `json:"carried"`
	// Answers has an entry for each address that was asked for.
	Answers []ProbedAddress `json:"answers,omitempty"`
	// Hears has the links on which the agent hears those of other nodes; none where there are answers.
	Hears []Hears `json:"hears,omitempty"`
}

// Hears are the nodes that are heard on a link.
type Hears struct {
	Link string `json:"link"`
	// Seconds is for how long the agent has listened there.
	Seconds int64 `json:"seconds"`
	// Error says why it says nothing there itself.
	Error string `json:"error,omitempty"`
	// Nodes are the names of the nodes that were heard within HeardLately, in their order.
	Nodes []string `json:"nodes"`
}

// CarriedAddress is an address on a layer 2 network.
type CarriedAddress struct {
	Address netip.Addr `json:"address"`
	// Link is the node's to the network of the address.
	Link string `json:"link"`
	// MACs may answer for it: the MAC of the node's link, and of the pod's interface.
	MACs []string `json:"macs"`
}

// ProbedAddress lists the hosts that answered for an address.
type ProbedAddress struct {
	Address netip.Addr `json:"address"`
	MACs    []string   `json:"macs"`
}
