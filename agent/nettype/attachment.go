// SPDX-License-Identifier: Apache-2.0

package nettype

import (
	"fmt"
	"maps"
	"slices"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/state"
)

// WithDefaultRoute returns the position of the attachment that the pod gave its default route,
// -1 where none has it and the first network's is the pod's.
func WithDefaultRoute(all []state.Attachment) int {
	return slices.IndexFunc(all, func(a state.Attachment) bool { return len(a.DefaultRoute) > 0 })
}

// isSecondary returns whether the pod's default route is on another interface than this one.
func isSecondary(record *state.Container, i int) bool {
	return i != max(WithDefaultRoute(record.Attachments), 0)
}

// FloatingOf returns the attachment that takes floating IPs, nil where there is none.
func FloatingOf(all []state.Attachment) *state.Attachment {
	for i := range all {
		if all[i].Driver != "" {
			return &all[i]
		}
	}
	return nil
}

// InterfaceOf describes an attachment to its driver.
func InterfaceOf(record *state.Container, i int) *Interface {
	return &Interface{ContainerID: record.ContainerID, NetNS: record.NetNS, Secondary: isSecondary(record, i), Standby: record.Standby, Attachment: record.Attachments[i]}
}

// NetworkOf returns the network of an attachment with the plugins that the agent runs.
func NetworkOf(record *state.Container, i int) (*chain.Network, error) {
	network, err := chain.Parse(record.Attachments[i].Network)
	if err != nil {
		return nil, fmt.Errorf("the record of container %s, interface %s: %w", record.ContainerID, record.Attachments[i].IfName, err)
	}
	return Of(record.Attachments[i].Driver).Chain(network), nil
}

// ForPlugins describes an attachment to its plugins.
func ForPlugins(record *state.Container, i int) chain.Attachment {
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
