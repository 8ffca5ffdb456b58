// SPDX-License-Identifier: Apache-2.0

package agentpod

import "net/netip"

// Preflight is a node as an agent would find it, in JSON: the output of berth-agent preflight.
type Preflight struct {
	// Kernel, Uplink, Network, KubeProxy and Policies are for people. Network is that of pods without
	// a floating IP.
	Kernel    string `json:"kernel,omitempty"`
	Uplink    string `json:"uplink,omitempty"`
	Network   string `json:"network,omitempty"`
	KubeProxy string `json:"kubeProxy,omitempty"`
	Policies  string `json:"policies,omitempty"`
	// Addresses are the node's own, with the subnets that are on their links.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// Problems would keep the agent from its work.
	Problems []PreflightProblem `json:"problems,omitempty"`
}

// PreflightProblem is a problem, and what to set.
type PreflightProblem struct {
	Text string `json:"text"`
	Do   string `json:"do,omitempty"`
}
