// SPDX-License-Identifier: Apache-2.0

// Package relay sends calls of CNI plugins to the node agent over its unix socket, also the
// runtime's call that berth-cni passes on: the variables as headers of an HTTP request, the
// configuration as its body. The response is what the plugin prints. The package decides when to
// wait for an agent, and how to report that no agent responds. It reads only the path of the socket
// from a call, and nothing from a response.
//
// Berth-cni starts for every pod, and each imported package makes its start longer, used or not. So
// this package imports only the minimum for files. Package net, encoding/json or fmt would take
// longer than the rest of berth-cni.
package relay

// SocketPath is the default path of the agent's socket.
const SocketPath = "/run/berth/agent.sock"

// Path is the agent's HTTP resource for unchanged calls of the runtime. Its version changes with
// the protocol: an agent with another protocol responds with status 404.
const Path = "/v1/cni"

// MaxBytes is the largest body that agent and plugins read. The kubelet's are a few kilobytes.
const MaxBytes = 4 << 20

// HeaderOutcome names the kind of a response's body. A response without it is not the agent's.
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
