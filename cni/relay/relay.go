// SPDX-License-Identifier: Apache-2.0

// Package relay carries calls of CNI plugins to the node agent over its unix socket, also the
// runtime's call that berth-cni passes on: the variables as headers of an HTTP request, the
// configuration as its body, and the answer as the plugin prints it. It decides when to wait for an
// agent and how to report that none answers. It reads nothing of a call but the path of the socket,
// and nothing of an answer.
//
// Berth-cni starts for every pod, and each package that it imports makes its start longer, used
// or not: this one imports no more than files need. Package net, encoding/json or fmt would take
// longer than all that berth-cni does.
package relay

// SocketPath is the default path of the agent's socket.
const SocketPath = "/run/berth/agent.sock"

// Path is the agent's HTTP resource for the runtime's calls as they are. Its version changes with
// the protocol: an agent of another one answers with status 404.
const Path = "/v1/cni"

// MaxBytes is the largest body that agent and plugins read. The kubelet's are a few kilobytes.
const MaxBytes = 4 << 20

// HeaderOutcome of an answer names the kind of its body. An answer without it is not the agent's.
const (
	HeaderOutcome = "Cni-Outcome"
	// Result is the result of ADD, or nothing.
	Result = "result"
	// Error is an error of CNI.
	Error = "error"
)

// Variables are the environment variables of CNI that the agent gets. Each is a header, which
// HeaderOf names.
func Variables() []string {
	return []string{"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"}
}

// HeaderOf returns the name of the header that has a variable. Its value is escaped as in URLs.
func HeaderOf(variable string) string {
	name := []byte(variable)
	for i := range name {
		if name[i] == '_' {
			name[i] = '-'
		}
	}
	return string(name)
}

// Versions lists the versions of the CNI specification that berth-cni serves, oldest first.
func Versions() []string { return []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} }
