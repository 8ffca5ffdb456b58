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
}

// CarriedAddress is an address on a layer 2 network.
type CarriedAddress struct {
	Address netip.Addr `json:"address"`
	// MACs may answer for it: the MAC of the node's link, and of the pod's interface.
	MACs []string `json:"macs"`
}

// ProbedAddress lists the hosts that answered for an address.
type ProbedAddress struct {
	Address netip.Addr `json:"address"`
	MACs    []string   `json:"macs"`
}
