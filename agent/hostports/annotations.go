// SPDX-License-Identifier: Apache-2.0

package hostports

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/ipam/galaxy"
)

// HasRandom reports whether the node chose a host port of the record.
func HasRandom(record *state.Container) bool {
	return slices.ContainsFunc(record.HostPorts, func(port state.HostPort) bool { return port.Random })
}

// Status returns the annotations with the host ports of a pod that left the choice to the node,
// also in Galaxy's format if the pod asked for it.
func Status(record *state.Container) (ports, galaxyPorts string, err error) {
	if !HasRandom(record) {
		return "", "", nil
	}
	raw, err := json.Marshal(numbers(record.HostPorts))
	if err != nil {
		return "", "", fmt.Errorf("encode host ports: %w", err)
	}
	ports = string(raw)
	if !record.GalaxyPorts {
		return ports, "", nil
	}
	addrs := chain.Addresses(record.Attachments[0].Result)
	var all []galaxy.PortMapping
	for _, port := range record.HostPorts {
		mapping := galaxy.PortMapping{
			HostPort: int32(port.HostPort.HostPort), ContainerPort: int32(port.ContainerPort), Protocol: port.Protocol, PodName: record.Pod.Name,
		}
		if port.HostIP.IsValid() {
			mapping.HostIP = port.HostIP.String()
		}
		if len(addrs) > 0 {
			mapping.PodIP = addrs[0].String()
		}
		all = append(all, mapping)
	}
	if raw, err = json.Marshal(all); err != nil {
		return "", "", fmt.Errorf("encode host ports: %w", err)
	}
	return ports, string(raw), nil
}
