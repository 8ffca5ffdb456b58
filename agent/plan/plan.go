// SPDX-License-Identifier: Apache-2.0

// Package plan makes the record of an ADD from what the API says of its pod and the networks of the
// node. It changes nothing.
package plan

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-dev/berth/agent/attachdef"
	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/hostports"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/foreign"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Errors that this package detects.
var (
	// ErrDecode is returned for a configuration that is not the JSON that it must be.
	ErrDecode = errors.New("bad CNI configuration")
	// ErrConfig is returned for a value in the configuration that cannot be.
	ErrConfig = errors.New("invalid CNI configuration")
	// ErrNoDefaultNetwork is returned when an ordinary pod finds no network configured on the node.
	ErrNoDefaultNetwork = errors.New("no default network on this node")
	// ErrNoFloatingIP is returned where an interface gets no floating IP.
	ErrNoFloatingIP = errors.New("no floating IP for this interface")
)

// pods asks the API about this node's pods. It is safe in parallel, and blocks for a request.
type pods interface {
	Pod(ctx context.Context, namespace, name, uid string) (podinfo.Pod, error)
}

// podNetworks reads the networks that a pod names beside its first one. Methods are safe
// in parallel and block for a request for each network.
type podNetworks interface {
	Networks(ctx context.Context, namespace, annotation, first string) ([]attachdef.Network, error)
}

// networks chooses configurations. Methods are safe in parallel and read files.
type networks interface {
	// Default returns the network of pods without a floating IP.
	Default() (*chain.Network, error)
	// WithoutMultus returns the network of pods without a floating IP whose networks the agent
	// attaches.
	WithoutMultus() (*chain.Network, error)
	// CalledByMultus returns whether Multus attaches all pods to the networks that they name.
	CalledByMultus() (bool, error)
	// Floating returns the network of pods with a floating IP.
	Floating() (*nettype.Floating, error)
	// Named returns a network that a pod names; floating is nil where the network takes
	// no floating IPs.
	Named(n *attachdef.Network) (network *chain.Network, floating *nettype.Floating, err error)
}

// Options say what there is on a node.
type Options struct {
	Networks networks
	// PodNetworks may be nil: pods then have one network each.
	PodNetworks podNetworks
	// HostPortsForbidden, if given, asks why pods of a namespace may have no host ports but those of
	// their specification; empty where they may.
	HostPortsForbidden func(ctx context.Context, namespace string) (why string, err error)
}

// Planner makes records of ADDs.
type Planner struct {
	Options

	Pods pods
	// Addresses returns the addresses that a pod holds on this node.
	Addresses func(ctx context.Context, pod podinfo.Pod) ([]podinfo.Held, error)
}

// runningPod returns the pod of a call; a pod that has finished gets no network.
func (p Planner) runningPod(ctx context.Context, called api.Pod) (podinfo.Pod, error) {
	pod, err := p.Pods.Pod(ctx, called.Namespace, called.Name, called.UID)
	if err != nil {
		return pod, err
	}
	if pod.Finished {
		return pod, fmt.Errorf("%w: pod %s has finished", podinfo.ErrPodReplaced, pod.Pod)
	}
	return pod, nil
}

// Record returns the record of an ADD for the pod that its runtime calls so.
func (p Planner) Record(ctx context.Context, req *api.Request, called api.Pod, capabilities map[string]json.RawMessage) (*state.Container, error) {
	pod, err := p.runningPod(ctx, called)
	if err != nil {
		return nil, err
	}
	attachments, held, err := p.Attachments(ctx, pod, req.IfName)
	if err != nil {
		return nil, err
	}
	ports, err := requestedPorts(pod, capabilities)
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", pod.Pod, err)
	}
	record := &state.Container{
		ContainerID: req.ContainerID, IfName: req.IfName, NetNS: req.NetNS, Pod: pod.Pod, HostPorts: ports, GalaxyPorts: pod.HostPorts.Galaxy, WhenReady: pod.WhenReady,
		Args: req.Args, Capabilities: capabilities, Attachments: attachments, Held: held, Phase: state.Adding,
		Standby: slices.ContainsFunc(slices.Collect(maps.Values(held)), func(h state.Held) bool { return h.Twin }),
	}
	if err := p.mayOpen(ctx, pod, record); err != nil {
		return nil, fmt.Errorf("pod %s: %w", pod.Pod, err)
	}
	return record, nil
}

