// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/hostport"
)

// unrecorded is a host port of a running pod that has no record, because the state file was
// lost. What the kernel forwards at the start of the agent stays until the pods of the node
// are known, and then where it is a port of one of them. It closes when the pod ends, at its
// container's DEL, and when its next container is complete.
type unrecorded struct {
	hostport.Mapping
	// pod is empty until the pods of the node are known.
	pod api.Pod
}

// unrecordedPorts reads what the kernel forwards once, before the first change. The caller
// holds the lock of the host ports.
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

// findPods gives the host ports without a record their pods, closes those that no pod has,
// and, where the state file was lost, opens those that the kernel has lost, too. It does so
// once, when the pods of the node are known.
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
	logger := klog.FromContext(ctx)
	records, taken, running := a.Store.List(), a.recordedPorts(), a.Pods.Running()
	for _, p := range found {
		taken = append(taken, p.HostPort)
	}
	// named are the ports that the API has for pods, those of annotations once for each pod.
	var named []api.HostPort
	for _, pod := range running {
		named = append(named, pod.Given...)
	}
	running = slices.DeleteFunc(slices.Clone(running), func(pod podinfo.Running) bool {
		return slices.ContainsFunc(records, func(r *state.Container) bool { return r.Pod.Is(pod.Pod.Pod) })
	})
	for _, pod := range running {
		named = append(named, a.toldPorts(pod)...)
	}
	var all []unrecorded
	for _, pod := range running {
		var mine []unrecorded
		for _, p := range found {
			if slices.Contains(pod.Addresses, p.Mapping.Pod) && asksFor(pod, p.HostPort) {
				mine = append(mine, unrecorded{p.Mapping, pod.Pod.Pod})
			}
		}
		if a.Store.Made() {
			lost, err := a.lostPorts(pod, mine, taken, named)
			if err != nil {
				logger.Error(err, "Cannot see which host ports a pod without a record had", "pod", klog.KRef(pod.Namespace, pod.Name))
			}
			mine = append(mine, lost...)
		}
		for _, p := range mine {
			taken = append(taken, p.HostPort)
			logger.Info("A running pod whose record was lost keeps its host port", "pod", klog.KRef(pod.Namespace, pod.Name), "port", p.HostPort, "podIP", p.Mapping.Pod)
		}
		all = append(all, mine...)
	}
	a.hostPorts.podsKnown = true
	a.hostPorts.setUnrecorded(all)
	_, err = a.apply(ctx)
	return err
}

// toldPorts lists the ports of a pod's annotation, which users can change, that the node could
// have chosen: at most one for each port of the pod that leaves the choice to the node.
func (a *Agent) toldPorts(pod podinfo.Running) []api.HostPort {
	var all []api.HostPort
	for _, asked := range pod.HostPorts.Random {
		i := slices.IndexFunc(pod.Told, func(told api.HostPort) bool {
			return told.ContainerPort == asked.ContainerPort && told.Protocol == asked.Protocol && a.HostPortRange.Has(told.HostPort)
		})
		if i >= 0 {
			asked.HostPort = pod.Told[i].HostPort
			all = append(all, asked)
		}
	}
	return all
}

// lostPorts returns the host ports of a pod that the kernel has lost, too. A plugin that opens host
// ports itself has lost nothing. A port of the annotation counts where only this pod names it: of
// several pods any may have copied the number. After a restart of the node the addresses that the
// API has are those of earlier containers, and may be other pods' by now, until a container of the
// pod has started again. mine are the pod's ports that the kernel has, taken are these and those of
// other pods, and named is what the API has for all pods.
func (a *Agent) lostPorts(pod podinfo.Running, mine []unrecorded, taken, named []api.HostPort) ([]unrecorded, error) {
	network, detached, err := a.firstNetwork(pod)
	if err != nil || network.Declares(capabilityPortMappings) {
		return nil, err
	}
	booted, err := a.BootTime()
	if err != nil || !pod.Started.After(booted) {
		return nil, err
	}
	ports := slices.Clone(pod.Given)
	for _, told := range a.toldPorts(pod) {
		has := slices.ContainsFunc(mine, func(p unrecorded) bool { return p.ContainerPort == told.ContainerPort && p.Protocol == told.Protocol })
		if has || len(rivals(told, named)) > 1 {
			continue
		}
		unused, err := a.HostPorts.Unused(told.Protocol, told.HostPort)
		if err != nil {
			return nil, err
		}
		if unused {
			ports = append(ports, told)
		}
	}
	var all []unrecorded
	for _, port := range ports {
		if len(rivals(port, taken)) > 0 {
			continue
		}
		taken = append(taken, port)
		mappings, err := hostport.Mappings([]api.HostPort{port}, pod.Addresses, detached)
		if err != nil {
			return nil, err
		}
		for _, m := range mappings {
			all = append(all, unrecorded{m, pod.Pod.Pod})
		}
	}
	return all, nil
}

// rivals lists the ports of all that one cannot be beside, itself included.
func rivals(one api.HostPort, all []api.HostPort) (found []api.HostPort) {
	for _, p := range all {
		if hostport.Conflict(one, p) {
			found = append(found, p)
		}
	}
	return found
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

// firstNetwork returns the network that an ADD of the pod would give it first, with what its
// plugins do, and whether the pod's replies do not pass the node.
func (a *Agent) firstNetwork(pod podinfo.Running) (*chain.Network, bool, error) {
	if pod.Wants == 0 {
		network, err := a.Networks.Default()
		if err != nil {
			return nil, false, err
		}
		detached, err := isDetached("", network)
		return network, detached, err
	}
	if pod.Networks != "" {
		return nil, false, fmt.Errorf("pod %s names networks, any of which may have its floating IPs", pod.Pod.Pod)
	}
	floating, err := a.Networks.Floating()
	if err != nil {
		return nil, false, err
	}
	detached, err := isDetached(floating.Driver, floating.Network)
	return floating.Network.Chained(), detached, err
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

// closeUnrecorded closes the host ports of a container without a record: those that lead to the
// addresses that its ADD returned or, where the runtime does not say them, those of its pod.
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
