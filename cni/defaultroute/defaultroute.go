// SPDX-License-Identifier: Apache-2.0

// Package defaultroute sets the interface of the default route of a container with several
// interfaces. It looks at the main routing table only, and changes no policy routing rules and no
// other tables. It never changes the node's routes.
package defaultroute

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
)

// ErrOther is returned by Check if another interface or gateway has the default route.
var ErrOther = errors.New("the container's default route is another one")

// Way is the default route of one or both families.
type Way struct {
	// NetNS is the path of the container's network namespace.
	NetNS string
	// IfName is the interface in it, and Gateways are on its networks, one for each family.
	// Families without a gateway keep their default routes.
	IfName   string
	Gateways []netip.Addr
}

// Kernel is the kernel of the node. Its methods are safe in parallel.
type Kernel struct{}

// Set makes the way the only default route of its families. It is idempotent, and keeps an existing
// right route. It blocks for the kernel only.
func (Kernel) Set(w Way) error {
	return w.inside(func(link netlink.Link, gateway netip.Addr, routes []netlink.Route) error {
		there := false
		for _, r := range routes {
			if w.is(r, link, gateway) {
				there = true
				continue
			}
			if err := netlink.RouteDel(&r); err != nil && !rtnl.IsGone(err) {
				return fmt.Errorf("delete the default route %s: %w", r, err)
			}
		}
		if there {
			return nil
		}
		route := netlink.Route{LinkIndex: link.Attrs().Index, Dst: rtnl.IPNet(rtnl.AnyPrefix(gateway)), Gw: gateway.AsSlice(), Family: rtnl.FamilyOf(gateway)}
		if err := netlink.RouteAdd(&route); err != nil {
			return fmt.Errorf("add the default route by gateway %s (is it in a subnet of the interface?): %w", gateway, err)
		}
		return nil
	})
}

// Check returns ErrOther if Set would change something. It blocks for the kernel only.
func (Kernel) Check(w Way) error {
	return w.inside(func(link netlink.Link, gateway netip.Addr, routes []netlink.Route) error {
		if len(routes) != 1 || !w.is(routes[0], link, gateway) {
			return fmt.Errorf("%w: it has %v, must have one by %s alone", ErrOther, routes, gateway)
		}
		return nil
	})
}

func (Way) is(r netlink.Route, link netlink.Link, gateway netip.Addr) bool {
	gw, ok := netip.AddrFromSlice(r.Gw)
	return ok && gw.Unmap() == gateway && r.LinkIndex == link.Attrs().Index
}

// inside calls do in the container for each gateway, with the default routes of its family.
func (w Way) inside(do func(link netlink.Link, gateway netip.Addr, routes []netlink.Route) error) error {
	err := rtnl.InNetNS(w.NetNS, func() error {
		link, err := netlinksafe.LinkByName(w.IfName)
		if err != nil {
			return fmt.Errorf("find the link: %w", err)
		}
		var errs []error
		for _, gateway := range w.Gateways {
			routes, err := defaults(gateway)
			if err == nil {
				err = do(link, gateway, routes)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return fmt.Errorf("default route by %s in %s: %w", w.IfName, w.NetNS, err)
	}
	return nil
}

func defaults(gateway netip.Addr) ([]netlink.Route, error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_MAIN, Dst: nil}
	routes, err := netlinksafe.RouteListFiltered(rtnl.FamilyOf(gateway), filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
	if err != nil {
		return nil, fmt.Errorf("list default routes: %w", err)
	}
	return routes, nil
}