// Attachments returns the attachment to the pod's first network, and the attachments to the
// networks that its annotation names. The pod's floating IPs are on the network that takes floating
// IPs: one of the annotation, or the first. held has their records at the API.
func (p Planner) Attachments(ctx context.Context, pod podinfo.Pod, ifName string) (all []state.Attachment, held map[netip.Addr]state.Held, err error) {
	named, err := p.named(ctx, pod, ifName)
	if err != nil {
		return nil, nil, err
	}
	first, err := p.first(pod, named)
	if err != nil {
		return nil, nil, err
	}
	first.IfName = ifName
	all = append([]state.Attachment{first}, named...)
	if pod.Wants == 0 {
		return all, nil, nil
	}
	addrs, held, err := p.held(ctx, pod)
	if err != nil {
		return nil, nil, err
	}
	if err = giveAddresses(nettype.FloatingOf(all), addrs); err == nil {
		err = planDefaultRoute(all)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("pod %s: %w", pod.Pod, err)
	}
	return all, held, nil
}

// multusAttaches returns whether Multus attaches the pod to the networks that it names: where
// Multus calls Berth, or where it is the network of a pod without a floating IP. Both would attach
// it otherwise.
func (p Planner) multusAttaches(pod podinfo.Pod) (bool, error) {
	if pod.Networks == "" {
		return false, nil
	}
	if called, err := p.Networks.CalledByMultus(); called || err != nil {
		return called, err
	}
	if pod.Wants > 0 {
		return false, nil
	}
	// An error is the first network's, too, and is told there.
	network, err := p.Networks.Default()
	return err == nil && HasMultus(network), nil
}

// held returns the addresses that the pod holds on this node, and their records at the API.
func (p Planner) held(ctx context.Context, pod podinfo.Pod) ([]api.Address, map[netip.Addr]state.Held, error) {
	all, err := p.Addresses(ctx, pod)
	if errors.Is(err, podinfo.ErrNotPlaced) {
		return nil, nil, fmt.Errorf("pod %s requests berth.dev/ip but has no floating IP, %w: set spec.schedulerName to berth-scheduler", pod.Pod, err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("pod %s with UID %s: %w", pod.Pod, pod.UID, err)
	}
	addrs, held := make([]api.Address, 0, len(all)), make(map[netip.Addr]state.Held, len(all))
	for _, h := range all {
		addrs = append(addrs, h.Address)
		held[h.Address.Address] = HeldBy(h.Record)
	}
	return addrs, held, nil
}

// HeldBy returns what a record keeps of an address's record at the API.
func HeldBy(r podinfo.Record) state.Held {
	return state.Held{Version: r.Version, Since: r.Since, LastNode: r.LastNode.Name, LastNodeUID: string(r.LastNode.UID), Failover: r.Failover, Twin: r.Stands}
}

// first returns the attachment to the network that every pod has.
func (p Planner) first(pod podinfo.Pod, named []state.Attachment) (state.Attachment, error) {
	if pod.Wants > 0 && nettype.FloatingOf(named) == nil {
		floating, err := p.Networks.Floating()
		if err != nil {
			return state.Attachment{}, err
		}
		return floating.Attachment(), nil
	}
	ofPod := p.Networks.Default
	if pod.Wants > 0 {
		ofPod = p.Networks.WithoutMultus
	}
	network, err := ofPod()
	if errors.Is(err, chain.ErrNoNetwork) {
		return state.Attachment{}, fmt.Errorf("%w: the first network of pod %s is the default network, because it has no floating IP there: %w", ErrNoDefaultNetwork, pod.Pod, err)
	}
	if err != nil {
		return state.Attachment{}, err
	}
	return state.Attachment{Network: network.Raw()}, nil
}

// named returns the attachments to the networks of the pod's annotation, unless Multus makes them.
func (p Planner) named(ctx context.Context, pod podinfo.Pod, ifName string) ([]state.Attachment, error) {
	if multus, err := p.multusAttaches(pod); multus || err != nil || p.PodNetworks == nil {
		return nil, err
	}
	named, err := p.PodNetworks.Networks(ctx, pod.Namespace, pod.Networks, ifName)
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", pod.Pod, err)
	}
	var all []state.Attachment
	for i := range named {
		attachment, err := p.one(&named[i], pod.Wants)
		if err != nil {
			return nil, fmt.Errorf("pod %s: %w", pod.Pod, err)
		}
		if other := nettype.FloatingOf(all); other != nil && attachment.Driver != "" {
			return nil, fmt.Errorf("%w: pod %s: the networks %s and %s both take floating IPs; name one of them", attachdef.ErrAnnotation, pod.Pod, other.Definition, attachment.Definition)
		}
		if attachment.Driver != "" && pod.Wants == 0 {
			return nil, fmt.Errorf("%w: pod %s: the network %s takes floating IPs, and the pod requests none; let a container request %s", attachdef.ErrAnnotation, pod.Pod, attachment.Definition, v1alpha1.ResourceIP)
		}
		all = append(all, attachment)
	}
	return all, nil
}

