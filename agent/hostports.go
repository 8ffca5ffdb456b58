// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/hostports"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
)

// requestedPorts returns the host ports that a pod asks for: the ports of the runtime's portMappings,
// which is one of the capabilities, and, with the annotation, one of the node's choice for every
// other port of its containers, which has the number 0.
func requestedPorts(pod podinfo.Pod, capabilities map[string]json.RawMessage) ([]state.HostPort, error) {
	given, err := portMappings(capabilities)
	if err != nil {
		return nil, err
	}
	var all []state.HostPort
	for _, port := range given {
		all = append(all, state.HostPort{HostPort: port})
	}
	if pod.HostPorts.Err != nil {
		return nil, pod.HostPorts.Err
	}
	for _, port := range pod.HostPorts.Random {
		all = append(all, state.HostPort{HostPort: port, Random: true})
	}
	return all, nil
}

// portMappings returns the host ports of the capability of this name.
func portMappings(capabilities map[string]json.RawMessage) (all []api.HostPort, err error) {
	var given []struct {
		HostPort      int        `json:"hostPort"`
		ContainerPort int        `json:"containerPort"`
		Protocol      string     `json:"protocol"`
		HostIP        netip.Addr `json:"hostIP"`
	}
	if raw := capabilities[hostports.Capability]; raw != nil {
		if err := json.Unmarshal(raw, &given); err != nil {
			return nil, fmt.Errorf("%w: decode portMappings: %w", ErrDecode, err)
		}
	}
	for _, g := range given {
		if g.HostPort == 0 {
			continue
		}
		protocol := strings.ToUpper(g.Protocol)
		if protocol == "" {
			protocol = "TCP"
		}
		if !slices.Contains([]string{"TCP", "UDP", "SCTP"}, protocol) || g.HostPort < 0 || g.HostPort > 65535 || g.ContainerPort <= 0 || g.ContainerPort > 65535 {
			return nil, fmt.Errorf("%w: portMappings has no such host port: %+v", ErrConfig, g)
		}
		all = append(all, api.HostPort{HostPort: uint16(g.HostPort), ContainerPort: uint16(g.ContainerPort), Protocol: protocol, HostIP: g.HostIP.Unmap()})
	}
	return all, nil
}

// mayOpen asks the pod's namespace where an ADD would open other host ports than those of the pod's specification, whatever asks for them:
// by itself, or by a plugin of a network that the pod names.
func (p planner) mayOpen(ctx context.Context, pod podinfo.Pod, record *state.Container) error {
	if p.HostPortsForbidden == nil {
		return nil
	}
	var opens []api.HostPort
	for _, port := range record.HostPorts {
		opens = append(opens, port.HostPort)
	}
	for i := range record.Attachments {
		network, err := chain.Parse(record.Attachments[i].Network)
		if err != nil {
			return err
		}
		if !network.Declares(hostports.Capability) {
			continue
		}
		ports, err := portMappings(record.Attachments[i].Capabilities)
		if err != nil {
			return err
		}
		opens = append(opens, ports...)
	}
	other := slices.IndexFunc(opens, func(port api.HostPort) bool {
		return !slices.ContainsFunc(pod.HostPorts.Given, func(given api.HostPort) bool {
			return given.HostPort == port.HostPort && given.Protocol == port.Protocol
		})
	})
	if other < 0 {
		return nil
	}
	why, err := p.HostPortsForbidden(ctx, pod.Namespace)
	if err == nil && why != "" {
		err = fmt.Errorf("%w in namespace %s, but of the field hostPort: %s; an annotation of the pod asks for one to its port %d", hostports.ErrForbidden, pod.Namespace, why, opens[other].ContainerPort)
	}
	return err
}

// claim writes the first record of an ADD, and with it takes the pod's host ports from pods
// that have ended. It returns hostports.ErrTaken, with the holder's name, for a port of another pod.
func (a *Agent) claim(ctx context.Context, record *state.Container) error {
	ended := map[api.Pod]bool{}
	for {
		holder, older, err := a.ports.Claim(ctx, record)
		if err != nil {
			return err
		}
		for _, key := range older {
			a.adds.end(key, fmt.Errorf("%w: another container of the pod gets its host ports", podinfo.ErrPodReplaced))
		}
		if holder == nil {
			return nil
		}
		if err := a.release(ctx, holder, ended); err != nil {
			return err
		}
	}
}

// release takes a host port from a pod that has ended; each pod ends once.
func (a *Agent) release(ctx context.Context, holder *hostports.Holder, ended map[api.Pod]bool) error {
	if holder.Pod == (api.Pod{}) {
		if !a.Pods.WaitForSync(ctx) {
			return fmt.Errorf("%w: host port %s may be one of a pod that is not known yet: the API server has not answered", ErrNotReady, holder.Port)
		}
		return a.ports.FindPods(ctx)
	}
	alive := ended[holder.Pod]
	if !alive {
		// The scheduler gives a port again when a pod has finished, which this node may
		// hear later.
		var err error
		if alive, err = a.Pods.Alive(ctx, holder.Pod); err != nil {
			return err
		}
	}
	if alive {
		return fmt.Errorf("%w: %s is a host port of pod %s on this node; choose another hostPort, or end that pod", hostports.ErrTaken, holder.Port, holder.Pod)
	}
	ended[holder.Pod] = true
	if holder.Record != nil {
		return a.withdraw(ctx, holder.Record, podGone)
	}
	return a.ports.EndPod(ctx, holder.Pod)
}

// closeUnrecorded closes the host ports of a container without a record: the ports that lead to the
// addresses that its ADD returned or, where the runtime does not pass them, to its pod.
func (a *Agent) closeUnrecorded(ctx context.Context, args podArgs, conf requestConfig) error {
	if addrs := chain.Addresses(conf.PrevResult); len(addrs) > 0 {
		return a.ports.EndAddresses(ctx, addrs)
	}
	return a.ports.EndPod(ctx, api.Pod{Namespace: args.namespace, Name: args.name, UID: args.uid})
}
