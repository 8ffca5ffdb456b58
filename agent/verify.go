// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
)

// Verify asks the API about every floating IP that this node carries, withdraws
// the addresses of other pods and repairs the network of the rest. It returns an
// error at the first question that the API does not answer. The caller runs it
// after a start and after the API could not be reached.
func (a *Agent) Verify(ctx context.Context) error {
	all, err := a.Store.List()
	if err != nil {
		return err
	}
	for _, record := range all {
		if record.Phase != state.Added || len(record.Addresses) == 0 {
			continue
		}
		if err := a.verifyOne(ctx, record.Key()); err != nil {
			return err
		}
	}
	return nil
}

// Recheck looks at every floating IP that this node carries, after a change of its
// links. Where a piece is missing it verifies the address before it repairs the
// piece: the link may come back after a partition. It returns an error where the
// API does not answer.
func (a *Agent) Recheck(ctx context.Context) error {
	all, err := a.Store.List()
	if err != nil {
		return err
	}
	for _, record := range all {
		if record.Phase != state.Added || len(record.Addresses) == 0 || a.Kernel.Check(record) == nil {
			continue
		}
		if err := a.verifyOne(ctx, record.Key()); err != nil {
			return err
		}
	}
	return nil
}

func (a *Agent) verifyOne(ctx context.Context, key state.Key) error {
	return a.withdrawIf(ctx, key, func(record *state.Attachment) (string, error) {
		reason, err := a.lostWhy(ctx, record)
		if err != nil || reason != "" {
			return reason, err
		}
		if err := a.Kernel.Repair(record); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot repair the network of a pod", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name),
				"containerID", record.ContainerID)
		}
		return "", nil
	})
}

// lostWhy returns the reason why the record's pod lost its addresses, or an empty
// string while it holds them.
func (a *Agent) lostWhy(ctx context.Context, record *state.Attachment) (string, error) {
	for _, addr := range record.Addresses {
		err := a.Pods.Holds(ctx, record.Pod, addr)
		if errors.Is(err, podinfo.ErrNotHolder) {
			return err.Error(), nil
		}
		if err != nil {
			return "", err
		}
	}
	alive, err := a.Pods.Alive(ctx, record.Pod)
	if err != nil {
		return "", err
	}
	if !alive {
		return "the pod is deleted, replaced or finished", nil
	}
	return "", nil
}
