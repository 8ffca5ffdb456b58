// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
)

// route is a route of ours, as the kernel lists it.
type route struct {
	table   int
	dst     netip.Prefix
	link    int
	gateway netip.Addr
	scope   netlink.Scope
	// metric is the metric of an advertised address, 0 in other tables, where the kernel sets its own
	// values.
	metric uint32
}

func routeOf(r netlink.Route) route {
	gateway, _ := netip.AddrFromSlice(r.Gw)
	return route{table: r.Table, dst: rtnl.PrefixOf(r.Dst), link: r.LinkIndex, gateway: gateway, scope: r.Scope, metric: uint32(r.Priority)} //nolint:gosec // planned from one
}

func (r route) netlink() netlink.Route {
	return netlink.Route{
		LinkIndex: r.link, Dst: rtnl.IPNet(r.dst), Gw: r.gateway.AsSlice(), Scope: r.scope, Protocol: rtnl.Protocol, Table: r.table,
		Family: rtnl.FamilyOf(r.dst.Addr()), Priority: int(r.metric),
	}
}

func (r route) del() error { return rtnl.DeleteRoute(r.netlink()) }

// listRoutes returns the routes of all tables with our protocol number, by a single dump that the
// kernel filters.
func listRoutes(family int) ([]route, error) {
	messages, err := rtnl.Dump(func() ([][]byte, error) { return dumpRoutes(family, rtnl.Protocol) })
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var all []route
	for _, m := range messages {
		if r, ok := parseRoute(m, rtnl.Protocol); ok {
			all = append(all, r)
		}
	}
	return all, nil
}

// dumpRoutes lists the routes of a protocol, on old kernels all routes.
func dumpRoutes(family, protocol int) ([][]byte, error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	defer socket.Close()
	// Kernels before 4.20 do not know the option and send all routes.
	if err := unix.SetsockoptInt(socket.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
		return nil, fmt.Errorf("ask for a filtered list: %w", err)
	}
	req := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
	req.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(family), Protocol: uint8(protocol)}})
	return req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE)
}

// parseRoute reads one RTM_NEWROUTE message; ok is false for routes of another protocol
// and for malformed messages.
func parseRoute(m []byte, protocol byte) (r route, ok bool) {
	const header, addr4, addr6 = 12, 4, 16
	if len(m) < header || m[5] != protocol {
		return route{}, false
	}
	size := addr4
	if m[0] == unix.AF_INET6 {
		size = addr6
	}
	r.table, r.scope = int(m[4]), netlink.Scope(m[6])
	dst := make([]byte, size)
	err := rtnl.Attributes(m[header:], func(kind int, value []byte) error {
		switch {
		case kind == unix.RTA_DST:
			dst = value
		case kind == unix.RTA_GATEWAY:
			r.gateway, _ = netip.AddrFromSlice(value)
		case len(value) != 4:
		default:
			number := binary.NativeEndian.Uint32(value)
			switch kind {
			case unix.RTA_OIF:
				r.link = int(number)
			case unix.RTA_PRIORITY:
				r.metric = number
			case unix.RTA_TABLE:
				r.table = int(number)
			}
		}
		return nil
	})
	if r.table != AdvertisedTable {
		r.metric = 0
	}
	addr, ok := netip.AddrFromSlice(dst)
	r.dst = netip.PrefixFrom(addr, int(m[1]))
	return r, ok && r.dst.IsValid() && err == nil
}
