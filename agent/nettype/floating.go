// SPDX-License-Identifier: Apache-2.0

package nettype

import (
	"fmt"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// Node has the values of a node that complete configurations.
type Node struct {
	// Uplink returns the node's link to the pools' networks.
	Uplink func() (string, error)
	// Socket of the agent, for berth-ipam.
	Socket string
}

// Floating is a network that takes floating IPs.
type Floating struct {
	Network *chain.Network
	// Driver is the name of the network's type.
	Driver string
	// Uplink is the node's link to the pools' networks.
	Uplink string
	// MTU of the pods' interfaces; 0 means the uplink's MTU.
	MTU int
	// Cards are the links of the network cards whose virtual functions pods get.
	Cards []string
	// Optional says that the network is for pods without a floating IP, too.
	Optional bool
}

// Attachment returns an attachment to the network, without interface and addresses.
func (f *Floating) Attachment() state.Attachment {
	return state.Attachment{Driver: f.Driver, Uplink: f.Uplink, MTU: f.MTU, Network: f.Network.Raw()}
}

// link has the settings of a configuration that all types with a driver read.
type link struct {
	Uplink       string          `json:"uplink"`
	MTU          int             `json:"mtu"`
	Routed       bool            `json:"routed"`
	Capabilities map[string]bool `json:"capabilities"`
}

// wired returns the network of a type with a driver. The first plugin declares the capabilities for
// addresses.
func wired(name string, network *chain.Network, conf link, node Node) (*Floating, error) {
	uplink := node.Uplink
	if conf.Uplink != "" {
		uplink = func() (string, error) { return wire.UplinkOf(conf.Uplink) }
	}
	found, err := uplink()
	if err != nil {
		return nil, fmt.Errorf("find the uplink of the floating network: %w", err)
	}
	if conf.Capabilities == nil {
		conf.Capabilities = map[string]bool{}
	}
	conf.Capabilities[api.CapabilityAddresses] = true
	conf.Capabilities[api.CapabilityMAC] = true
	network, err = network.WithPlugin(network.Types()[0], map[string]any{"uplink": found, "capabilities": conf.Capabilities})
	if err != nil {
		return nil, err
	}
	return &Floating{Network: network, Driver: name, Uplink: found, MTU: conf.MTU}, nil
}
