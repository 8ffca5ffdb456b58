// SPDX-License-Identifier: Apache-2.0

package hostports

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
)

// HasRandom returns whether the node chose a host port of the record.
func HasRandom(record *state.Container) bool {
	return slices.ContainsFunc(record.HostPorts, func(port state.HostPort) bool { return port.Random })
}

// Annotations returns the annotations that tell the host ports of a pod that left the
// choice to the node, in Galaxy's way, too, if the pod asked so.
func Annotations(record *state.Container) (map[string]string, error) {
	annotations := map[string]string{}
	if !HasRandom(record) {
		return annotations, nil
	}
	ports, err := json.Marshal(numbers(record.HostPorts))
	if err != nil {
		return nil, fmt.Errorf("encode host ports: %w", err)
	}
	annotations[v1alpha1.AnnotationHostPortsStatus] = string(ports)
	if !record.GalaxyPorts {
		return annotations, nil
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
	if ports, err = json.Marshal(all); err != nil {
		return nil, fmt.Errorf("encode host ports: %w", err)
	}
	annotations[galaxy.AnnotationPortMapping] = string(ports)
	return annotations, nil
}
