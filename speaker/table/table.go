// SPDX-License-Identifier: Apache-2.0

// Package table reads the node's routing table 98, in which the agent has a route for each address
// that the node carries, and follows its changes. No rule looks the table up: it routes nothing,
// and is how speakers of BGP learn what to announce. It changes nothing, and needs no privilege.
package table

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/speaker/plan"
)

// Number is the table's.
const Number = 98

// Read returns the routes of the agent. It blocks for the kernel only.
func Read() ([]plan.Route, error) {
	var all []plan.Route
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		filter := &netlink.Route{Table: Number, Protocol: rtnl.Protocol}
		routes, err := netlinksafe.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			return nil, fmt.Errorf("read routing table %d: %w", Number, err)
		}
		for i := range routes {
			if route, ok := routeOf(&routes[i]); ok {
				all = append(all, route)
			}
		}
	}
	return all, nil
}

// routeOf returns a route to one address.
func routeOf(route *netlink.Route) (plan.Route, bool) {
	if route.Dst == nil || route.Type != unix.RTN_UNICAST {
		return plan.Route{}, false
	}
	addr, ok := netip.AddrFromSlice(route.Dst.IP)
	ones, bits := route.Dst.Mask.Size()
	if !ok || ones != bits {
		return plan.Route{}, false
	}
	// The kernel has 32 bits of it.
	return plan.Route{Address: addr.Unmap(), Metric: uint32(route.Priority)}, true
}

const (
	// missedPause is the wait before the kernel is followed again.
	missedPause = time.Second
	// receiveBuffer is the size of the buffers of events, in bytes. The kernel may give less.
	receiveBuffer = 1 << 20
)

// Follow calls changed after changes of the table until ctx ends, and also where it may have missed
// some. The first call comes once changes are seen: what is read from then on is complete. changed
// returns at once.
func Follow(ctx context.Context, changed func()) {
	for ctx.Err() == nil {
		if err := follow(ctx, changed); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Info("Missed changes of the routing table, will read all of it", "table", Number, "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(missedPause):
		}
	}
}

func follow(ctx context.Context, changed func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	links, routes := make(chan netlink.LinkUpdate, 64), make(chan netlink.RouteUpdate, 64)
	// Neither lists what is there, which needs privileges: the caller reads the table.
	err := errors.Join(
		netlink.LinkSubscribeWithOptions(links, ctx.Done(), netlink.LinkSubscribeOptions{ErrorCallback: cancel, ReceiveBufferSize: receiveBuffer}),
		netlink.RouteSubscribeWithOptions(routes, ctx.Done(), netlink.RouteSubscribeOptions{ErrorCallback: cancel, ReceiveBufferSize: receiveBuffer}))
	defer func() {
		cancel(nil)
		// The subscriptions end when their channels are read.
		go drain(links)
		go drain(routes)
	}()
	if err != nil {
		return fmt.Errorf("follow the kernel: %w", err)
	}
	changed()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case _, ok := <-links:
			if !ok {
				return errors.New("the kernel ended the events of links")
			}
			// The kernel removes the IPv4 routes of a link that goes without an event of theirs.
			changed()
		case u, ok := <-routes:
			if !ok {
				return errors.New("the kernel ended the events of routes")
			}
			if u.Table == Number {
				changed()
			}
		}
	}
}

func drain[T any](events <-chan T) {
	for range events {
	}
}
