// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/api"
	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/state"
)

// Recover brings records and kernel into agreement after a start, without
// asking the API, which may be away; Verify does that part. What cannot be done
// now is logged and left for DEL and GC: one pod's trouble must not keep the
// node from serving others.
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
	unlock, err := a.lockContainer(ctx, key.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	record, err := a.Store.Get(key)
	if err != nil || record == nil {
		return err
	}
	unlockAddresses, err := a.lockAddresses(ctx, record.Addresses)
	if err != nil {
		return err
	}
	defer unlockAddresses()
	switch record.Phase {
	case state.Adding, state.Deleting:
		return a.undo(ctx, record)
	case state.Added:
		gone, err := netnsGone(record.NetNS)
		if err != nil || !gone {
			return err
		}
		// The node was restarted: sandboxes do not survive that.
		return a.undo(ctx, record)
	case state.Withdrawn:
		// A crash may have come between the kernel and the record.
		return a.Kernel.Withdraw(record)
	}
	return nil
}

// netnsGone says whether the namespace of a container has been removed: an
// empty path, no file, or a plain file where a mount was.
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

// noteOrphans names links that no record describes, which are there after the
// state file was lost. They stay: their pods may be alive.
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

// orphans lists the links of neither a record nor a valid attachment. It looks
// at links first and records second: an ADD that begins meanwhile writes its
// record before it makes its link.
func (a *Agent) orphans(valid []types.GCAttachment) ([]Link, error) {
	links, err := a.Kernel.Links()
	if err != nil {
		return nil, err
	}
	all, err := a.Store.List()
	if err != nil {
		return nil, err
	}
	keep := map[string]bool{}
	for _, r := range all {
		keep[a.Kernel.LinkOf(r.Key())] = true
	}
	for _, v := range valid {
		keep[a.Kernel.LinkOf(state.Key{ContainerID: v.ContainerID, IfName: v.IfName})] = true
	}
	return slices.DeleteFunc(links, func(l Link) bool { return keep[l.Name] }), nil
}

// GC detaches every container that the runtime does not list, and removes what
// is left of ours in the kernel.
func (a *Agent) GC(ctx context.Context, req *api.Request) error {
	conf, err := parseConfig(req.Config)
	if err != nil {
		return err
	}
	if !conf.hasAttachments {
		return fmt.Errorf("%w: GC without the list of valid attachments", ErrRequest)
	}
	valid := map[state.Key]bool{}
	for _, v := range conf.ValidAttachments {
		valid[state.Key{ContainerID: v.ContainerID, IfName: v.IfName}] = true
	}
	orphans, err := a.orphans(conf.ValidAttachments)
	if err != nil {
		return err
	}
	all, err := a.Store.List()
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range all {
		if !valid[r.Key()] {
			errs = append(errs, a.detach(ctx, r.Key(), nil))
		}
	}
	for _, o := range orphans {
		errs = append(errs, a.Kernel.Remove(o.Name))
	}
	errs = append(errs, a.Kernel.RemoveLoose(), a.gcDefault(ctx, conf.ValidAttachments))
	return errors.Join(errs...)
}

// gcDefault passes GC on, so that the default network's plugins free what their
// own lost DELs left.
func (a *Agent) gcDefault(ctx context.Context, valid []types.GCAttachment) error {
	network, err := a.Networks.Default()
	if errors.Is(err, chain.ErrNoNetwork) {
		return nil
	}
	if err != nil {
		return err
	}
	return a.Plugins.GC(ctx, network, valid)
}

// Recheck looks at every floating IP that this node carries, after something
// happened to its links. Where a piece is missing it asks the API first: a link
// that comes back may be the end of a partition. An error says that the API did
// not answer.
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
