// SPDX-License-Identifier: Apache-2.0

// Package hostports gives host ports to the pods of a node: it refuses a port of another pod,
// chooses ports for pods that leave the choice to the node, and makes the node forward the ports in
// the records. Package cni/hostport writes the rules.
//
// A record has its ports from the first write of its ADD ([Ports.Claim]); from then on other pods
// are refused. The ports are open from [Ports.Open] on, as long as the record is added. Older
// containers of the same pod keep a port until the ADD is complete ([Ports.Complete]): an ADD that
// fails takes nothing from them.
package hostports

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/keylock"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/hostport"
	"github.com/berth-dev/berth/ipam/wakeup"
)

// Forwarder makes the node forward ports to pods. Methods are safe in parallel and block for
// the kernel only.
type Forwarder interface {
	// Apply makes the node forward exactly the ports of mappings, in one transaction, and reports
	// whether this changed anything.
	Apply(mappings []hostport.Mapping) (changed bool, err error)
	// EndConnections ends connections that lead elsewhere since the last changes; after a failure the
	// next call repeats this. It may take long.
	EndConnections() error
	// Check returns an error that names a mapping that the node does not forward.
	Check(mappings []hostport.Mapping) error
	// Forwarded lists the ports that the node forwards.
	Forwarded() ([]hostport.Mapping, error)
	// Unused reports whether no program of the node has the port, and none could get it automatically.
	Unused(protocol string, port uint16) (bool, error)
}

// pods knows the pods of the node. Methods are safe in parallel.
type pods interface {
	// Running lists the pods that have addresses of their own, without blocking.
	Running() []podinfo.Running
	// WaitForSync returns true when every pod of the node is known, and false if the context ends
	// before.
	WaitForSync(ctx context.Context) bool
}

// Options of Ports.
type Options struct {
	Store     *state.Store
	Pods      pods
	Forwarder Forwarder
	// Range has the ports from which the node chooses for pods that leave it the choice.
	Range hostport.Range
}

// Ports are the host ports of a node. All methods may be called in parallel.
type Ports struct {
	Options

	locks keylock.Locks
	// wake makes Run compare the kernel with the records.
	wake wakeup.Signal
	// stale makes Run end connections that changes concern.
	stale wakeup.Signal
	// unrecorded are the ports of pods whose records were lost. read and podsKnown say that the kernel
	// and the API were asked for them. These three fields change under the lock; mu is for readers of
	// unrecorded without the lock.
	unrecorded      []Unrecorded
	read, podsKnown bool

	mu sync.Mutex
	// opening has the mappings of ADDs that have opened their ports but are not complete.
	opening map[state.Key][]hostport.Mapping
}

// New returns the host ports of a node; Run keeps the kernel equal to the records.
func New(o Options) *Ports {
	return &Ports{Options: o, wake: wakeup.New(), stale: wakeup.New(), opening: map[state.Key][]hostport.Mapping{}}
}

// patience limits the wait for another call that changes the kernel and records.
const patience = 10 * time.Second

// lock locks the host ports of all records. The caller may write records and change the kernel, but
// runs no plugin and asks no API under the lock. lock returns the context's cause if the context
// has ended: a withdrawal may end the context while an ADD waits for the lock.
func (p *Ports) lock(ctx context.Context) (func(), error) {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	unlock, err := p.locks.Lock(limited, "")
	switch {
	case ctx.Err() != nil:
		if err == nil {
			unlock()
		}
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, fmt.Errorf("wait for another call for host ports: %w", err)
	}
	return unlock, nil
}

// Open opens the host ports of an ADD whose plugins have ended. If the context has ended, because a
// port or the pod is withdrawn, it opens no port and returns the cause.
func (p *Ports) Open(ctx context.Context, record *state.Container) error {
	mappings, err := mappingsOf(record)
	if err != nil || len(mappings) == 0 {
		return err
	}
	unlock, err := p.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	p.mu.Lock()
	p.opening[record.Key()] = mappings
	p.mu.Unlock()
	if _, err := p.apply(ctx); err != nil {
		return fmt.Errorf("open the host ports of pod %s: %w", record.Pod, err)
	}
	return nil
}