// one returns the attachment to a network for a pod that wants so many floating IPs.
func (p Planner) one(n *attachdef.Network, wants int) (state.Attachment, error) {
	network, floating, err := p.Networks.Named(n)
	if err != nil {
		return state.Attachment{}, err
	}
	attachment := state.Attachment{Network: network.Raw()}
	if floating != nil && floating.Optional && wants == 0 {
		floating = nil
	}
	if floating != nil {
		if n.Capabilities[api.CapabilityMAC] != nil {
			return state.Attachment{}, fmt.Errorf("%w: network %s: mac: the MAC of an interface with floating IPs follows from the address, so that no pod takes the MAC of another host; remove mac",
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

// OfCaller returns the record of an interface that another program's plugins wire.
func (p Planner) OfCaller(ctx context.Context, req *api.Request, called api.Pod) (*state.Container, error) {
	conf, ours, err := foreign.ParseConfig(req.Config)
	if err != nil {
		return nil, err
	}
	if !ours {
		return nil, fmt.Errorf("%w: it does not name %s as its ipam.type", foreign.ErrConfig, api.IPAMType)
	}
	pod, err := p.runningPod(ctx, called)
	if err != nil {
		return nil, err
	}
	if pod.Wants == 0 {
		return nil, fmt.Errorf("%w: pod %s requests none: let a container request berth.dev/ip, or name an IPAM plugin for such pods in ipam.delegate of the network %q", ErrNoFloatingIP, pod.Pod, conf.Name)
	}
	addrs, held, err := p.held(ctx, pod)
	if err != nil {
		return nil, err
	}
	floating, err := nettype.OfCaller(conf, req.Config)
	if err != nil {
		return nil, err
	}
	attachment := floating.Attachment()
	if err := nettype.Of(attachment.Driver).Serve(addrs); err != nil {
		return nil, fmt.Errorf("pod %s: %w", pod.Pod, err)
	}
	attachment.IfName, attachment.Addresses = req.IfName, addrs
	return &state.Container{
		ContainerID: req.ContainerID, IfName: req.IfName, NetNS: req.NetNS, Pod: pod.Pod, Args: req.Args, Phase: state.Adding,
		Attachments: []state.Attachment{attachment}, Held: held,
	}, nil
}

// giveAddresses puts the pod's floating IPs on the attachment, for the driver and for the
// plugins. The MAC follows from the address, so that it moves with it.
func giveAddresses(attachment *state.Attachment, addrs []api.Address) error {
	if err := nettype.Of(attachment.Driver).Serve(addrs); err != nil {
		return err
	}
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

// planDefaultRoute refuses a default route that the networks of the pod cannot give.
func planDefaultRoute(all []state.Attachment) error {
	holder := nettype.WithDefaultRoute(all)
	if holder < 0 {
		return nil
	}
	gateways := all[holder].DefaultRoute
	floating := nettype.FloatingOf(all)
	if floating == nil || len(floating.Addresses) == 0 {
		return nil
	}
	if !nettype.Of(floating.Driver).NodeIsGateway {
		return fmt.Errorf("%w: network %s: default-route: a pod with its floating IPs on a network of another plugin than %s has its default route there; remove default-route",
			attachdef.ErrAnnotation, all[holder].Definition, nettype.GatewayPlugins())
	}
	for _, a := range floating.Addresses {
		i := slices.IndexFunc(gateways, func(g netip.Addr) bool { return g.Is4() == a.Address.Is4() })
		if i < 0 {
			return fmt.Errorf("%w: network %s: default-route %v has no gateway of the family of the floating IP %s; name one of each family of the pod's floating IPs",
				attachdef.ErrAnnotation, all[holder].Definition, gateways, a.Address)
		}
	}
	if floating != &all[holder] {
		return nil
	}
	for _, g := range gateways {
		if !slices.ContainsFunc(floating.Addresses, func(a api.Address) bool { return a.Gateway == g }) {
			return fmt.Errorf("%w: network %s: default-route %s is not the gateway of a pool of the pod's floating IPs; name that gateway: the node sends the pod's packets there",
				attachdef.ErrAnnotation, floating.Definition, g)
		}
	}
	return nil
}

// requestedPorts returns the host ports that a pod asks for: the ports of the runtime's
// portMappings, which is one of the capabilities, and, with the annotation, one of the node's
// choice for every other port of its containers, which has the number 0.
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

// mayOpen asks the pod's namespace where an ADD would open other host ports than those of the pod's
// specification, whatever asks for them: by itself, or by a plugin of a network that the pod names.
func (p Planner) mayOpen(ctx context.Context, pod podinfo.Pod, record *state.Container) error {
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
