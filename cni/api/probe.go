// SPDX-License-Identifier: Apache-2.0

package api

import "net/netip"

// PathProbe is the agent's resource for operators that asks a network who has addresses: GET a
// [Probed], with the query address, which may be given several times, and vlan.
const PathProbe = "/v1/probe"

// Probed is what a node knows of addresses on the wire.
type Probed struct {
	// Carried are the addresses that this node answers for, or its pods.
	Carried []CarriedAddress `json:"carried"`
	// Answers has an entry for each address that was asked for.
	Answers []ProbedAddress `json:"answers,omitempty"`
}

// CarriedAddress is an address on a layer 2 network.
type CarriedAddress struct {
	Address netip.Addr `json:"address"`
	// MACs may answer for it: that of the node's link, and that of the pod's interface.
	MACs []string `json:"macs"`
}

// ProbedAddress is who answered for an address.
type ProbedAddress struct {
	Address netip.Addr `json:"address"`
	MACs    []string   `json:"macs"`
}
