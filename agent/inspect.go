// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
)

// outcomes has what came of the reconciler's work for each record. Methods are safe in
// parallel.
type outcomes struct {
	mu  sync.Mutex
	all map[state.Key]outcome
}

type outcome struct {
	// checked is when the record last agreed with the kernel.
	checked time.Time
	// err is the last failure since; nil after a success.
	err error
}

func (o *outcomes) note(key state.Key, checked bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[state.Key]outcome{}
	}
	was := o.all[key]
	was.err = err
	if checked && err == nil {
		was.checked = time.Now()
	}
	o.all[key] = was
}

func (o *outcomes) forget(key state.Key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, key)
}

func (o *outcomes) copy() map[state.Key]outcome {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.all)
}

// Inspect returns what the agent knows; a pod, as namespace/name, limits it to the pod's
// containers. check has each record compared with the kernel, and changes nothing.
func (a *Agent) Inspect(_ context.Context, pod string, check bool) (*api.Inspection, error) {
	records, outcomes := a.Store.List(), a.reconcile.outcomes.copy()
	in := &api.Inspection{
		Time: time.Now(), Started: a.started, API: a.Pods.Connection(), Records: a.phases(records), OldestCheck: oldestCheck(records, outcomes),
		Waiting: a.reconcile.waiting(), Containers: []api.InspectedContainer{},
	}
	for _, record := range records {
		if pod == "" || record.Pod.String() == pod {
			in.Containers = append(in.Containers, a.inspect(record, outcomes[record.Key()], check))
		}
	}
	if pod != "" {
		return in, nil
	}
	if a.Policies != nil {
		in.Policies = a.Policies.Inspect()
	}
	in.Conflicts = a.heard.list()
	for _, p := range a.hostPorts.listUnrecorded() {
		in.OrphanPorts = append(in.OrphanPorts, api.InspectedOrphanPort{HostPort: p.HostPort, Pod: p.pod, Address: p.Mapping.Pod})
	}
	orphans, err := a.orphans(nil)
	if err != nil {
		in.Problems = append(in.Problems, err.Error())
	}
	for _, o := range orphans {
		in.Orphans = append(in.Orphans, api.InspectedOrphan{Link: o.Name, Addresses: o.Addresses})
	}
	return in, nil
}

func (a *Agent) inspect(record *state.Container, came outcome, check bool) api.InspectedContainer {
	c := api.InspectedContainer{
		Pod: record.Pod, ContainerID: record.ContainerID, NetNS: record.NetNS, Phase: string(record.Phase), Reason: record.Reason, Checked: came.checked,
	}
	if came.err != nil {
		c.Error = came.err.Error()
	}
	if a.Shaper != nil && check {
		c.Shaping = a.Shaper.Inspect(a.shaped(record))
	}
	for i, attachment := range record.Attachments {
		inspected := api.InspectedInterface{
			Name: attachment.IfName, Definition: attachment.Definition, Driver: attachment.Driver, Uplink: attachment.Uplink, MAC: attachment.MAC,
			FloatingIPs: attachment.Addresses, Result: attachment.Result,
		}
		if network, err := chain.Parse(attachment.Network); err == nil {
			inspected.Network = network.Name()
		}
		if d, err := a.driverOf(record, i); err == nil && d != nil {
			inspected.Link = d.LinkOf(state.Key{ContainerID: record.ContainerID, IfName: attachment.IfName})
		}
		c.Interfaces = append(c.Interfaces, inspected)
	}
	for _, port := range record.HostPorts {
		c.HostPorts = append(c.HostPorts, port.HostPort)
	}
	if check && record.Phase == state.Added {
		if err := a.eachInterface(record, driver.CheckNode); err != nil {
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
func oldestCheck(records []*state.Container, outcomes map[state.Key]outcome) time.Time {
	oldest := time.Now()
	for _, record := range records {
		if record.Phase != state.Added {
			continue
		}
		if checked := outcomes[record.Key()].checked; checked.Before(oldest) {
			oldest = checked
		}
	}
	return oldest
}

// collect returns the values of the metrics that follow from the records.
func (a *Agent) collect() gauges {
	records, outcomes := a.Store.List(), a.reconcile.outcomes.copy()
	g := gauges{phases: a.phases(records), reachable: a.Pods.Connection().Error == ""}
	for _, came := range outcomes {
		if came.err != nil && !errors.Is(came.err, context.Canceled) {
			g.failing++
		}
	}
	oldest := oldestCheck(records, outcomes)
	if oldest.IsZero() {
		oldest = a.started
	}
	g.sinceCheck = time.Since(oldest)
	return g
}
