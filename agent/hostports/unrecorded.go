// SPDX-License-Identifier: Apache-2.0

package hostports

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/hostport"
)

// Unrecorded is a host port of a running pod that has no record, because the state file was lost. A
// port that the kernel forwards at the start of the agent stays until the pods of the node are
// known. After that it stays only if it is a port of such a pod. It closes when the pod ends, at
// its container's DEL, and when its next container is complete.
type Unrecorded struct {
	hostport.Mapping
	// Pod is empty until the pods of the node are known.
	Pod api.Pod
}

// readUnrecorded reads the kernel's forwards once, before the first change. The caller holds the
// lock.
func (p *Ports) readUnrecorded() ([]Unrecorded, error) {
	if p.read {
		return p.unrecorded, nil
	}
	found, err := p.Forwarder.Forwarded()
	if err != nil {
		return nil, fmt.Errorf("read the host ports that the node forwards: %w", err)
	}
	// Records of every phase.
	var recorded []api.HostPort
	for _, record := range p.Store.List() {
		recorded = append(recorded, numbers(record.HostPorts)...)
	}
	var all []Unrecorded
	for _, m := range found {
		if !slices.ContainsFunc(recorded, func(port api.HostPort) bool { return hostport.Conflict(port, m.HostPort) }) {
			all = append(all, Unrecorded{Mapping: m})
		}
	}
	p.read = true
	p.setUnrecorded(all)
	return all, nil
}

// FindPods finds the pods of host ports without a record, and closes ports without a pod. It does
// so once, when the pods of the node are known.
func (p *Ports) FindPods(ctx context.Context) error {
	unlock, err := p.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	found, err := p.readUnrecorded()
	if err != nil || p.podsKnown {
		return err
	}
	records := p.Store.List()
	var all []Unrecorded
	for _, pod := range p.Pods.Running() {
		if slices.ContainsFunc(records, func(r *state.Container) bool { return r.Pod.Is(pod.Pod.Pod) }) {
			continue
		}
		for _, u := range found {
			if slices.Contains(pod.Addresses, u.Mapping.Pod) && asksFor(pod, u.HostPort) {
				all = append(all, Unrecorded{u.Mapping, pod.Pod.Pod})
				klog.FromContext(ctx).Info("A running pod whose record was lost keeps its host port",
					"pod", klog.KRef(pod.Namespace, pod.Name), "port", u.HostPort, "podIP", u.Mapping.Pod)
			}
		}
	}
	p.podsKnown = true
	p.setUnrecorded(all)
	_, err = p.apply(ctx)
	return err
}

// asksFor reports whether the pod has the port in its specification, or leaves the choice of a host
// port for this container port to the node.
func asksFor(pod podinfo.Running, port api.HostPort) bool {
	return slices.ContainsFunc(pod.Given, func(given api.HostPort) bool {
		return given.ContainerPort == port.ContainerPort && hostport.Conflict(given, port)
	}) || slices.ContainsFunc(pod.HostPorts.Random, func(random api.HostPort) bool {
		return random.ContainerPort == port.ContainerPort && random.Protocol == port.Protocol
	})
}

// EndPod closes the ports without a record of a pod that has ended.
func (p *Ports) EndPod(ctx context.Context, pod api.Pod) error {
	return p.forget(ctx, func(u Unrecorded) bool { return u.Pod.Is(pod) })
}

// EndAddresses closes the ports without a record that lead to addresses.
func (p *Ports) EndAddresses(ctx context.Context, addrs []netip.Addr) error {
	return p.forget(ctx, func(u Unrecorded) bool { return slices.Contains(addrs, u.Mapping.Pod) })
}

func (p *Ports) forget(ctx context.Context, match func(u Unrecorded) bool) error {
	unlock, err := p.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := p.readUnrecorded(); err != nil || !p.drop(match) {
		return err
	}
	_, err = p.apply(ctx)
	return err
}

// drop forgets the ports without a record that match selects, and reports whether there were any.
// The caller holds the lock.
func (p *Ports) drop(match func(u Unrecorded) bool) bool {
	if !slices.ContainsFunc(p.unrecorded, match) {
		return false
	}
	p.setUnrecorded(slices.DeleteFunc(slices.Clone(p.unrecorded), match))
	return true
}

func (p *Ports) setUnrecorded(all []Unrecorded) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unrecorded = all
}

// Unrecorded lists the ports without a record, without blocking.
func (p *Ports) Unrecorded() []Unrecorded {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unrecorded
}

// keepUnrecorded calls FindPods as soon as the pods of the node are known, until it succeeds.
func (p *Ports) keepUnrecorded(ctx context.Context) {
	if !p.Pods.WaitForSync(ctx) {
		return
	}
	_ = wait.PollUntilContextCancel(ctx, retry, true, func(ctx context.Context) (done bool, err error) {
		if err := p.FindPods(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot find the pods of host ports without a record, will try again")
			return false, nil
		}
		return true, nil
	})
}
