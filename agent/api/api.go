// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
)

const (
	// SocketPath is where the agent listens unless it is told otherwise.
	SocketPath = "/run/berth/agent.sock"
	// PathCNI is the agent's one HTTP resource: POST a [Request], get a
	// [Response].
	PathCNI = "/v1/cni"
	// MaxRequestBytes is the largest request the agent reads. The kubelet's
	// are a few kilobytes.
	MaxRequestBytes = 4 << 20
)

// Names of programs, as CNI configurations and /opt/cni/bin know them.
const (
	// ShimType is the CNI plugin that the runtime calls.
	ShimType = "berth-cni"
	// VethType is the plugin that wires a floating IP.
	VethType = "berth-veth"
	// NetworkName is the network in the configuration that the runtime reads.
	NetworkName = "berth"
	// FloatingNetworkName is the network of pods with a floating IP.
	FloatingNetworkName = "berth-floating"
	// CapabilityAddresses is the capability by which a plugin receives the
	// addresses of the pod: a list of [Address] in runtimeConfig.
	CapabilityAddresses = "berthAddresses"
	// CapabilityMAC is the capability by which a plugin receives the MAC address
	// of the pod's interface, as CNI's conventions have it: a string in
	// runtimeConfig.
	CapabilityMAC = "mac"
)

// CNI error codes (CNI specification, section Error) that CNI's Go package
// does not name in the version we use.
const (
	// CodeNotAvailable says that the plugin cannot serve ADD now.
	CodeNotAvailable uint = 50
	// CodePodNotPlaced says that a pod asks for a floating IP that it does not
	// hold, so that wiring it would take somebody else's.
	CodePodNotPlaced uint = 120
	// CodeNetworkMissing says that the node has no configuration for the
	// network that the pod belongs to.
	CodeNetworkMissing uint = 121
)

// Request is one CNI call as the runtime made it.
type Request struct {
	Command     string `json:"command"`
	ContainerID string `json:"containerID,omitempty"`
	NetNS       string `json:"netns,omitempty"`
	IfName      string `json:"ifName,omitempty"`
	// Args is CNI_ARGS unparsed.
	Args string `json:"args,omitempty"`
	// Config is the network configuration from standard input.
	Config json.RawMessage `json:"config,omitempty"`
}

// Response has a result, an error, or neither.
type Response struct {
	// Result is a CNI result in the version its cniVersion says.
	Result json.RawMessage `json:"result,omitempty"`
	Error  *types.Error    `json:"error,omitempty"`
}

// Pod is one incarnation of a pod.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// String returns namespace/name, as users write it.
func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// Address is a floating IP and how it is reached from the node.
type Address struct {
	Address netip.Addr   `json:"address"`
	Subnet  netip.Prefix `json:"subnet"`
	// Gateway is the zero Addr where the pool has none.
	Gateway netip.Addr `json:"gateway"`
	// VLAN is the tag on the uplink; 0 is untagged.
	VLAN int `json:"vlan,omitempty"`
}
