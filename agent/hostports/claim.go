// SPDX-License-Identifier: Apache-2.0

package hostports

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/hostport"
)

// Capability is the capability of CNI by which plugins get host ports.
const Capability = "portMappings"

// Holder is another pod that has a host port.
type Holder struct {
	Port state.HostPort
	// Pod is empty where the pods of the node are not known yet.
	Pod api.Pod
	// Record is nil where it was lost.
	Record *state.Container
}

// Claim writes the first record of an ADD, and with it its host ports. It writes nothing and
// returns a holder where another pod has one of the ports. older lists the ADDs under way of older
// containers of the pod that have one, for the caller to end: such an ADD opens and closes its
// ports as if it had come before.
func (p *Ports) Claim(ctx context.Context, record *state.Container) (holder *Holder, older []state.Key, err error) {
	if len(record.HostPorts) == 0 {
		return nil, nil, p.Store.Put(record)
	}
	unlock, err := p.lock(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	others, err := p.others(record)
	if err != nil {
		return nil, nil, err
	}
	if err := p.choose(record, others); err != nil {
		return nil, nil, err
	}
	if holder, older = holders(record, others); holder != nil {
		return holder, nil, nil
	}
	if err := tellPlugins(record); err != nil {
		return nil, nil, err
	}
	return nil, older, p.Store.Put(record)
}

// others lists the containers with host ports beside the record's: the containers of records, and
// one for each port whose record was lost. The caller holds the lock.
func (p *Ports) others(record *state.Container) ([]*state.Container, error) {
	others := slices.DeleteFunc(p.Store.List(), func(r *state.Container) bool { return r.Key() == record.Key() || len(r.HostPorts) == 0 })
	lost, err := p.readUnrecorded()
	if err != nil {
		return nil, err
	}
	for _, u := range lost {
		// Like an older container of the pod.
		others = append(others, &state.Container{Pod: u.Pod, Phase: state.Added, HostPorts: []state.HostPort{{HostPort: u.HostPort, Random: true}}})
	}
	return others, nil
}

// holders returns another pod that has one of the record's ports, or else the ADDs under way of
// older containers of its pod that have one. Pure.
func holders(record *state.Container, others []*state.Container) (holder *Holder, older []state.Key) {
	for _, other := range others {
		if !claims(other) {
			continue
		}
		taken := slices.IndexFunc(record.HostPorts, func(port state.HostPort) bool { return conflict(port, other.HostPorts) })
		switch {
		case taken < 0:
		case !other.Pod.Is(record.Pod):
			holder := &Holder{Port: record.HostPorts[taken], Pod: other.Pod}
			if other.ContainerID != "" {
				holder.Record = other
			}
			return holder, nil
		case other.Phase == state.Adding:
			older = append(older, other.Key())
		}
	}
	return nil, older
}

// claims returns true for a record whose host ports no other pod can have.
func claims(record *state.Container) bool {
	return record.Phase == state.Added || record.Phase == state.Adding
}

// conflict returns true where the node cannot have a port beside one of others.
func conflict(port state.HostPort, others []state.HostPort) bool {
	return slices.ContainsFunc(others, func(other state.HostPort) bool { return hostport.Conflict(port.HostPort, other.HostPort) })
}

// beside lists the ports of ours that the node can have beside theirs.
func beside(ours, theirs []state.HostPort) []state.HostPort {
	return slices.DeleteFunc(slices.Clone(ours), func(our state.HostPort) bool { return conflict(our, theirs) })
}

// tellPlugins puts the ports that the node chose into the capabilities of a network whose
// plugin opens host ports itself.
func tellPlugins(record *state.Container) error {
	if !HasRandom(record) {
		return nil
	}
	_, byPlugin, err := networkOf(record, &record.Attachments[0])
	if err != nil || !byPlugin {
		return err
	}
	all := numbers(record.HostPorts)
	for i := range all {
		all[i].Protocol = strings.ToLower(all[i].Protocol)
	}
	raw, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("encode host ports: %w", err)
	}
	if record.Capabilities == nil {
		record.Capabilities = map[string]json.RawMessage{}
	}
	record.Capabilities[Capability] = raw
	return nil
}
