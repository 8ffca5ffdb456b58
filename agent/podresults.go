// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/attachdef"
	"github.com/berth-dev/berth/agent/hostports"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Untold returns what pods of this node got from their networks and the node and do not say in their
// annotations, as the watch has seen them. A pod with two containers says what one of them got, always
// the same one, until the other has gone. It does not block.
func (a *Agent) Untold(ctx context.Context) []v1alpha1.PodResult {
	var all []v1alpha1.PodResult
	decided := map[string]bool{}
	for _, record := range a.Store.List() {
		seen, known := a.Pods.Annotations(record.Pod)
		if record.Phase != state.Added || !known || decided[record.Pod.Identity()] {
			continue
		}
		result, err := a.resultOf(record)
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
func (a *Agent) resultOf(record *state.Container) (r v1alpha1.PodResult, err error) {
	pod := a.Pods.Mirror(record.Pod)
	r = v1alpha1.PodResult{Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID)}
	if r.HostPortsStatus, r.PortMapping, err = hostports.Status(record); err == nil && len(record.Attachments) > 1 {
		r.NetworkStatus, err = networkStatus(record)
	}
	return r, err
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
	network, err := networkOf(record, i)
	if err != nil {
		return "", err
	}
	return network.Name(), nil
}
