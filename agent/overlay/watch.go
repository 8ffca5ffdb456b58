// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
)

// missedPause is the wait before the kernel is followed again.
const missedPause = time.Second

// receiveBuffer is the size of the buffers of events, in bytes.
const receiveBuffer = 1 << 20

// watchKernel makes Run compare the kernel after its changes, until the context ends. If the kernel
// drops events, or cannot be followed, everything is compared at once, and again with each resync.
func (o *Overlay) watchKernel(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		o.Recheck()
		if err := o.followKernel(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Info("Missed changes of the kernel, will compare all", "err", err)
		}
	}, missedPause)
}

func (o *Overlay) followKernel(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	links, routes, neighs := make(chan netlink.LinkUpdate, 64), make(chan netlink.RouteUpdate, 64), make(chan netlink.NeighUpdate, 64)
	err := errors.Join(
		netlink.LinkSubscribeWithOptions(links, ctx.Done(), netlink.LinkSubscribeOptions{ErrorCallback: cancel, ReceiveBufferSize: receiveBuffer, ReceiveBufferForceSize: true}),
		netlink.RouteSubscribeWithOptions(routes, ctx.Done(), netlink.RouteSubscribeOptions{ErrorCallback: cancel, ReceiveBufferSize: receiveBuffer, ReceiveBufferForceSize: true}),
		netlink.NeighSubscribeWithOptions(neighs, ctx.Done(), netlink.NeighSubscribeOptions{ErrorCallback: cancel, ReceiveBufferSize: receiveBuffer, ReceiveBufferForceSize: true}))
	defer func() {
		cancel(nil)
		// The subscriptions end when their channels are read.
		go drain(links)
		go drain(routes)
		go drain(neighs)
	}()
	if err != nil {
		return fmt.Errorf("follow the kernel: %w", err)
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case u, ok := <-links:
			if !ok {
				return errors.New("the kernel ended the events of links")
			}
			if name := u.Attrs().Name; !strings.HasPrefix(name, "veth") && !strings.HasPrefix(name, netfilter.LinkPrefix) {
				o.Recheck()
			}
		case u, ok := <-routes:
			if !ok {
				return errors.New("the kernel ended the events of routes")
			}
			// A route of the overlay, or of a pod.
			ours := u.Protocol == rtnl.Protocol || u.Protocol == unix.RTPROT_STATIC || u.Gw != nil
			if u.Type == unix.RTM_DELROUTE && ours && u.Table == unix.RT_TABLE_MAIN {
				o.Recheck()
			}
		case u, ok := <-neighs:
			if !ok {
				return errors.New("the kernel ended the events of neighbours")
			}
			if u.Type == unix.RTM_DELNEIGH && !u.IP.IsMulticast() && isVTEP(u.LinkIndex) {
				o.Recheck()
			}
		}
	}
}

// isVTEP reports whether an index is the index of a VTEP. The event of a deleted neighbour shows
// neither its MAC address nor whether it was permanent.
func isVTEP(index int) bool {
	link, err := netlink.LinkByIndex(index)
	return err == nil && (link.Attrs().Name == link4 || link.Attrs().Name == link6)
}

func drain[T any](events <-chan T) {
	for range events {
	}
}
