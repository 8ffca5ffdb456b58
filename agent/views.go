// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/attachdef"
	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/hostports"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/policy/enforce"
	"github.com/berth-dev/berth/agent/profile"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Policed lists the containers whose packets network policies concern, and the running pods that
// have none.
func (r *records) Policed() []enforce.Container {
	var all []enforce.Container
	for _, record := range r.Store.List() {
		all = append(all, r.policed(record))
	}
	for _, pod := range r.Pods.Running() {
		// Without a record its request says whether it has floating IPs: ADD gives a pod as many as it
		// requests or fails, and nobody can change the request of a pod.
		all = append(all, enforce.Container{Pod: pod.Pod.Pod, Addresses: pod.Addresses, Floating: pod.Wants > 0})
	}
	return all
}

func (r *records) policed(record *state.Container) enforce.Container {
	c := enforce.Container{
		Pod: record.Pod, ID: policedID(record), NetNS: record.NetNS,
		Ending: record.Phase == state.Deleting || record.Phase == state.Withdrawn, Floating: nettype.FloatingOf(record.Attachments) != nil, Foreign: ofCaller(record),
	}
	if record.Pod.Static != "" {
		// Its mirror may be another one by now.
		c.Pod = r.Pods.Mirror(record.Pod)
	}
	c.NetAdmins = r.Pods.NetAdmins(c.Pod)
	for _, attachment := range record.Attachments {
		c.Interfaces = append(c.Interfaces, attachment.IfName)
		if len(attachment.Addresses) == 0 || record.Phase != state.Withdrawn {
			c.Addresses = append(c.Addresses, addressesAt(&attachment)...)
		}
		c.Interfaces = append(c.Interfaces, nettype.Of(attachment.Driver).FurtherInterfaces(attachment.IfName, attachment.Addresses)...)
	}
	slices.Sort(c.Interfaces)
	c.Interfaces = slices.Compact(c.Interfaces)
	slices.SortFunc(c.Addresses, netip.Addr.Compare)
	c.Addresses = slices.Compact(c.Addresses)
	return c
}

// addressesAt lists the addresses of an interface: its floating IPs, or else those that plugins
// gave it.
func addressesAt(attachment *state.Attachment) (all []netip.Addr) {
	for _, addr := range attachment.Addresses {
		all = append(all, addr.Address)
	}
	if len(all) == 0 {
		return chain.Addresses(attachment.Result)
	}
	return all
}

// policedID tells the record's container from others.
func policedID(record *state.Container) string { return record.ContainerID + "/" + record.IfName }

// Shaped lists the containers whose traffic may have limits.
func (r *records) Shaped() []profile.Container {
	var all []profile.Container
	for _, record := range r.Store.List() {
		// Another program limits the interfaces that it wires.
		if (record.Phase == state.Adding || record.Phase == state.Added) && !ofCaller(record) {
			all = append(all, r.shaped(record))
		}
	}
	return all
}

func (r *records) shaped(record *state.Container) profile.Container {
	c := profile.Container{Pod: record.Pod, Attaching: record.Phase == state.Adding, NetNS: record.NetNS}
	c.Annotations, c.Known = r.Pods.Annotations(record.Pod)
	for i, attachment := range record.Attachments {
		c.Interfaces = append(c.Interfaces, attachment.IfName)
		c.Addresses = append(c.Addresses, addressesAt(&attachment)...)
		if i == 0 {
			// The runtime passes the annotations to the first network.
			network, err := nettype.NetworkOf(record, i)
			c.ByPlugin = err == nil && network.Declares(profile.Capability)
		}
	}
	return c
}

// Untold returns what pods of this node got from their networks and the node and do not say in
// their annotations, as the watch has seen them. A pod with two containers says what one of them
// got, always the same one, until the other has gone. It does not block.
func (r *records) Untold(ctx context.Context) []v1alpha1.PodResult {
	var all []v1alpha1.PodResult
	decided := map[string]bool{}
	for _, record := range r.Store.List() {
		seen, known := r.Pods.Annotations(record.Pod)
		if record.Phase != state.Added || !known || decided[record.Pod.Identity()] {
			continue
		}
		result, err := r.resultOf(record)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot tell a pod what it got", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name))
			continue
		}
		for name, value := range result.Annotations() {
			decided[record.Pod.Identity()] = true
			if seen[name] != value {
				all = append(all, result)
				break
			}
		}
	}
	return all
}

// resultOf returns what the pod of a record got. Pods that name no networks are told nothing about
// networks: their address is in the pod's status.
func (r *records) resultOf(record *state.Container) (got v1alpha1.PodResult, err error) {
	pod := r.Pods.Mirror(record.Pod)
	got = v1alpha1.PodResult{Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID)}
	if got.HostPortsStatus, got.PortMapping, err = hostports.Status(record); err == nil && len(record.Attachments) > 1 {
		got.NetworkStatus, err = networkStatus(record)
	}
	got.TookOver = tookOver(record)
	return got, err
}

func networkStatus(record *state.Container) (string, error) {
	var networks []attachdef.Attached
	for i := range record.Attachments {
		// An interface that is yet to be made again has no result.
		if result := record.Attachments[i].Result; len(result) > 0 {
			name, err := networkName(record, i)
			if err != nil {
				return "", err
			}
			networks = append(networks, attachdef.Attached{Network: name, Result: result})
		}
	}
	return attachdef.Status(networks)
}

// networkName returns the name of an attachment's network as its pod knows it.
func networkName(record *state.Container, i int) (string, error) {
	if name := record.Attachments[i].Definition; name != "" {
		return name, nil
	}
	network, err := nettype.NetworkOf(record, i)
	if err != nil {
		return "", err
	}
	return network.Name(), nil
}

// WaitForPods returns true when Policed is complete, and false where the context ends before.
func (r *records) WaitForPods(ctx context.Context) bool { return r.Pods.WaitForSync(ctx) }
