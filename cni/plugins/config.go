// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/cni/vlan"
)

// config is the plugin's network configuration.
type config struct {
	types.PluginConf

	// Uplink is the node's link to the pools' networks.
	Uplink string `json:"uplink"`
	// MTU of the pair; 0 means the smallest MTU of the uplinks.
	MTU int `json:"mtu,omitempty"`
	// Routed is for berth-veth alone; see wire.Spec.
	Routed bool `json:"routed,omitempty"`
	// Config is for berth-vlan and berth-sriov.
	vlan.Config
	// StateDir is the folder of berth-sriov's claims, which it must share with the agent;
	// empty means sriov.DefaultDir.
	StateDir string `json:"stateDir,omitempty"`
	// SysctlRoot is the path of the node's /proc/sys; empty means /proc/sys.
	SysctlRoot string `json:"sysctlRoot,omitempty"`

	RuntimeConfig struct {
		Addresses []api.Address `json:"berthAddresses"`
		MAC       string        `json:"mac,omitempty"`
		// DeviceID goes before the one of the configuration.
		DeviceID string `json:"deviceID,omitempty"`
	} `json:"runtimeConfig"`
	ValidAttachments []types.GCAttachment `json:"cni.dev/valid-attachments,omitempty"`

	mac net.HardwareAddr
}

// parseConfig reads standard input. It does not validate addresses: DEL must work
// with the configuration of an older version.
func parseConfig(stdin []byte) (*config, error) {
	var c config
	if err := json.Unmarshal(stdin, &c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("decode the network configuration: %v", err), "")
	}
	if c.Uplink == "" {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "the network configuration names no uplink", "")
	}
	if c.MTU < 0 || c.MTU > 65535 {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("the network configuration has MTU %d", c.MTU), "")
	}
	if text := c.RuntimeConfig.MAC; text != "" {
		var err error
		if c.mac, err = net.ParseMAC(text); err != nil {
			return nil, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("the network configuration: %v", err), "")
		}
	}
	return &c, nil
}

func (c *config) spec(args *skel.CmdArgs) wire.Spec {
	return wire.Spec{
		ContainerID: args.ContainerID, IfName: args.IfName, NetNS: args.Netns,
		Uplink: c.Uplink, MTU: c.MTU, Routed: c.Routed, Addresses: c.RuntimeConfig.Addresses, MAC: c.mac,
	}
}

// forAdd refuses what ADD cannot serve; spec validates the interface and its addresses.
func (c *config) forAdd(spec interface{ Validate() error }) error {
	if !c.IPAM.IsEmpty() {
		return types.NewError(types.ErrUnsupportedField,
			fmt.Sprintf(`the network configuration has "ipam" of type %q; remove it: the addresses are those of runtimeConfig.%s`, c.IPAM.Type, api.CapabilityAddresses), "")
	}
	if err := spec.Validate(); err != nil {
		return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("the network configuration: %v", err), "")
	}
	return nil
}
