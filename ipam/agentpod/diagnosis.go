// SPDX-License-Identifier: Apache-2.0

package agentpod

// Operators ask an agent about its node through the API server's proxy to the agent's pod, with the
// right to get pods/proxy in Berth's namespace. That proxy keeps the user's credentials, as it
// must, and agents could not tell a request that came through it from a stranger's. So the user,
// however he logged in, has the API server make a token of the ServiceAccount Diagnosis, for
// minutes and for the agent of one node, and sends it beside: the agent has the API server review
// it. It opens nothing but this agent, so that a node from which it is stolen gets nothing by it,
// and the API server's audit log says who got it.
const (
	// Diagnosis is the name of the ServiceAccount, of the ClusterRole with its rights, and of the
	// Role that lets users ask.
	Diagnosis = "berth-diagnosis"
	// Operator is the same for an operator's word about an address, and about berth-failover's brake.
	Operator = "berth-failover-operator"
	// TokenHeader has the token as a bearer. The proxy removes Authorization.
	TokenHeader = "Berth-Authorization"
)

// Audience is the agent of a node, for tokens.
func Audience(node string) string { return "agent.berth.dev/" + node }
