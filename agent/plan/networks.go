// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/berth-dev/berth/agent/attachdef"
	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/confdir"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/cni/api"
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
	// FloatingFile, if given, is the configuration of pods with a floating IP: a list whose first
	// plugin chooses a network type.
	FloatingFile string
	// Node completes configurations.
	Node nettype.Node
}

// Default returns the network of pods without a floating IP.
func (n *Networks) Default() (*chain.Network, error) {
	return n.defaultNetwork(n.notOurselves)
}

// WithoutMultus returns the network of pods without a floating IP whose networks the agent
// attaches.
func (n *Networks) WithoutMultus() (*chain.Network, error) {
	return n.defaultNetwork(func(network *chain.Network) error {
		if HasMultus(network) {
			return fmt.Errorf("network %q is Multus, which would attach the pod to the networks that it names a second time", network.Name())
		}
		return n.notOurselves(network)
	})
}

// HasMultus returns whether a network is Multus, which attaches pods to the networks that they
// name.
func HasMultus(network *chain.Network) bool {
	return slices.ContainsFunc(network.Types(), confdir.IsMultus)
}

// CalledByMultus returns whether Multus calls Berth for the first network of each pod, and attaches
// pods to the networks that they name.
func (n *Networks) CalledByMultus() (bool, error) {
	return confdir.CalledByMultus(n.ConfDir, n.OwnFile)
}

func (n *Networks) defaultNetwork(usable func(*chain.Network) error) (*chain.Network, error) {
	if n.Overlay != nil {
		raw, err := n.Overlay()
		if err != nil {
			return nil, err
		}
		return chain.Parse(raw)
	}
	if n.DefaultFile == "" {
		network, err := chain.Find(n.ConfDir, n.OwnFile, usable)
		if err != nil {
			return nil, fmt.Errorf("%w; put a CNI configuration (.conflist) beside %s, or name one with --default-network", err, n.OwnFile)
		}
		return nettype.WithSocket(network, n.Node)
	}
	network, err := chain.Load(n.DefaultFile)
	if err != nil {
		return nil, err
	}
	if err := usable(network); err != nil {
		return nil, err
	}
	return nettype.WithSocket(network, n.Node)
}

// notOurselves refuses a network that would make the agent call itself.
func (n *Networks) notOurselves(network *chain.Network) error {
	if confdir.LeadsTo(network.Raw(), n.OwnFile) {
		return fmt.Errorf("network %q leads to the plugin %s, so it cannot be the network of a pod", network.Name(), api.ShimType)
	}
	return nil
}

// Floating returns the network of pods with a floating IP.
func (n *Networks) Floating() (*nettype.Floating, error) {
	network, err := n.floatingTemplate()
	if err != nil {
		return nil, err
	}
	floating, err := nettype.Read(network, n.Node)
	if err == nil && floating == nil {
		err = nettype.ErrorOf(network)
	}
	return floating, err
}

// Named returns a network that a pod names; floating is nil where the network takes no
// floating IPs.
func (n *Networks) Named(named *attachdef.Network) (*chain.Network, *nettype.Floating, error) {
	network, err := n.load(named)
	if err != nil {
		return nil, nil, fmt.Errorf("network %s: %w", named.Definition, err)
	}
	if err := n.notOurselves(network); err != nil {
		return nil, nil, fmt.Errorf("network %s: %w", named.Definition, err)
	}
	floating, err := nettype.Read(network, n.Node)
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

func (n *Networks) floatingTemplate() (*chain.Network, error) {
	if n.FloatingFile != "" {
		return chain.Load(n.FloatingFile)
	}
	raw, err := json.Marshal(map[string]any{
		"cniVersion": "1.1.0", "name": api.FloatingNetworkName,
		"plugins": []map[string]any{{"type": nettype.Default}},
	})
	if err != nil {
		return nil, fmt.Errorf("encode the floating network: %w", err)
	}
	return chain.Parse(raw)
}
