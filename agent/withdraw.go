// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/api"
	"github.com/berth-dev/berth/agent/fault"
	"github.com/berth-dev/berth/agent/state"
)

// Gone withdraws the addresses of a pod that is deleted, replaced or finished.
// Pods of the default network keep their addresses until DEL: those belong to the
// node.
func (a *Agent) Gone(ctx context.Context, pod api.Pod) error {
	all, err := a.Store.List()
	if err != nil {
		return err
	}
	var errs []error
	for _, record := range all {
		if record.Pod.UID == pod.UID && len(record.Addresses) > 0 {
			errs = append(errs, a.withdrawIf(ctx, record.Key(), func(r *state.Attachment) (string, error) {
				if r.Pod.UID != pod.UID {
					return "", nil
				}
				return "the pod is deleted, replaced or finished", nil
			}))
		}
	}
	return errors.Join(errs...)
}

// withdrawIf withdraws the record of key if its phase is Added and why returns a
// reason. why runs under the locks, because another call may have just changed the
// record.
func (a *Agent) withdrawIf(ctx context.Context, key state.Key, why func(*state.Attachment) (string, error)) error {
	return a.withRecord(ctx, key, func(record *state.Attachment) error {
		if record.Phase != state.Added {
			return nil
		}
		reason, err := why(record)
		if err != nil || reason == "" {
			return err
		}
		return a.withdraw(ctx, record, reason)
	})
}

// withdraw stops the node from answering for the record's addresses, and then
// records the withdrawal. The caller holds the locks of the addresses.
func (a *Agent) withdraw(ctx context.Context, record *state.Attachment, reason string) error {
	// The kernel first: if the agent dies here, the next start sees the same
	// API and does it again.
	if err := a.Kernel.Withdraw(record); err != nil {
		return fmt.Errorf("withdraw the addresses of pod %s: %w", record.Pod, err)
	}
	fault.Point("withdraw/kernel")
	record.Phase = state.Withdrawn
	if err := a.Store.Put(record); err != nil {
		return err
	}
	fault.Point("withdraw/record")
	a.Metrics.withdrawn()
	klog.FromContext(ctx).Info("Withdrew the addresses of a pod", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name),
		"podUID", record.Pod.UID, "ips", addressList(record), "reason", reason)
	return nil
}
