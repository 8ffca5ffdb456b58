// SPDX-License-Identifier: Apache-2.0

package nettype

import (
	"fmt"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/vlan"
)

// Vlan is the name of the type of interfaces in the pools' networks themselves.
const Vlan = "vlan"

// Plugins that choose it: an interface in a mode of the configuration, or a virtual function of a
// network card.
const (
	VlanPlugin  = "berth-vlan"
	SriovPlugin = "berth-sriov"
)

var vlanType = &Type{
	Name:              Vlan,
	Plugins:           []string{VlanPlugin, SriovPlugin},
	read:              readVlan,
	detached:          isDetachedVlan,
	furtherInterfaces: vlanInterfaces,
}

func readVlan(network *chain.Network, node Node) (*Floating, error) {
	var conf link
	if err := network.Plugin(&conf); err != nil {
		return nil, err
	}
	if conf.Routed {
		return nil, fmt.Errorf("network configuration %q: routed is for %s; with %s use mode ipvlan, ipvlanMode l3", network.Name(), VethPlugin, network.Types()[0])
	}
	return wired(Vlan, network, conf, node)
}

// isDetachedVlan returns false for mode pure, in which the node answers and routes.
func isDetachedVlan(network *chain.Network) (bool, error) {
	var conf struct {
		Mode vlan.Mode `json:"mode"`
	}
	err := network.Plugin(&conf)
	return conf.Mode != vlan.Pure, err
}

// vlanInterfaces lists an interface for each VLAN, though the first VLAN has none of its own.
func vlanInterfaces(ifName string, addrs []api.Address) []string {
	var all []string
	for _, addr := range addrs {
		if addr.VLAN > 0 {
			all = append(all, vlan.FurtherInterface(ifName, addr.VLAN))
		}
	}
	return all
}
