// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/berth-dev/berth/agent/attachdef"
	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/foreign"
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
	// DefaultFile, if given, has that configuration; otherwise the first other file of ConfDir has
	// it.
	DefaultFile string
	// FloatingFile, if given, is the configuration of pods with a floating IP:
	// a list that begins with the plugin berth-veth, berth-vlan or berth-sriov, or with one
	// whose ipam is berth-ipam.
	FloatingFile string
	// Socket of the agent, for berth-ipam.
	Socket string
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
		return n.withSocket(network)
	}
	network, err := chain.Load(n.DefaultFile)
	if err != nil {
		return nil, err
	}
	if err := notOurselves(network); err != nil {
		return nil, err
	}
	return n.withSocket(network)
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
	// MTU of the pods' interfaces; 0 means the uplink's MTU.
	MTU int
	// Optional says that the network is for pods without a floating IP, too.
	Optional bool
}

// Floating returns the network of pods with a floating IP.
func (n *Networks) Floating() (*Floating, error) {
	network, err := n.floatingTemplate()
	if err != nil {
		return nil, err
	}
	floating, err := n.floating(network)
	if err == nil && floating == nil {
		err = fmt.Errorf("network configuration %q: the first plugin must be %s, %s or %s, or name %s as its ipam.type, is %s", network.Name(), api.VethType, api.VlanType, api.SriovType, api.IPAMType, network.Types()[0])
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
	if floating != nil {
		network = floating.Network
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

// drivers has the driver of each plugin that takes floating IPs.
var drivers = map[string]string{api.VethType: api.DriverVeth, api.VlanType: api.DriverVlan, api.SriovType: api.DriverVlan}

// floating returns how a driver serves the network, nil where no driver knows its first plugin.
func (n *Networks) floating(network *chain.Network) (*Floating, error) {
	plugin := network.Types()[0]
	driver, ok := drivers[plugin]
	if !ok {
		return n.foreign(network)
	}
	var conf struct {
		Uplink       string          `json:"uplink"`
		MTU          int             `json:"mtu"`
		Routed       bool            `json:"routed"`
		Capabilities map[string]bool `json:"capabilities"`
	}
	if err := network.Plugin(&conf); err != nil {
		return nil, err
	}
	if conf.Routed && driver != api.DriverVeth {
		return nil, fmt.Errorf("network configuration %q: routed is for %s; with %s use mode ipvlan, ipvlanMode l3", network.Name(), api.VethType, plugin)
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

// foreign returns a network whose first plugin gets the floating IPs from berth-ipam, nil for
// any other.
func (n *Networks) foreign(network *chain.Network) (*Floating, error) {
	conf, ours, err := foreignConfig(network)
	if err != nil || !ours {
		return nil, err
	}
	network, err = n.withSocket(network)
	if err != nil {
		return nil, err
	}
	return &Floating{Network: network, Driver: api.DriverIPAM, Uplink: conf.Link, Optional: len(conf.IPAM.Delegate) > 0}, nil
}

func foreignConfig(network *chain.Network) (conf *foreign.Config, ours bool, err error) {
	var raw json.RawMessage
	if err := network.Plugin(&raw); err != nil {
		return nil, false, err
	}
	conf, ours, err = foreign.ParseConfig(raw)
	if err != nil {
		return nil, ours, fmt.Errorf("network configuration %q: %w", network.Name(), err)
	}
	return conf, ours, nil
}

// withSocket returns the network with the agent's socket in its configuration of berth-ipam,
// if it has one.
func (n *Networks) withSocket(network *chain.Network) (*chain.Network, error) {
	_, ours, err := foreignConfig(network)
	if err != nil || !ours {
		return network, err
	}
	var conf struct {
		IPAM map[string]json.RawMessage `json:"ipam"`
	}
	if err := network.Plugin(&conf); err != nil {
		return nil, err
	}
	if _, given := conf.IPAM["socket"]; given || n.Socket == "" {
		return network, nil
	}
	socket, err := json.Marshal(n.Socket)
	if err != nil {
		return nil, fmt.Errorf("encode the socket's path: %w", err)
	}
	conf.IPAM["socket"] = socket
	return network.WithPlugin(network.Types()[0], map[string]any{"ipam": conf.IPAM})
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
