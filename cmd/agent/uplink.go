// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// settle is how long the network is left alone after a change before it is
// looked at: changes come in bursts.
const settle = 300 * time.Millisecond

// watchUplink repairs the node's side of floating IPs when links come and go:
// the kernel drops routes and proxy entries of a link that goes down and does
// not bring them back.
func watchUplink(ctx context.Context, a *agent.Agent) error {
	updates := make(chan netlink.LinkUpdate, 64)
	if err := netlink.LinkSubscribeWithOptions(updates, ctx.Done(), netlink.LinkSubscribeOptions{
		ErrorCallback: func(err error) {
			if ctx.Err() == nil {
				klog.FromContext(ctx).V(2).Info("Missed changes of links", "err", err)
			}
		},
	}); err != nil {
		return fmt.Errorf("watch links: %w", err)
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case u, ok := <-updates:
			if !ok {
				return nil
			}
			if u.IfInfomsg.Flags&unix.IFF_UP != 0 && !wire.IsHostLink(u.Link.Attrs().Name) {
				timer.Reset(settle)
			}
		case <-timer.C:
			a.Repair(ctx)
		}
	}
}
