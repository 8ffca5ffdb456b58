// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/chain"
)

// lostRecords are the attachments for which plugins may keep something, and which have no record.
type lostRecords struct{ *records }

// parallelDELs is how many attachments without a record are ended at a time.
const parallelDELs = 8

// end runs the plugins' DEL for attachments without a record that match selects, and returns how
// many these are. netns is the path of their namespace; empty where it is gone.
func (l *lostRecords) end(ctx context.Context, netns string, match func(one chain.Attached) bool) (matched int, err error) {
	all, err := l.Plugins.Attached()
	errs := make([]error, len(all), len(all)+1)
	recorded := map[string]bool{}
	for _, record := range l.Store.List() {
		recorded[record.ContainerID] = true
	}
	var group errgroup.Group
	group.SetLimit(parallelDELs)
	for i, one := range all {
		if recorded[one.ContainerID] || !match(one) {
			continue
		}
		matched++
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, delTimeout)
			defer cancel()
			attachment := one.Attachment
			if attachment.NetNS = netns; one.Earlier {
				attachment.NetNS = ""
			}
			errs[i] = l.Plugins.Del(ctx, one.Network, attachment, nil)
			return nil // one failure ends no other DEL
		})
	}
	_ = group.Wait()
	return matched, errors.Join(append(errs, err)...)
}

// A reboot of the node ends its kernel's state and, with it, the records (state.EndBoot). Files on
// disk outlive it: plugins' own, such as leases, for which package chain keeps the input of a DEL,
// the claims of package sriov, and the journal of package settings; the last two end with a boot ID
// of their own.

// endAll runs the plugins' DEL for the containers that ended with their records until it
// succeeds: containers from before the node's restart, and containers whose namespace is gone. Of
// their networks nothing is left but the plugins' files, such as leases.
func (l *lostRecords) endAll(ctx context.Context) {
	_ = wait.PollUntilContextCancel(ctx, freeRetry, true, func(ctx context.Context) (done bool, err error) {
		freed, err := l.end(ctx, "", func(one chain.Attached) bool {
			gone, err := netnsGone(one.NetNS)
			return one.Earlier || gone && err == nil
		})
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot run the plugins' DEL for containers that ended, will try again")
		} else if freed > 0 {
			klog.FromContext(ctx).Info("Ran the plugins' DEL for containers that ended before the agent started", "attachments", freed)
		}
		return err == nil, nil
	})
}

// freeRetry is the wait after a failure.
const freeRetry = 30 * time.Second
