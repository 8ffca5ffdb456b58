// SPDX-License-Identifier: Apache-2.0

package nettype

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/cni/api"
)

// types are the network types; a new type needs a line here.
var types = []*Type{
	veth,
	vlanType,
	ipam,
	ipamCaller,
	ordinary,
}

// Default is the plugin of the floating network if the administrator chose none.
const Default = VethPlugin

// Of returns the type that a record names. For a name of another version of the agent it returns a
// type without a driver.
func Of(name string) *Type {
	i := slices.IndexFunc(types, func(t *Type) bool { return t.Name == name })
	if i < 0 {
		return &Type{Name: name}
	}
	return types[i]
}

// Read returns the network as its type serves it, nil if no type does. The first plugin names the
// type; type ipam serves plugins of other projects.
func Read(network *chain.Network, node Node) (*Floating, error) {
	plugin := network.Types()[0]
	for _, t := range types {
		if slices.Contains(t.Plugins, plugin) {
			return t.read(network, node)
		}
	}
	return readIPAM(network, node)
}

// ErrorOf returns the error of a floating network that no type serves.
func ErrorOf(network *chain.Network) error {
	return fmt.Errorf("network configuration %q: the first plugin must be %s, or name %s as its ipam.type, is %s",
		network.Name(), Plugins(), api.IPAMType, network.Types()[0])
}

// Plugins names the plugins that choose a type, such as "x, y or z".
func Plugins() string { return pluginsOf(func(*Type) bool { return true }) }

// GatewayPlugins names the plugins that choose a type with NodeIsGateway.
func GatewayPlugins() string { return pluginsOf(func(t *Type) bool { return t.NodeIsGateway }) }

// ErrRouted is returned for an address of a pool with mode Routed if the network's type does not
// serve this mode.
var ErrRouted = errors.New("the network serves no pool with mode Routed")

// Serve returns ErrRouted if the type does not serve every address.
func (t *Type) Serve(addrs []api.Address) error {
	i := slices.IndexFunc(addrs, func(a api.Address) bool { return a.Routed })
	if t.Routed || i < 0 {
		return nil
	}
	return fmt.Errorf("%w: routers lead to %s, which a network of type %s cannot carry; use %s as the first plugin of the nodes' floating network, or a pool with mode Link",
		ErrRouted, addrs[i].Address, t.Name, pluginsOf(func(t *Type) bool { return t.Routed }))
}

func pluginsOf(some func(*Type) bool) string {
	var all []string
	for _, t := range types {
		if some(t) {
			all = append(all, t.Plugins...)
		}
	}
	if last := len(all) - 1; last > 0 {
		return strings.Join(all[:last], ", ") + " or " + all[last]
	}
	return strings.Join(all, "")
}
