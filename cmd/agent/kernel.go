// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"

	"github.com/berth-dev/berth/agent"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// kernel lets the agent use package wire, which is the plugin's and does not know the
// agent's records.
type kernel struct {
	wirer *wire.Wirer
}

func specOf(a *state.Attachment) wire.Spec {
	spec := wire.Spec{ContainerID: a.ContainerID, IfName: a.IfName, NetNS: a.NetNS, Uplink: a.Uplink, Addresses: a.Addresses}
	// An agent wrote the MAC. If it is malformed, wire takes its default.
	spec.MAC, _ = net.ParseMAC(a.MAC)
	return spec
}

func (k *kernel) Check(a *state.Attachment) error { return k.wirer.Check(specOf(a)) }

func (k *kernel) Repair(a *state.Attachment) error {
	if k.Check(a) == nil {
		return nil
	}
	_, err := k.wirer.Setup(specOf(a))
	if err != nil {
		return err
	}
	return k.wirer.Announce(specOf(a))
}

func (k *kernel) Withdraw(a *state.Attachment) error { return k.wirer.Withdraw(specOf(a)) }

func (k *kernel) Announce(a *state.Attachment) error { return k.wirer.Announce(specOf(a)) }

func (k *kernel) Forget(containerID, ifName, netns string) error {
	return k.wirer.Teardown(wire.Spec{ContainerID: containerID, IfName: ifName, NetNS: netns})
}

func (k *kernel) LinkOf(key state.Key) string { return wire.HostLink(key.ContainerID, key.IfName) }

func (k *kernel) Links() ([]agent.Link, error) {
	links, err := k.wirer.List()
	if err != nil {
		return nil, err
	}
	all := make([]agent.Link, 0, len(links))
	for _, l := range links {
		all = append(all, agent.Link{Name: l.Name, Addresses: l.Addresses})
	}
	return all, nil
}

func (k *kernel) Remove(link string) error { return k.wirer.Remove(link) }

func (k *kernel) RemoveLoose() error { return k.wirer.RemoveLoose() }