// Complete writes the record of an ADD that is complete and, with it, takes its host ports from the
// older containers of the pod: their DEL, which may come later, finds nothing to close. It writes
// nothing if the context has ended.
func (p *Ports) Complete(ctx context.Context, record *state.Container) error {
	if len(record.HostPorts) == 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return p.Store.Put(record)
	}
	unlock, err := p.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	err = p.Store.Change(func(records map[state.Key]*state.Container) ([]*state.Container, error) {
		changed := []*state.Container{record}
		for key, other := range records {
			left := beside(other.HostPorts, record.HostPorts)
			if key == record.Key() || !other.Pod.Is(record.Pod) || other.Phase != state.Added || len(left) == len(other.HostPorts) {
				continue
			}
			other.HostPorts = left
			changed = append(changed, other)
		}
		return changed, nil
	})
	if err != nil {
		return err
	}
	p.opened(record.Key())
	if p.drop(func(u Unrecorded) bool { return u.Pod.Is(record.Pod) }) {
		p.CheckSoon()
	}
	return nil
}

// opened notes that the record of key now has its open ports.
func (p *Ports) opened(key state.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.opening, key)
}

// Close closes the host ports of a record that is no longer added, if it has any.
func (p *Ports) Close(ctx context.Context, record *state.Container) error {
	if len(record.HostPorts) == 0 {
		return nil
	}
	p.opened(record.Key())
	if _, err := p.Apply(ctx); err != nil {
		return fmt.Errorf("close the host ports of pod %s: %w", record.Pod, err)
	}
	return nil
}

// Reopen writes a record that is added again, with those of its host ports that no other pod has
// got meanwhile, and opens them.
func (p *Ports) Reopen(ctx context.Context, record *state.Container) error {
	if len(record.HostPorts) == 0 {
		return p.Store.Put(record)
	}
	unlock, err := p.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	for _, other := range p.Store.List() {
		if other.Key() != record.Key() && claims(other) {
			record.HostPorts = beside(record.HostPorts, other.HostPorts)
		}
	}
	if err := p.Store.Put(record); err != nil {
		return err
	}
	if _, err := p.apply(ctx); err != nil {
		// The record lists the open ports, and Run opens them.
		p.CheckSoon()
		return fmt.Errorf("open the host ports of pod %s: %w", record.Pod, err)
	}
	return nil
}

// Check returns an error if the node does not forward the record's ports.
func (p *Ports) Check(record *state.Container) error {
	mappings, err := mappingsOf(record)
	if err != nil || len(mappings) == 0 {
		return err
	}
	return p.Forwarder.Check(mappings)
}

// Apply makes the kernel forward the ports of the records, and reports whether this changed
// anything.
func (p *Ports) Apply(ctx context.Context) (changed bool, err error) {
	unlock, err := p.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	return p.apply(ctx)
}

// apply is Apply for callers that hold the lock.
func (p *Ports) apply(ctx context.Context) (changed bool, err error) {
	lost, err := p.readUnrecorded()
	if err != nil {
		return false, err
	}
	mappings := p.recordedMappings(ctx)
	var more []hostport.Mapping
	for _, u := range lost {
		more = append(more, u.Mapping)
	}
	defer p.stale.Send()
	return p.Forwarder.Apply(append(mappings, without(more, mappings)...))
}

