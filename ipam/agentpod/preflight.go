// SPDX-License-Identifier: Apache-2.0

package agentpod

import "net/netip"

// Preflight is a node as an agent would find it, in JSON: the output of berth-agent preflight.
type Preflight struct {
	// Kernel, Uplink, Network, KubeProxy and Policies are texts for people. Network describes the
	// network of pods without a floating IP.
	Kernel    string `json:"kernel,omitempty"`
	Uplink    string `json:"uplink,omitempty"`
	Network   string `json:"network,omitempty"`
	KubeProxy string `json:"kubeProxy,omitempty"`
	Policies  string `json:"policies,omitempty"`
	// Addresses are the node's own addresses, with the prefix lengths of their subnets.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// Problems are the problems that would stop the agent from working.
	Problems []PreflightProblem `json:"problems,omitempty"`
}

// PreflightProblem is a problem and how to fix it.
type PreflightProblem struct {
	Text string `json:"text"`
	Do   string `json:"do,omitempty"`
}
