// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"maps"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
)

// driverOf returns the driver of an attachment, nil where plugins do all the work.
func (a *Agent) driverOf(record *state.Container, i int) (nettype.Driver, error) {
	name := record.Attachments[i].Driver
	if name == "" {
		return nil, nil
	}
	if d := a.Drivers[name]; d != nil {
		return d, nil
	}
	return nil, fmt.Errorf("the record of container %s names the driver %q, which this agent does not have: run the agent's version that wrote it", record.ContainerID, name)
}

func interfaceOf(record *state.Container, i int) *nettype.Interface {
	return &nettype.Interface{ContainerID: record.ContainerID, NetNS: record.NetNS, Secondary: isSecondary(record, i), Attachment: record.Attachments[i]}
}

// interfaceNow is interfaceOf with the addresses that routing daemons are to announce.
func (a *Agent) interfaceNow(record *state.Container, i int) *nettype.Interface {
	one := interfaceOf(record, i)
	one.Advertised = a.advertised(record, i)
	return one
}

// eachInterface calls do for every interface of the record that a driver wires, and
// returns all errors.
func (a *Agent) eachInterface(record *state.Container, do func(d nettype.Driver, i *nettype.Interface) error) error {
	var errs []error
	for i := range record.Attachments {
		d, err := a.driverOf(record, i)
		if err == nil && d != nil {
			err = do(d, a.interfaceNow(record, i))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// wiring says which program makes the interface of an attachment.
func wiring(record *state.Container, i int) nettype.Wiring {
	return nettype.Of(record.Attachments[i].Driver).Wired
}

// networkOf returns the network of an attachment with the plugins that the agent runs.
func networkOf(record *state.Container, i int) (*chain.Network, error) {
	network, err := chain.Parse(record.Attachments[i].Network)
	if err != nil {
		return nil, fmt.Errorf("the record of container %s, interface %s: %w", record.ContainerID, record.Attachments[i].IfName, err)
	}
	return nettype.Of(record.Attachments[i].Driver).Chain(network), nil
}

// forPlugins describes an attachment to its plugins.
func forPlugins(record *state.Container, i int) chain.Attachment {
	attachment := record.Attachments[i]
	capabilities := attachment.Capabilities
	if i == 0 {
		// The runtime means the first network.
		capabilities = maps.Clone(record.Capabilities)
		if capabilities == nil {
			capabilities = attachment.Capabilities
		} else {
			maps.Copy(capabilities, attachment.Capabilities)
		}
	}
	return chain.Attachment{
		ContainerID: record.ContainerID, NetNS: record.NetNS, IfName: attachment.IfName, Args: record.Args, Capabilities: capabilities,
		CNIArgs: attachment.Args,
	}
}