// recordedMappings lists the ports that the node must forward for the records. A record that cannot
// be read must not close the ports of others. The caller holds the lock.
func (p *Ports) recordedMappings(ctx context.Context) []hostport.Mapping {
	records := p.Store.List()
	var opening []hostport.Mapping
	p.mu.Lock()
	for _, record := range records {
		if record.Phase == state.Adding {
			opening = append(opening, p.opening[record.Key()]...)
		}
	}
	p.mu.Unlock()
	all := slices.Clone(opening)
	for _, record := range records {
		if record.Phase != state.Added {
			continue
		}
		mappings, err := mappingsOf(record)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot forward the host ports of a pod", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name))
			continue
		}
		// A new container of the pod that is about to be complete has the port already.
		all = append(all, without(mappings, opening)...)
	}
	return all
}

// without lists the mappings whose ports do not clash with others.
func without(mappings, others []hostport.Mapping) []hostport.Mapping {
	return slices.DeleteFunc(mappings, func(m hostport.Mapping) bool {
		return slices.ContainsFunc(others, func(o hostport.Mapping) bool { return hostport.Conflict(m.HostPort, o.HostPort) })
	})
}

// mappingsOf returns the mappings that the node must forward for a record with the results of its
// plugins: none if a plugin forwards the ports.
func mappingsOf(record *state.Container) ([]hostport.Mapping, error) {
	if len(record.HostPorts) == 0 {
		return nil, nil
	}
	first := &record.Attachments[0]
	network, byPlugin, err := networkOf(record, first)
	if err != nil || byPlugin {
		return nil, err
	}
	detached, err := nettype.Of(first.Driver).Detached(network)
	if err != nil {
		return nil, fmt.Errorf("the record of container %s: %w", record.ContainerID, err)
	}
	return hostport.Mappings(numbers(record.HostPorts), chain.Addresses(first.Result), detached)
}

// networkOf returns the network of the container's first attachment, and whether a plugin that runs
// for it opens host ports itself.
func networkOf(record *state.Container, first *state.Attachment) (network *chain.Network, byPlugin bool, err error) {
	network, err = chain.Parse(first.Network)
	if err != nil {
		return nil, false, fmt.Errorf("the record of container %s: %w", record.ContainerID, err)
	}
	return network, nettype.Of(first.Driver).Chain(network).Declares(Capability), nil
}

// CheckSoon makes Run compare kernel and records; it returns at once.
func (p *Ports) CheckSoon() { p.wake.Send() }

// Run compares kernel and records after each CheckSoon, and finds the pods of ports without a
// record as soon as the pods are known. It returns when the context ends.
func (p *Ports) Run(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() { p.keepUnrecorded(ctx) })
	group.Go(func() { p.reconcile(ctx) })
	group.Go(func() { p.endConnections(ctx) })
	group.Wait()
}

func (p *Ports) reconcile(ctx context.Context) {
	logger := klog.FromContext(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		}
		changed, err := p.Apply(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			logger.Error(err, "Cannot make the node forward its host ports, will try again")
			time.AfterFunc(retry, p.CheckSoon)
		case changed:
			logger.Info("Made the node forward the host ports that the records have")
		}
	}
}

// The least wait after connections were ended, also as a multiple of the time that this took: the
// node may track a million connections.
const (
	endPause = time.Second
	endShare = 20
)

// endConnections ends connections after changes. It reads the kernel once for all changes that came
// meanwhile.
func (p *Ports) endConnections(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.stale:
		}
		began := time.Now()
		err := p.Forwarder.EndConnections()
		pause := max(endPause, endShare*time.Since(began))
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot end connections that lead elsewhere than the node's host ports, will try again")
			p.stale.Send()
			pause = max(pause, retry)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// retry is the wait after a failure.
const retry = 5 * time.Second

// ErrForbidden is the error of an ADD that would open host ports that the pod's namespace forbids.
var ErrForbidden = errors.New("host ports are forbidden")

// ErrTaken is the error of an ADD if another pod of the node has a host port.
var ErrTaken = errors.New("host port is taken")

// numbers returns the ports without the information how each was chosen.
func numbers(ports []state.HostPort) []api.HostPort {
	all := make([]api.HostPort, 0, len(ports))
	for _, port := range ports {
		all = append(all, port.HostPort)
	}
	return all
}
