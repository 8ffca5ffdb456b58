// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/hostport"
)

// unrecorded is a host port of a running pod that has no record, because the state file was lost. A
// port that the kernel forwards at the start of the agent stays until the pods of the node are
// known, and then where it is a port of one of them. It closes when the pod ends, at its
// container's DEL, and when its next container is complete.
type unrecorded struct {
	hostport.Mapping
	// pod is empty until the pods of the node are known.
	pod api.Pod
}

// unrecordedPorts reads the kernel's forwards once, before the first change. The caller holds the
// lock of the host ports.
func (a *Agent) unrecordedPorts() ([]unrecorded, error) {
	h := &a.hostPorts
	if h.read {
		return h.unrecorded, nil
	}
	found, err := a.HostPorts.Forwarded()
	if err != nil {
		return nil, fmt.Errorf("read the host ports that the node forwards: %w", err)
	}
	recorded := a.recordedPorts()
	var all []unrecorded
	for _, m := range found {
		if !slices.ContainsFunc(recorded, func(p api.HostPort) bool { return hostport.Conflict(p, m.HostPort) }) {
			all = append(all, unrecorded{Mapping: m})
		}
	}
	h.read = true
	h.setUnrecorded(all)
	return all, nil
}

// recordedPorts lists the ports of records of every phase.
func (a *Agent) recordedPorts() []api.HostPort {
	var all []api.HostPort
	for _, record := range a.Store.List() {
		all = append(all, portsOf(record.HostPorts)...)
	}
	return all
}

// findPods gives the host ports without a record their pods, and closes ports that no pod has. It
// does so once, when the pods of the node are known.
func (a *Agent) findPods(ctx context.Context) error {
	unlock, err := a.lockHostPorts(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	found, err := a.unrecordedPorts()
	if err != nil || a.hostPorts.podsKnown {
		return err
	}
	records := a.Store.List()
	var all []unrecorded
	for _, pod := range a.Pods.Running() {
		if slices.ContainsFunc(records, func(r *state.Container) bool { return r.Pod.Is(pod.Pod.Pod) }) {
			continue
		}
		for _, p := range found {
			if slices.Contains(pod.Addresses, p.Mapping.Pod) && asksFor(pod, p.HostPort) {
				all = append(all, unrecorded{p.Mapping, pod.Pod.Pod})
				klog.FromContext(ctx).Info("A running pod whose record was lost keeps its host port",
					"pod", klog.KRef(pod.Namespace, pod.Name), "port", p.HostPort, "podIP", p.Mapping.Pod)
			}
		}
	}
	a.hostPorts.podsKnown = true
	a.hostPorts.setUnrecorded(all)
	_, err = a.apply(ctx)
	return err
}

// asksFor returns true where the pod has the port in its specification, or leaves the choice of
// a port for the container's port to the node.
func asksFor(pod podinfo.Running, port api.HostPort) bool {
	return slices.ContainsFunc(pod.Given, func(p api.HostPort) bool {
		return p.ContainerPort == port.ContainerPort && hostport.Conflict(p, port)
	}) || slices.ContainsFunc(pod.HostPorts.Random, func(p api.HostPort) bool {
		return p.ContainerPort == port.ContainerPort && p.Protocol == port.Protocol
	})
}

// forgetPorts closes the host ports without a record that match selects.
func (a *Agent) forgetPorts(ctx context.Context, match func(p unrecorded) bool) error {
	unlock, err := a.lockHostPorts(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := a.unrecordedPorts(); err != nil || !a.hostPorts.drop(match) {
		return err
	}
	_, err = a.apply(ctx)
	return err
}

// drop returns true where match selects any of the ports without a record. The caller holds the
// lock of the host ports.
func (h *hostPorts) drop(match func(p unrecorded) bool) bool {
	if !slices.ContainsFunc(h.unrecorded, match) {
		return false
	}
	h.setUnrecorded(slices.DeleteFunc(slices.Clone(h.unrecorded), match))
	return true
}

func (h *hostPorts) setUnrecorded(all []unrecorded) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unrecorded = all
}

// listUnrecorded is for callers that do not hold the lock of the host ports.
func (h *hostPorts) listUnrecorded() []unrecorded {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unrecorded
}

// closeUnrecorded closes the host ports of a container without a record: the ports that lead to the
// addresses that its ADD returned or, where the runtime does not pass them, to its pod.
func (a *Agent) closeUnrecorded(ctx context.Context, args podArgs, conf requestConfig) error {
	addrs := addressesOf(conf.PrevResult)
	return a.forgetPorts(ctx, func(p unrecorded) bool {
		if len(addrs) > 0 {
			return slices.Contains(addrs, p.Mapping.Pod)
		}
		return p.pod.Is(api.Pod{Namespace: args.namespace, Name: args.name, UID: args.uid})
	})
}

// keepUnrecorded calls findPods as soon as the pods of the node are known, until it succeeds.
func (a *Agent) keepUnrecorded(ctx context.Context) {
	if !a.Pods.WaitForSync(ctx) {
		return
	}
	_ = wait.PollUntilContextCancel(ctx, portRetry, true, func(ctx context.Context) (done bool, err error) {
		if err := a.findPods(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot find the pods of host ports without a record, will try again")
			return false, nil
		}
		return true, nil
	})
}
