// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// quiet is the wait after the last change of a burst.
const quiet = 300 * time.Millisecond

// watchUplink calls changed after a change of the uplink or of a VLAN link on top of
// it: the kernel drops routes and proxy entries of a link that goes down or loses its
// last address, and does not restore them. It calls back at once when such a link
// comes up, because the node may have been cut off. It returns when ctx ends.
func watchUplink(ctx context.Context, uplink func() (string, error), changed func(context.Context), back func()) error {
	missed := func(err error) {
		if ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("Missed changes of links", "err", err)
		}
	}
	links, addrs := make(chan netlink.LinkUpdate, 256), make(chan netlink.AddrUpdate, 256)
	if err := netlink.LinkSubscribeWithOptions(links, ctx.Done(), netlink.LinkSubscribeOptions{ErrorCallback: missed}); err != nil {
		return fmt.Errorf("watch links: %w", err)
	}
	if err := netlink.AddrSubscribeWithOptions(addrs, ctx.Done(), netlink.AddrSubscribeOptions{ErrorCallback: missed}); err != nil {
		return fmt.Errorf("watch addresses: %w", err)
	}
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	down := map[int32]bool{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case u, ok := <-links:
			if !ok || !leadsOut(uplink, int(u.Index)) {
				continue
			}
			timer.Reset(quiet)
			running := u.IfInfomsg.Flags&unix.IFF_RUNNING != 0
			if running && down[u.Index] {
				back()
			}
			down[u.Index] = !running
		case u, ok := <-addrs:
			if ok && leadsOut(uplink, u.LinkIndex) {
				timer.Reset(quiet)
			}
		case <-timer.C:
			changed(ctx)
		}
	}
}

// leadsOut returns whether the link is the uplink or a VLAN link on top of it.
func leadsOut(uplink func() (string, error), index int) bool {
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return false
	}
	name, err := uplink()
	if err != nil {
		return false
	}
	if link.Attrs().Name == name {
		return true
	}
	parent, err := netlinksafe.LinkByName(name)
	return err == nil && link.Type() == "vlan" && link.Attrs().ParentIndex == parent.Attrs().Index
}
