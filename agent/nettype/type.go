// SPDX-License-Identifier: Apache-2.0

package nettype

import (
	"net/netip"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/leftover"
)

// Type is a network type.
type Type struct {
	// Name stands in records, so it never changes.
	Name string
	// Plugins choose the type as the first plugin of a network.
	Plugins []string
	// Wired says which program makes the interfaces.
	Wired Wiring
	// NodeIsGateway says that the driver makes the container's default route, through the node as
	// gateway. Only such a container may have its default route on another interface.
	NodeIsGateway bool
	// Routed says that the driver serves addresses that routers route to the node.
	Routed bool

	// read returns a network that has one of Plugins, completed with values of the node.
	read func(network *chain.Network, node Node) (*Floating, error)
	// detached is for Detached; nil if no replies pass the node.
	detached func(network *chain.Network) (bool, error)
	// furtherInterfaces is for FurtherInterfaces; nil if there are none.
	furtherInterfaces func(ifName string, addrs []api.Address) []string
	// ends is for Carriers; nil if no link has an end on the node.
	ends func(i *Interface) []Carrier
	// driver is for Drivers; nil if the agent does nothing to an interface.
	driver func(k Kernel) Driver
	// leftovers is for Leftovers; nil if nothing is left.
	leftovers func(k Kernel) ([]leftover.Item, error)
}

// Wiring says which program makes the interfaces of a network type's pods.
type Wiring int

// The programs that make interfaces.
const (
	// ByDriver: the agent does the work of the network's first plugin, and runs the others.
	ByDriver Wiring = iota
	// ByPlugins: the agent runs all plugins of the network.
	ByPlugins
	// ByCaller: another program, such as the runtime, runs the network's plugins.
	ByCaller
)

// Chain returns the network with the plugins that the agent runs.
func (t *Type) Chain(network *chain.Network) *chain.Network {
	if t.Wired == ByPlugins {
		return network
	}
	return network.Chained()
}

// Detached reports whether replies of the network's pods bypass the node. Then a host port works
// only if the pod sees the node as its client.
func (t *Type) Detached(network *chain.Network) (bool, error) {
	if t.detached == nil {
		return true, nil
	}
	return t.detached(network)
}

// FurtherInterfaces lists the interfaces, besides ifName, that the container may have for the
// addresses.
func (t *Type) FurtherInterfaces(ifName string, addrs []api.Address) []string {
	if t.furtherInterfaces == nil {
		return nil
	}
	return t.furtherInterfaces(ifName, addrs)
}

// Carrier is a link of a container with the addresses that it carries.
type Carrier struct {
	// Link is its name in the container, and End that of its end on the node; empty if it has none.
	Link, End string
	Addresses []netip.Addr
}

// Carriers lists the links of an interface with addresses. Pure.
func (t *Type) Carriers(i *Interface) []Carrier {
	if t.ends != nil {
		return t.ends(i)
	}
	return []Carrier{carrierOf(i.IfName, "", i.Addresses)}
}

func carrierOf(link, end string, addrs []api.Address) Carrier {
	c := Carrier{Link: link, End: end}
	for _, a := range addrs {
		c.Addresses = append(c.Addresses, a.Address)
	}
	return c
}
