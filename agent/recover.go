// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/state"
)

// Recover makes records and kernel agree after a start. It does not ask the API,
// which may be away; Verify does. It logs failures and leaves them to DEL and GC:
// the trouble of one pod must not keep the node from serving others.
func (a *Agent) Recover(ctx context.Context) error {
	all, err := a.Store.List()
	if err != nil {
		return err
	}
	logger := klog.FromContext(ctx)
	counts := map[state.Phase]int{}
	for _, record := range all {
		counts[record.Phase]++
		if err := a.recoverOne(ctx, record.Key()); err != nil {
			logger.Error(err, "Cannot recover an attachment yet", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name),
				"containerID", record.ContainerID, "phase", record.Phase)
		}
	}
	if err := a.Kernel.RemoveLoose(); err != nil {
		logger.Error(err, "Cannot remove kernel state that belongs to no pod")
	}
	a.noteOrphans(ctx)
	logger.Info("Recovered attachments", "adding", counts[state.Adding], "added", counts[state.Added],
		"deleting", counts[state.Deleting], "withdrawn", counts[state.Withdrawn])
	return ctx.Err()
}

func (a *Agent) recoverOne(ctx context.Context, key state.Key) error {
	return a.withRecord(ctx, key, func(record *state.Attachment) error {
		switch record.Phase {
		case state.Adding, state.Deleting:
			return a.undo(ctx, record)
		case state.Added:
			gone, err := netnsGone(record.NetNS)
			if err != nil || !gone {
				return err
			}
			// The node was restarted, and sandboxes do not survive that.
			return a.undo(ctx, record)
		case state.Withdrawn:
			// A crash may have come between the kernel and the record.
			return a.Kernel.Withdraw(record)
		}
		return nil
	})
}

// netnsGone returns true where the path of a container's network namespace is empty
// or names no file.
func netnsGone(path string) (bool, error) {
	if path == "" {
		return true, nil
	}
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at network namespace %s: %w", path, err)
	}
	return false, nil
}

// noteOrphans logs the links without a record, which the loss of the state file
// leaves. It removes none: their pods may be alive.
func (a *Agent) noteOrphans(ctx context.Context) {
	logger := klog.FromContext(ctx)
	orphans, err := a.orphans(nil)
	if err != nil {
		logger.Error(err, "Cannot look for links without a record")
		return
	}
	for _, o := range orphans {
		logger.Info("A link on this node has no record; the DEL of its container or CNI GC removes it", "link", o.Name, "ips", o.Addresses)
	}
}
