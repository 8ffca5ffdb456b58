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

// Capability is the CNI capability by which plugins get host ports.
const Capability = "portMappings"

// Holder is another pod that has a host port.
type Holder struct {
	Port state.HostPort
	// Pod is empty while the pods of the node are not known.
	Pod api.Pod
	// Record is nil if it was lost.
	Record *state.Container
}

// Claim writes the first record of an ADD, with its host ports. If another pod has any of the
// ports, it writes nothing and returns the holder. older lists unfinished ADDs of older containers
// of the pod that have any of the ports, for the caller to end: such an ADD would open and close
// its ports after this ADD.
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

// others lists the containers with host ports except the record's: the containers of records, and a
// container for each port whose record was lost. The caller holds the lock.
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

// holders returns another pod that has any of the record's ports, or else the unfinished ADDs of
// older containers of its pod that have any of them. Pure.
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

// claims reports whether the record keeps other pods from its host ports.
func claims(record *state.Container) bool {
	return record.Phase == state.Added || record.Phase == state.Adding
}

// conflict reports whether port clashes with any of others.
func conflict(port state.HostPort, others []state.HostPort) bool {
	return slices.ContainsFunc(others, func(other state.HostPort) bool { return hostport.Conflict(port.HostPort, other.HostPort) })
}

// beside lists the ports of ours that do not clash with theirs.
func beside(ours, theirs []state.HostPort) []state.HostPort {
	return slices.DeleteFunc(slices.Clone(ours), func(our state.HostPort) bool { return conflict(our, theirs) })
}

// tellPlugins puts the ports chosen by the node into the capabilities of a network whose plugin
// opens host ports itself.
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
