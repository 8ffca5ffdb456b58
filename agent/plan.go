// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"github.com/berth-dev/berth/agent/attachdef"
	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// plan makes the record. It changes nothing.
func (a *Agent) plan(ctx context.Context, req *api.Request, args podArgs, conf requestConfig) (*state.Container, error) {
	pod, err := a.Pods.Pod(ctx, args.namespace, args.name, args.uid)
	if err != nil {
		return nil, err
	}
	if pod.Finished {
		return nil, fmt.Errorf("%w: pod %s has finished", podinfo.ErrPodReplaced, pod.Pod)
	}
	attachments, err := a.planAttachments(ctx, pod, req.IfName)
	if err != nil {
		return nil, err
	}
	ports, err := requestedPorts(pod, conf.RuntimeConfig)
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", pod.Pod, err)
	}
	return &state.Container{
		ContainerID: req.ContainerID, IfName: req.IfName, NetNS: req.NetNS, Pod: pod.Pod, HostPorts: ports, GalaxyPorts: pod.HostPorts.Galaxy,
		Args: req.Args, Capabilities: conf.RuntimeConfig, Attachments: attachments, Phase: state.Adding,
	}, nil
}

// planAttachments returns the attachment to the pod's first network, and the attachments to the
// networks that its annotation names. The pod's floating IPs are on the network that takes floating
// IPs: one of the annotation, or the first.
func (a *Agent) planAttachments(ctx context.Context, pod podinfo.Pod, ifName string) ([]state.Attachment, error) {
	named, err := a.planNamed(ctx, pod, ifName)
	if err != nil {
		return nil, err
	}
	first, err := a.planFirst(pod, named)
	if err != nil {
		return nil, err
	}
	first.IfName = ifName
	all := append([]state.Attachment{first}, named...)
	if pod.Wants == 0 {
		return all, planDefaultRoute(all)
	}
	addrs, err := a.held(ctx, pod)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Driver != "" {
			if err := giveAddresses(&all[i], addrs); err != nil {
				return nil, fmt.Errorf("pod %s: %w", pod.Pod, err)
			}
		}
	}
	if err := planDefaultRoute(all); err != nil {
		return nil, fmt.Errorf("pod %s: %w", pod.Pod, err)
	}
	return all, nil
}

// held returns the addresses that the pod holds on this node.
func (a *Agent) held(ctx context.Context, pod podinfo.Pod) ([]api.Address, error) {
	addrs, err := a.Pods.Addresses(ctx, pod)
	if errors.Is(err, podinfo.ErrNotPlaced) {
		return nil, fmt.Errorf("pod %s requests berth.dev/ip but has no floating IP, %w: set spec.schedulerName to berth-scheduler", pod.Pod, err)
	}
	if err != nil {
		return nil, fmt.Errorf("pod %s with UID %s: %w", pod.Pod, pod.UID, err)
	}
	return addrs, nil
}

// planFirst returns the attachment to the network that every pod has.
func (a *Agent) planFirst(pod podinfo.Pod, named []state.Attachment) (state.Attachment, error) {
	if pod.Wants > 0 && floatingOf(named) == nil {
		floating, err := a.Networks.Floating()
		if err != nil {
			return state.Attachment{}, err
		}
		return floating.Attachment(), nil
	}
	network, err := a.Networks.Default()
	if errors.Is(err, chain.ErrNoNetwork) {
		return state.Attachment{}, fmt.Errorf("%w: the first network of pod %s is the default network, because it has no floating IP there: %w", ErrNoDefaultNetwork, pod.Pod, err)
	}
	if err != nil {
		return state.Attachment{}, err
	}
	return state.Attachment{Network: network.Raw()}, nil
}

// planNamed returns the attachments to the networks of the pod's annotation.
func (a *Agent) planNamed(ctx context.Context, pod podinfo.Pod, ifName string) ([]state.Attachment, error) {
	if a.PodNetworks == nil {
		return nil, nil
	}
	named, err := a.PodNetworks.Networks(ctx, pod.Namespace, pod.Networks, ifName)
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", pod.Pod, err)
	}
	var all []state.Attachment
	for i := range named {
		attachment, err := a.planOne(&named[i], pod.Wants)
		if err != nil {
			return nil, fmt.Errorf("pod %s: %w", pod.Pod, err)
		}
		if other := floatingOf(all); other != nil && attachment.Driver != "" {
			return nil, fmt.Errorf("%w: pod %s: the networks %s and %s both take floating IPs; name one of them", attachdef.ErrAnnotation, pod.Pod, other.Definition, attachment.Definition)
		}
		if attachment.Driver != "" && pod.Wants == 0 {
			return nil, fmt.Errorf("%w: pod %s: the network %s takes floating IPs, and the pod requests none; let a container request %s", attachdef.ErrAnnotation, pod.Pod, attachment.Definition, v1alpha1.ResourceIP)
		}
		all = append(all, attachment)
	}
	return all, nil
}

// planOne returns the attachment to a network for a pod that wants so many floating IPs.
func (a *Agent) planOne(n *attachdef.Network, wants int) (state.Attachment, error) {
	network, floating, err := a.Networks.Named(n)
	if err != nil {
		return state.Attachment{}, err
	}
	attachment := state.Attachment{Network: network.Raw()}
	if floating != nil && floating.Optional && wants == 0 {
		floating = nil
	}
	if floating != nil {
		if n.Capabilities[api.CapabilityMAC] != nil {
			return state.Attachment{}, fmt.Errorf("%w: network %s: mac: the MAC of an interface with floating IPs follows from the address, so that no pod takes that of another host; remove mac",
				attachdef.ErrAnnotation, n.Definition)
		}
		if len(n.IPs) > 0 {
			return state.Attachment{}, fmt.Errorf("%w: network %s: ips %q: the scheduler chooses floating IPs; remove ips and name the addresses in the annotation %s",
				attachdef.ErrAnnotation, n.Definition, n.IPs, v1alpha1.AnnotationAddresses)
		}
		attachment = floating.Attachment()
	}
	attachment.IfName, attachment.Definition, attachment.Capabilities, attachment.Args = n.IfName, n.Definition, n.Capabilities, n.Args
	attachment.DefaultRoute = n.DefaultRoute
	return attachment, nil
}

// floatingOf returns the attachment that takes floating IPs, nil where there is none.
func floatingOf(all []state.Attachment) *state.Attachment {
	for i := range all {
		if all[i].Driver != "" {
			return &all[i]
		}
	}
	return nil
}

// giveAddresses puts the pod's floating IPs on the attachment, for the driver and for the
// plugins. The MAC follows from the address, so that it moves with it.
func giveAddresses(attachment *state.Attachment, addrs []api.Address) error {
	attachment.Addresses, attachment.MAC = addrs, v1alpha1.MACOf(addrs[0].Address).String()
	if nettype.Of(attachment.Driver).Wired != nettype.ByDriver {
		network, err := chain.Parse(attachment.Network)
		if err != nil {
			return err
		}
		if !network.Declares(api.CapabilityMAC) {
			// The plugin chooses one.
			attachment.MAC = ""
			return nil
		}
	}
	capabilities := maps.Clone(attachment.Capabilities)
	if capabilities == nil {
		capabilities = map[string]json.RawMessage{}
	}
	for capability, value := range map[string]any{api.CapabilityAddresses: addrs, api.CapabilityMAC: attachment.MAC} {
		raw, err := json.Marshal(value)
		if err != nil {
			return fmt.Errorf("encode %s: %w", capability, err)
		}
		capabilities[capability] = raw
	}
	attachment.Capabilities = capabilities
	return nil
}
