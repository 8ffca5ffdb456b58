// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-dev/berth/cni/relay"
)

const (
	// SocketPath is the default path of the agent's socket.
	SocketPath = relay.SocketPath
	// PathIPAM is the agent's HTTP resource for the calls of the plugin berth-ipam, which POSTs a
	// [Request] and gets a [Response]. The resource for berth-cni is relay.Path.
	PathIPAM = "/v1/ipam"
	// MaxRequestBytes is the largest request the agent reads. The kubelet's
	// are a few kilobytes.
	MaxRequestBytes = relay.MaxBytes
)

// Names of plugins, networks and capabilities in CNI configurations. ShimType, IPAMType and
// OverlayType are programs in /opt/cni/bin.
const (
	// ShimType is the CNI plugin that the runtime calls.
	ShimType = "berth-cni"
	// IPAMType is the IPAM plugin that hands floating IPs to plugins of other projects.
	IPAMType = "berth-ipam"
	// OverlayType is the plugin of the overlay's pods.
	OverlayType = "berth-overlay"
	// NetworkName is the network in the runtime's configuration.
	NetworkName = "berth"
	// FloatingNetworkName is the network of pods with a floating IP.
	FloatingNetworkName = "berth-floating"
	// CapabilityAddresses gives a plugin the addresses of the pod: a list of
	// [Address] in runtimeConfig.
	CapabilityAddresses = "berthAddresses"
	// CapabilityDeviceID gives a plugin the PCI address of its device: a string in runtimeConfig, by
	// CNI's conventions.
	CapabilityDeviceID = "deviceID"
	// CapabilityMAC gives a plugin the MAC address of the pod's interface: a
	// string in runtimeConfig, by CNI's conventions.
	CapabilityMAC = "mac"
)

// CNI error codes (CNI specification, section Error) that CNI's Go package
// does not name in the version we use.
const (
	// CodeNotAvailable is for STATUS: the plugin cannot serve ADD now.
	CodeNotAvailable uint = 50
	// CodeLimitedConnectivity is CodeNotAvailable, and the network of running containers may be
	// disturbed, too.
	CodeLimitedConnectivity uint = 51
	// CodePodNotPlaced says that a pod requests a floating IP but holds none on this node.
	CodePodNotPlaced uint = 120
	// CodeNetworkMissing says that the node has no configuration for the pod's
	// network.
	CodeNetworkMissing uint = 121
	// CodeNoFloatingIP says that berth-ipam has no floating IP for the interface: the pod
	// requests none, or has them on another interface.
	CodeNoFloatingIP uint = 122
)

// Request is one CNI call of the runtime.
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
	// Result is a CNI result in the version of its cniVersion.
	Result json.RawMessage `json:"result,omitempty"`
	Error  *types.Error    `json:"error,omitempty"`
}

// Pod identifies a pod; another pod of the same name has another UID.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	// Static is the kubelet's UID of a static pod; empty for other pods. UID is then the UID of its
	// mirror in the API. If somebody deletes the mirror, the kubelet makes a new one while the pod
	// still runs.
	Static string `json:"static,omitempty"`
}

func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// Is reports whether both are the same pod, even if the mirror of a static pod was made anew.
func (p Pod) Is(other Pod) bool {
	return p.Namespace == other.Namespace && p.Name == other.Name && (p.UID == other.UID || p.Identity() == other.Identity())
}

// Identity returns the UID by which the kubelet knows the pod. No other pod of the name has it.
func (p Pod) Identity() string {
	if p.Static != "" {
		return p.Static
	}
	return p.UID
}

// Address is a floating IP and its network.
type Address struct {
	Address netip.Addr   `json:"address"`
	Subnet  netip.Prefix `json:"subnet"`
	// Gateway is the zero Addr if the pool has no gateway.
	Gateway netip.Addr `json:"gateway"`
	// VLAN is the tag on the uplink; 0 is untagged.
	VLAN int `json:"vlan,omitempty"`
	// Routed says that routers route packets for the address to its node, which does not answer ARP
	// for it. Such an address has neither a gateway nor a VLAN.
	Routed bool `json:"routed,omitempty"`
}

// HostPort is a port of the node that leads to a port of a pod.
type HostPort struct {
	HostPort      uint16 `json:"hostPort"`
	ContainerPort uint16 `json:"containerPort"`
	// Protocol is TCP, UDP or SCTP.
	Protocol string `json:"protocol"`
	// HostIP is the node's address to which the port is limited. 0.0.0.0 and :: are all of
	// their family, the zero Addr is all.
	HostIP netip.Addr `json:"hostIP,omitzero"`
}

// String returns the node's side, such as TCP 8080 or TCP 10.0.60.11:8080.
func (p HostPort) String() string {
	if !p.HostIP.IsValid() {
		return fmt.Sprintf("%s %d", p.Protocol, p.HostPort)
	}
	return fmt.Sprintf("%s %s", p.Protocol, netip.AddrPortFrom(p.HostIP, p.HostPort))
}
