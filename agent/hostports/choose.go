// SPDX-License-Identifier: Apache-2.0

package hostports

import (
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/hostport"
)

// choose gives each port of the record without a number the number of an older container of the
// pod, or a free number.
func (p *Ports) choose(record *state.Container, others []*state.Container) error {
	for i := range record.HostPorts {
		port := &record.HostPorts[i]
		if port.HostPort.HostPort != 0 {
			continue
		}
		taken := func(number uint16) bool { return isTaken(record, others, *port, number) }
		if number := hadBefore(record, others, *port, taken); number != 0 {
			port.HostPort.HostPort = number
			continue
		}
		seed := fnv.New64a()
		fmt.Fprint(seed, record.Pod.Identity(), port.Protocol, port.ContainerPort)
		number, err := p.Range.Choose(seed.Sum64(), func(number uint16) (bool, error) {
			if taken(number) {
				return false, nil
			}
			return p.Forwarder.Unused(port.Protocol, number)
		})
		if err != nil {
			return fmt.Errorf("choose a host port for %s port %d of pod %s: %w", port.Protocol, port.ContainerPort, record.Pod, err)
		}
		port.HostPort.HostPort = number
	}
	return nil
}

// isTaken reports whether another port of the record, or a port of another pod, conflicts with the
// number for the port. Pure.
func isTaken(record *state.Container, others []*state.Container, port state.HostPort, number uint16) bool {
	candidate := port.HostPort
	candidate.HostPort = number
	conflict := func(other state.HostPort) bool {
		return other.HostPort.HostPort != 0 && hostport.Conflict(other.HostPort, candidate)
	}
	return slices.ContainsFunc(record.HostPorts, conflict) || slices.ContainsFunc(others, func(r *state.Container) bool {
		return !r.Pod.Is(record.Pod) && slices.ContainsFunc(r.HostPorts, conflict)
	})
}

// hadBefore returns the number that the node chose for the port of an older container of the pod, 0
// if there is none or it is taken. Pure.
func hadBefore(record *state.Container, others []*state.Container, port state.HostPort, taken func(number uint16) bool) (number uint16) {
	for _, other := range others {
		for _, had := range other.HostPorts {
			if other.Pod.Is(record.Pod) && had.Random && had.Protocol == port.Protocol && had.ContainerPort == port.ContainerPort && !taken(had.HostPort.HostPort) {
				number = had.HostPort.HostPort
			}
		}
	}
	return number
}
