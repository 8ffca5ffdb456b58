// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/berth-dev/berth/agent/api"
	"github.com/berth-dev/berth/agent/attachdef"
	"github.com/berth-dev/berth/agent/chain"
)

// Networks chooses the network configurations of this node. It reads the files at
// each call, so a change of them needs no restart.
type Networks struct {
	// ConfDir is the runtime's CNI configuration folder and OwnFile the name of
	// our file in it.
	ConfDir string
	OwnFile string
	// Overlay, if given, returns the configuration of pods without a floating IP.
	Overlay func() ([]byte, error)
	// DefaultFile, if given, is that configuration; otherwise it is the first other
	// file of ConfDir.
	DefaultFile string
	// FloatingFile, if given, is the configuration of pods with a floating IP:
	// a list that begins with the plugin berth-veth or berth-vlan.
	FloatingFile string
	// Uplink returns the node's link to the pools' networks.
	Uplink func() (string, error)
	// SysctlRoot is the path of the node's /proc/sys, for callers of these.
	SysctlRoot string
}

// Default returns the network of pods without a floating IP.
func (n *Networks) Default() (*chain.Network, error) {
	if n.Overlay != nil {
		raw, err := n.Overlay()
		if err != nil {
			return nil, err
		}
		return chain.Parse(raw)
	}
	if n.DefaultFile == "" {
		network, err := chain.Find(n.ConfDir, n.OwnFile, notOurselves)
		if err != nil {
			return nil, fmt.Errorf("%w; put a CNI configuration (.conflist) beside %s, or name one with --default-network", err, n.OwnFile)
		}
		return network, nil
	}
	network, err := chain.Load(n.DefaultFile)
	if err != nil {
		return nil, err
	}
	return network, notOurselves(network)
}

// notOurselves refuses a network that would make the agent call itself.
func notOurselves(network *chain.Network) error {
	if slices.Contains(network.Types(), api.ShimType) {
		return fmt.Errorf("network %q uses the plugin %s, so it cannot be the network of a pod", network.Name(), api.ShimType)
	}
	return nil
}

// Floating is the network of pods with a floating IP.
type Floating struct {
	Network *chain.Network
	// Driver does the work of the first plugin.
	Driver string
	// Uplink is the node's link to the pools' networks.
	Uplink string
	// MTU of the pods' interfaces; 0 means that of the uplink.
	MTU int
}

// Floating returns the network of pods with a floating IP.
func (n *Networks) Floating() (*Floating, error) {
	network, err := n.floatingTemplate()
	if err != nil {
		return nil, err
	}
	floating, err := n.floating(network)
	if err == nil && floating == nil {
		err = fmt.Errorf("network configuration %q: the first plugin must be %s or %s, is %s", network.Name(), api.VethType, api.VlanType, network.Types()[0])
	}
	return floating, err
}

// Named returns a network that a pod names; floating is nil where the network takes no
// floating IPs.
func (n *Networks) Named(named *attachdef.Network) (*chain.Network, *Floating, error) {
	network, err := n.load(named)
	if err != nil {
		return nil, nil, fmt.Errorf("network %s: %w", named.Definition, err)
	}
	if err := notOurselves(network); err != nil {
		return nil, nil, fmt.Errorf("network %s: %w", named.Definition, err)
	}
	floating, err := n.floating(network)
	if err != nil {
		return nil, nil, fmt.Errorf("network %s: %w", named.Definition, err)
	}
	return network, floating, nil
}

func (n *Networks) load(named *attachdef.Network) (*chain.Network, error) {
	if len(named.Config) > 0 {
		return chain.ParseNamed(named.Config, named.Name)
	}
	return chain.Find(n.ConfDir, n.OwnFile, func(network *chain.Network) error {
		if network.Name() != named.Name {
			return fmt.Errorf("it is the network %q, not %q", network.Name(), named.Name)
		}
		return nil
	})
}

// drivers are those of the plugins that take floating IPs.
var drivers = map[string]string{api.VethType: api.DriverVeth, api.VlanType: api.DriverVlan}

// floating returns what a driver does of the network, nil where no driver knows its first
// plugin.
func (n *Networks) floating(network *chain.Network) (*Floating, error) {
	plugin := network.Types()[0]
	driver, ok := drivers[plugin]
	if !ok {
		return nil, nil
	}
	var conf struct {
		Uplink       string          `json:"uplink"`
		MTU          int             `json:"mtu"`
		Capabilities map[string]bool `json:"capabilities"`
	}
	if err := network.Plugin(&conf); err != nil {
		return nil, err
	}
	if conf.Uplink == "" {
		var err error
		if conf.Uplink, err = n.Uplink(); err != nil {
			return nil, fmt.Errorf("find the uplink of the floating network: %w", err)
		}
	}
	if conf.Capabilities == nil {
		conf.Capabilities = map[string]bool{}
	}
	conf.Capabilities[api.CapabilityAddresses] = true
	conf.Capabilities[api.CapabilityMAC] = true
	network, err := network.WithPlugin(plugin, map[string]any{
		"uplink": conf.Uplink, "capabilities": conf.Capabilities, "sysctlRoot": n.SysctlRoot,
	})
	if err != nil {
		return nil, err
	}
	return &Floating{Network: network, Driver: driver, Uplink: conf.Uplink, MTU: conf.MTU}, nil
}

func (n *Networks) floatingTemplate() (*chain.Network, error) {
	if n.FloatingFile != "" {
		return chain.Load(n.FloatingFile)
	}
	raw, err := json.Marshal(map[string]any{
		"cniVersion": "1.1.0", "name": api.FloatingNetworkName,
		"plugins": []map[string]any{{"type": api.VethType}},
	})
	if err != nil {
		return nil, fmt.Errorf("encode the floating network: %w", err)
	}
	return chain.Parse(raw)
}
