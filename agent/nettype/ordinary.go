// SPDX-License-Identifier: Apache-2.0

package nettype

import (
	"slices"

	"github.com/berth-dev/berth/agent/chain"
)

// ordinary is the type of networks that take no floating IPs. Records have no name for it.
var ordinary = &Type{
	Wired: ByPlugins,
	detached: func(network *chain.Network) (bool, error) {
		return slices.Contains([]string{"macvlan", "ipvlan", "vlan", "sriov", "host-device"}, network.Types()[0]), nil
	},
}
