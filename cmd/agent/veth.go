// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-dev/berth/agent"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// veth is the agent's driver for pairs of virtual Ethernet links. Package wire
// does the work and does not know the agent's records.
type veth struct {
	wirer *wire.Wirer
}

func specOf(i *agent.Interface) wire.Spec {
	spec := wire.Spec{ContainerID: i.ContainerID, IfName: i.IfName, NetNS: i.NetNS, Uplink: i.Uplink, MTU: i.MTU, Addresses: i.Addresses, Secondary: i.Secondary}
	// An agent wrote the MAC. Wire refuses one that cannot be read.
	spec.MAC, _ = net.ParseMAC(i.MAC)
	spec.Routed = isRouted(i)
	return spec
}

// isRouted reads from the configuration that ADD used, and that the record has, whether the
// network leads packets for the addresses to this node without asking for them.
func isRouted(i *agent.Interface) bool {
	var list struct {
		Plugins []struct {
			Routed bool `json:"routed"`
		} `json:"plugins"`
	}
	// ADD refused an unreadable value.
	return json.Unmarshal(i.Network, &list) == nil && len(list.Plugins) > 0 && list.Plugins[0].Routed
}

func (v *veth) Setup(i *agent.Interface) (*current.Result, error) {
	spec := specOf(i)
	wired, err := v.wirer.Setup(spec)
	if err != nil {
		return nil, wire.ToCNIError(err)
	}
	return wire.Result(spec, wired), nil
}

func (v *veth) CheckNode(i *agent.Interface) error { return v.wirer.CheckNode(specOf(i)) }

func (v *veth) Repair(i *agent.Interface) error { return v.wirer.Repair(specOf(i)) }

func (v *veth) Teardown(i *agent.Interface) error { return v.wirer.Teardown(specOf(i)) }

func (v *veth) Ready(uplink string) error { return v.wirer.Ready(uplink) }

func (v *veth) Check(i *agent.Interface) error { return wire.ToCNIError(v.wirer.Check(specOf(i))) }

func (v *veth) Withdraw(i *agent.Interface) error { return v.wirer.Withdraw(specOf(i)) }

func (v *veth) Announce(i *agent.Interface) error { return v.wirer.Announce(specOf(i)) }

func (v *veth) LinkOf(key state.Key) string { return wire.HostLink(key.ContainerID, key.IfName) }

func (v *veth) PodEnd(link string) (string, error) { return v.wirer.PodEnd(link) }

func (v *veth) Links() ([]agent.Link, error) {
	links, err := v.wirer.List()
	return linksOf(links), err
}

// linksOf converts the links of a driver's package.
func linksOf(links []wire.Link) []agent.Link {
	all := make([]agent.Link, 0, len(links))
	for _, l := range links {
		all = append(all, agent.Link{Name: l.Name, Addresses: l.Addresses})
	}
	return all
}

func (v *veth) Remove(link string) error { return v.wirer.Remove(link) }

func (v *veth) RemoveLoose() error { return v.wirer.RemoveLoose() }

// Carried is for the defence of addresses.
func (v *veth) Carried(i *agent.Interface) ([]conflict.Target, error) { return v.Targets(i) }

// Targets is for the detection of conflicts: a pair's addresses are on layer 2 networks.
func (v *veth) Targets(i *agent.Interface) ([]conflict.Target, error) {
	spec := specOf(i)
	if spec.Routed {
		// Others may answer for all addresses there.
		return nil, nil
	}
	own := spec.MAC
	var targets []conflict.Target
	var errs []error
	for _, a := range i.Addresses {
		link, err := wire.NetworkLink(i.Uplink, a.VLAN)
		if err != nil {
			errs = append(errs, fmt.Errorf("find the network of %s: %w", a.Address, err))
			continue
		}
		targets = append(targets, conflict.Target{Address: a.Address, Link: link, Own: own})
	}
	return targets, errors.Join(errs...)
}
