// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/attachdef"
	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/hostports"
	"github.com/berth-dev/berth/agent/state"
)

// statusPatience limits how long ADD waits for the annotation of the networks' status. The
// network is complete: where the API does not answer in time, the reconciler writes it
// later.
const statusPatience = 2 * time.Second

// hasStatus returns whether the pod gets annotations about its networks and host ports. Pods that
// name no networks get none about networks: their address is in the pod's status.
func hasStatus(record *state.Container) bool {
	return len(record.Attachments) > 1 || hostports.HasRandom(record)
}

// tellStatus writes the status of a pod's networks and host ports, or has it written later.
func (a *Agent) tellStatus(ctx context.Context, record *state.Container) {
	if !hasStatus(record) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	if err := a.writeStatus(ctx, record); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot tell a pod the status of its networks, will try again", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name))
		a.reconciler.TellLater(record.Key())
	}
}

// tell writes the status of the networks of a record, if it is still complete.
func (a *Agent) tell(ctx context.Context, key state.Key) error {
	record := a.Store.Get(key)
	if record == nil || record.Phase != state.Added || !hasStatus(record) {
		return nil
	}
	return a.writeStatus(ctx, record)
}

func (a *Agent) writeStatus(ctx context.Context, record *state.Container) error {
	annotations, err := statusOf(record)
	if err != nil {
		return err
	}
	return a.Pods.Annotate(ctx, record.Pod, annotations)
}

// isTold returns whether the pod, as the watch has seen it, has the annotations about its networks and host ports.
func (a *Agent) isTold(record *state.Container) bool {
	if !hasStatus(record) {
		return true
	}
	want, err := statusOf(record)
	seen, known := a.Pods.Annotations(record.Pod)
	if err != nil || !known {
		return true
	}
	for name, value := range want {
		if seen[name] != value {
			return false
		}
	}
	return true
}

func statusOf(record *state.Container) (map[string]string, error) {
	annotations, err := hostports.Annotations(record)
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", record.Pod, err)
	}
	if len(record.Attachments) > 1 {
		annotations[attachdef.StatusAnnotation], err = networkStatus(record)
	}
	return annotations, err
}

func networkStatus(record *state.Container) (string, error) {
	var networks []attachdef.Attached
	for _, attachment := range record.Attachments {
		name := attachment.Definition
		if name == "" {
			network, err := chain.Parse(attachment.Network)
			if err != nil {
				return "", fmt.Errorf("the record of container %s: %w", record.ContainerID, err)
			}
			name = network.Name()
		}
		networks = append(networks, attachdef.Attached{Network: name, Result: attachment.Result})
	}
	value, err := attachdef.Status(networks)
	if err != nil {
		return "", fmt.Errorf("pod %s: %w", record.Pod, err)
	}
	return value, nil
}
