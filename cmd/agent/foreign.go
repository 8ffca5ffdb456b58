// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/berth-dev/berth/agent"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/cni/foreign"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// foreignDriver is the agent's driver for interfaces that plugins of other projects make and
// that have their addresses from berth-ipam. It can only silence them and put them up again:
// it repairs none of their pieces, and has no links of its own. It does
// not defend addresses: the plugin chooses the MAC of the interface, so that a claim of the pod itself
// would look like that of another host.
type foreignDriver struct{}

func foreignOf(i *agent.Interface) foreign.Interface {
	f := foreign.Interface{ContainerID: i.ContainerID, NetNS: i.NetNS, Name: i.IfName}
	for _, a := range i.Addresses {
		f.Addresses = append(f.Addresses, a.Address)
	}
	if len(i.Result) > 0 {
		// A result that cannot be read names no links.
		if versioned, err := create.CreateFromBytes(i.Result); err == nil {
			f.Result, _ = current.NewResultFromResult(versioned)
		}
	}
	return f
}

// Setup puts up an interface that was silenced.
func (foreignDriver) Setup(i *agent.Interface) (*current.Result, error) {
	f := foreignOf(i)
	return f.Result, wire.ToCNIError(f.Restore())
}

// Withdraw returns foreign.ErrNotSeen where the plugin may be about to make the interface. One
// that the agent runs is over.
func (foreignDriver) Withdraw(i *agent.Interface) error {
	err := foreignOf(i).Silence()
	if i.Driver != nettype.IPAMCaller && errors.Is(err, foreign.ErrNotSeen) {
		return nil
	}
	return err
}

// Teardown silences: the interface's plugin removes it. Without a record it is not known whose
// the interface is.
func (foreignDriver) Teardown(i *agent.Interface) error {
	if len(i.Addresses) == 0 {
		return nil
	}
	if err := foreignOf(i).Silence(); !errors.Is(err, foreign.ErrNotSeen) {
		return err
	}
	return nil
}

// Announce marks the interface before: it is the first call after the plugin made it.
func (foreignDriver) Announce(i *agent.Interface) error {
	f := foreignOf(i)
	return errors.Join(f.Mark(), f.Announce())
}

// CheckNode and Repair are about the mark of the interface.
func (foreignDriver) CheckNode(i *agent.Interface) error { return foreignOf(i).CheckMark() }
func (foreignDriver) Repair(i *agent.Interface) error    { return foreignOf(i).Mark() }

// Targets is for the detection of conflicts. The plugin makes a link that is missing yet, and
// nobody has an address there.
func (foreignDriver) Targets(i *agent.Interface) ([]conflict.Target, error) {
	if i.Uplink == "" {
		return nil, nil
	}
	link, err := rtnl.LinkOrNil(i.Uplink)
	if err != nil || link == nil {
		return nil, err
	}
	own := specOf(i).MAC
	var targets []conflict.Target
	for _, a := range i.Addresses {
		targets = append(targets, conflict.Target{Address: a.Address, Link: link.Attrs().Index, Own: own})
	}
	return targets, nil
}
