// SPDX-License-Identifier: Apache-2.0

package agentpod

// Operators ask an agent about its node through the API server's proxy to the agent's pod, with the
// right to get pods/proxy in Berth's namespace. The proxy does not forward the user's credentials,
// so the agent cannot tell the operator from a stranger. The operator therefore requests a token of
// the ServiceAccount Diagnosis from the API server and sends this token with the request. The agent
// asks the API server to review the token. A token is valid for minutes and for the agent of one
// node only, so a token that is stolen from a node is useless elsewhere. The API server's audit log
// says who requested it.
const (
	// Diagnosis is the name of the ServiceAccount, of the ClusterRole with its rights, and of the
	// Role that lets users ask.
	Diagnosis = "berth-diagnosis"
	// Operator is the same for requests that change something: an operator's statement about an
	// address, or about berth-failover's brake.
	Operator = "berth-failover-operator"
	// TokenHeader carries the bearer token, because the proxy removes the header Authorization.
	TokenHeader = "Berth-Authorization"
)

// Audience returns the audience of tokens for the agent of a node.
func Audience(node string) string { return "agent.berth.dev/" + node }
