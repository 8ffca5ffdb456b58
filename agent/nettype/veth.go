// SPDX-License-Identifier: Apache-2.0

package nettype

import "github.com/berth-dev/berth/agent/chain"

// Veth is the name of the type of pairs of virtual Ethernet links: the node answers and routes.
const Veth = "veth"

// VethPlugin chooses it.
const VethPlugin = "berth-veth"

var veth = &Type{
	Name:          Veth,
	Plugins:       []string{VethPlugin},
	NodeIsGateway: true,
	read: func(network *chain.Network, node Node) (*Floating, error) {
		var conf link
		if err := network.Plugin(&conf); err != nil {
			return nil, err
		}
		return wired(Veth, network, conf, node)
	},
	detached: func(*chain.Network) (bool, error) { return false, nil },
}
