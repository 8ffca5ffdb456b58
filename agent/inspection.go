// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"time"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/reconcile"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/agent/traffic"
)

// Inspect reports the agent's state; a pod, as namespace/name, limits it to the pod's containers.
// check has each record compared with the kernel, and changes nothing.
func (a *Agent) Inspect(ctx context.Context, pod string, check bool) (*inquiry.Inspection, error) {
	records, outcomes := a.Store.List(), a.reconciler.Outcomes()
	in := &inquiry.Inspection{
		Time: time.Now(), Started: a.started, API: a.Pods.Connection(), Records: a.phases(records), OldestCheck: oldestCheck(records, outcomes),
		Waiting: a.reconciler.Waiting(), Containers: []inquiry.InspectedContainer{},
	}
	var reader *traffic.Reader
	if check {
		var err error
		if reader, err = traffic.Read(); err != nil {
			in.Problems = append(in.Problems, err.Error())
		}
	}
	for _, record := range records {
		if pod == "" || record.Pod.String() == pod {
			c := a.inspect(record, outcomes[record.Key()], check)
			a.inspectTraffic(reader, record, &c, pod != "")
			in.Containers = append(in.Containers, c)
		}
	}
	if pod != "" {
		return in, nil
	}
	if err := a.Ready(ctx); err != nil {
		in.NotReady = err.Error()
	}
	in.Policies = a.Policies.Inspect()
	in.Conflicts = a.holdings.conflicts.List()
	in.Unanswered = a.holdings.answerer.Unanswered()
	if check {
		in.Segments = a.holdings.answerer.Hearings()
	}
	for _, p := range a.ports.Unrecorded() {
		in.OrphanPorts = append(in.OrphanPorts, inquiry.InspectedOrphanPort{HostPort: p.HostPort, Pod: p.Pod, Address: p.Mapping.Pod})
	}
	orphans, err := a.orphans.list(nil)
	if err != nil {
		in.Problems = append(in.Problems, err.Error())
	}
	for _, o := range orphans {
		in.Orphans = append(in.Orphans, inquiry.InspectedOrphan{Link: o.Name, Addresses: o.Addresses})
	}
	return in, nil
}

func (a *Agent) inspect(record *state.Container, came reconcile.Outcome, check bool) inquiry.InspectedContainer {
	c := inquiry.InspectedContainer{
		Pod: record.Pod, ContainerID: record.ContainerID, NetNS: record.NetNS, Phase: string(record.Phase), Reason: record.Reason, Checked: came.Checked,
	}
	if came.Err != nil {
		c.Error = came.Err.Error()
	}
	if check {
		c.Shaping = a.Shaper.Inspect(a.shaped(record))
	}
	for _, attachment := range record.Attachments {
		inspected := inquiry.InspectedInterface{
			Name: attachment.IfName, Definition: attachment.Definition, Driver: attachment.Driver, Uplink: attachment.Uplink, MAC: attachment.MAC,
			FloatingIPs: attachment.Addresses, Result: attachment.Result,
		}
		if network, err := chain.Parse(attachment.Network); err == nil {
			inspected.Network = network.Name()
		}
		if owner, ok := a.Drivers[attachment.Driver].(linkOwner); ok {
			inspected.Link = owner.LinkOf(state.Key{ContainerID: record.ContainerID, IfName: attachment.IfName})
		}
		c.Interfaces = append(c.Interfaces, inspected)
	}
	for _, port := range record.HostPorts {
		c.HostPorts = append(c.HostPorts, port.HostPort)
	}
	if check && record.Phase == state.Added {
		if err := errors.Join(a.eachInterface(record, nettype.Driver.CheckNode), a.links.check(record)); err != nil {
			c.Missing = err.Error()
		}
	}
	return c
}

// phases counts the records by phase; each phase has a number.
func (a *Agent) phases(records []*state.Container) map[string]int {
	counts := map[string]int{}
	for _, phase := range state.Phases {
		counts[string(phase)] = 0
	}
	for _, record := range records {
		counts[string(record.Phase)]++
	}
	return counts
}

// oldestCheck returns when the complete record was compared with the kernel for which this
// was the longest ago: the zero Time where one never was, and the present without records.
func oldestCheck(records []*state.Container, outcomes map[state.Key]reconcile.Outcome) time.Time {
	oldest := time.Now()
	for _, record := range records {
		if record.Phase != state.Added {
			continue
		}
		if checked := outcomes[record.Key()].Checked; checked.Before(oldest) {
			oldest = checked
		}
	}
	return oldest
}
