// SPDX-License-Identifier: Apache-2.0

package nettype

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/cni/leftover"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// Veth is the name of the type of pairs of virtual Ethernet links: the node answers and routes.
const Veth = "veth"

// VethPlugin chooses it.
const VethPlugin = "berth-veth"

var veth = &Type{
	Name:          Veth,
	Plugins:       []string{VethPlugin},
	NodeIsGateway: true,
	Routed:        true,
	read: func(network *chain.Network, node Node) (*Floating, error) {
		var conf link
		if err := network.Plugin(&conf); err != nil {
			return nil, err
		}
		return wired(Veth, network, conf, node)
	},
	detached: func(*chain.Network) (bool, error) { return false, nil },
	ends: func(i *Interface) []Carrier {
		return []Carrier{carrierOf(i.IfName, wire.HostLink(i.ContainerID, i.IfName), i.Addresses)}
	},
	driver:    func(k Kernel) Driver { return &vethDriver{wirer: k.Wirer} },
	leftovers: func(k Kernel) ([]leftover.Item, error) { return k.Wirer.Leftovers() },
}

// vethDriver delegates the work to package wire, which does not know the agent's records.
type vethDriver struct {
	wirer *wire.Wirer
}

func wireSpecOf(i *Interface) wire.Spec {
	spec := wire.Spec{ContainerID: i.ContainerID, IfName: i.IfName, NetNS: i.NetNS, Uplink: i.Uplink, MTU: i.MTU, Addresses: i.Addresses, Secondary: i.Secondary, Standby: i.Standby, Advertised: i.Advertised}
	// An agent wrote the MAC. Package wire refuses an unreadable MAC.
	spec.MAC, _ = net.ParseMAC(i.MAC)
	spec.Routed = isRouted(i)
	return spec
}

// isRouted reads from the record, which has the configuration of ADD, whether the network routes
// packets for the addresses to this node without asking for them.
func isRouted(i *Interface) bool {
	var list struct {
		Plugins []struct {
			Routed bool `json:"routed"`
		} `json:"plugins"`
	}
	// ADD refused an unreadable value.
	return json.Unmarshal(i.Network, &list) == nil && len(list.Plugins) > 0 && list.Plugins[0].Routed
}

func (v *vethDriver) Setup(i *Interface) (*current.Result, error) {
	spec := wireSpecOf(i)
	wired, err := v.wirer.Setup(spec)
	if err != nil {
		return nil, wire.ToCNIError(err)
	}
	return wire.Result(spec, wired), nil
}

func (v *vethDriver) CheckNode(i *Interface) error { return v.wirer.CheckNode(wireSpecOf(i)) }

// Survey is CheckNode for many interfaces.
func (v *vethDriver) Survey() func(i *Interface) error {
	check := v.wirer.Survey()
	return func(i *Interface) error { return check(wireSpecOf(i)) }
}

func (v *vethDriver) Filter(*Interface) error { return v.wirer.Filter() }

func (v *vethDriver) Repair(i *Interface) error { return v.wirer.Repair(wireSpecOf(i)) }

func (v *vethDriver) Close(i *Interface) error { return v.wirer.Close(wireSpecOf(i)) }

func (v *vethDriver) Teardown(i *Interface) error { return v.wirer.Teardown(wireSpecOf(i)) }

func (v *vethDriver) Ready(uplink string) error {
	if err := v.wirer.Ready(uplink); err != nil {
		return err
	}
	return v.wirer.Forwards(uplink)
}

// StandsBy says that Setup heeds Interface.Standby.
func (*vethDriver) StandsBy() {}

func (v *vethDriver) Check(i *Interface) error { return wire.ToCNIError(v.wirer.Check(wireSpecOf(i))) }

func (v *vethDriver) Withdraw(i *Interface) error { return v.wirer.Withdraw(wireSpecOf(i)) }

// Advertise updates the table of advertised addresses for the interface.
func (v *vethDriver) Advertise(i *Interface) error { return v.wirer.Advertise(wireSpecOf(i)) }

func (v *vethDriver) Announce(i *Interface) error { return v.wirer.Announce(wireSpecOf(i)) }

func (v *vethDriver) LinkOf(key state.Key) string { return wire.HostLink(key.ContainerID, key.IfName) }

func (v *vethDriver) PodEnd(link string) (string, error) { return v.wirer.PodEnd(link) }

func (v *vethDriver) Links() ([]Link, error) { return v.wirer.List() }

func (v *vethDriver) Remove(link string) error { return v.wirer.Remove(link) }

func (v *vethDriver) RemoveLoose() error { return v.wirer.RemoveLoose() }

// Targets is for the detection of conflicts.
func (v *vethDriver) Targets(i *Interface) (targets []conflict.Target, release func(), err error) {
	targets, err = v.Carried(i)
	return targets, nil, err
}

// Carried is for the defence of addresses: a pair's addresses are on layer 2 networks.
func (v *vethDriver) Carried(i *Interface) ([]conflict.Target, error) {
	spec := wireSpecOf(i)
	if spec.Routed {
		// Others may answer for all addresses there.
		return nil, nil
	}
	own := spec.MAC
	var targets []conflict.Target
	var errs []error
	for _, a := range i.Addresses {
		if a.Routed {
			continue // it is on no link
		}
		link, err := wire.NetworkLink(i.Uplink, a.VLAN)
		if err != nil {
			errs = append(errs, fmt.Errorf("find the network of %s: %w", a.Address, err))
			continue
		}
		targets = append(targets, conflict.Target{Address: a.Address, Link: link, Own: own})
	}
	return targets, errors.Join(errs...)
}
