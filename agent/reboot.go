// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/chain"
)

// A reboot of the node ends its kernel's state and, with it, the records (state.EndBoot). Files on disk
// outlive it: plugins' own, such as leases, for which package chain keeps the input of a DEL, the claims
// of package sriov, and the journal of package settings; the last two end with a boot ID of their own.

// freeEnded runs the plugins' DEL for the containers that ended with their records until it
// succeeds: containers from before the node's restart, and containers whose namespace is gone. Of
// their networks nothing is left but the plugins' files, such as leases.
func (a *Agent) freeEnded(ctx context.Context) {
	_ = wait.PollUntilContextCancel(ctx, freeRetry, true, func(ctx context.Context) (done bool, err error) {
		freed, err := a.delUnrecorded(ctx, "", func(one chain.Attached) bool {
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
