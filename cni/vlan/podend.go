// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// podEnd is the container's end of its node link with its pieces, for families whose address the
// container has on any link: a sandbox (gVisor) removes addresses and routes, and has its own
// copies. Its functions run in the container's namespace.
type podEnd struct {
	d    *Driver
	link netlink.Link
	// plan has the end's addresses and neighbours.
	plan   wire.Plan
	routes []netlink.Route
	end    wire.NodeEnd
}

// loose is a value of rp_filter: it accepts a source with a route by any link.
const loose = 2

// podEnd returns nil if the container's end must have no pieces.
func (d *Driver) podEnd(node netlink.Link, end wire.NodeEnd) (*podEnd, error) {
	link, err := rtnl.LinkOrNil(node.Attrs().Name)
	if err != nil || link == nil {
		return nil, err
	}
	have, err := rtnl.Addresses(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	e := &podEnd{d: d, link: link}
	for _, b := range end {
		if !slices.ContainsFunc(have, func(a netlink.Addr) bool { return a.IP.Equal(b.Source.AsSlice()) }) {
			continue
		}
		e.end = append(e.end, b)
		e.plan.Addrs = append(e.plan.Addrs, wire.RepeatedAddress(b.Source))
		e.plan.Neighs = append(e.plan.Neighs, rtnl.Neigh(link.Attrs().Index, b.Addr, node.Attrs().HardwareAddr))
		e.routes = append(e.routes, planBack(b, link.Attrs().Index)...)
	}
	if len(end) > 0 && len(e.end) == 0 {
		return nil, nil
	}
	return e, nil
}

// inPodEnd calls do for the container's end, in its namespace, if the end must have any pieces.
func (d *Driver) inPodEnd(spec Spec, node netlink.Link, end wire.NodeEnd, do func(*podEnd) error) error {
	return insideOf(spec, func() error {
		e, err := d.podEnd(node, end)
		if err != nil || e == nil {
			return err
		}
		return do(e)
	})
}

// set gives the end its address: on a link without an address Linux drops packets of REDIRECT in
// the container, as of a sidecar, and applies a loose filter strictly. The filter is loose for
// packets from addresses with another route: of Services in the modes l3 and l3s, and of addresses
// that the node gets later.
func (e *podEnd) set() error {
	name := e.link.Attrs().Name
	if slices.ContainsFunc(e.end, func(b wire.EndAddress) bool { return b.Source.Is6() }) {
		if err := e.d.wirer.SetSysctl("net/ipv6/conf/"+name+"/disable_ipv6", "0"); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetGroup(e.link, nodeLinkGroup); err != nil {
		return fmt.Errorf("set the group of link %s: %w", name, err)
	}
	if err := errors.Join(rtnl.SetIPv4(e.link, rtnl.Devconf{rtnl.RPFilter: loose}), rtnl.SetUp(e.link)); err != nil {
		return err
	}
	if err := e.plan.Apply(e.link); err != nil {
		return err
	}
	missing, stale, moved, err := e.compare()
	if err != nil {
		return err
	}
	routes := wire.Plan{Routes: slices.Concat(missing, moved)}
	if err := routes.Apply(e.link); err != nil {
		return err
	}
	var errs []error
	for _, r := range stale {
		errs = append(errs, rtnl.DeleteRoute(r))
	}
	return errors.Join(errs...)
}

// compare compares the container's routes to its node's addresses. missing are missing routes.
// stale are routes to addresses that the node no longer has, which may be another node's now. moved
// are the corrected routes to Services whose gateway is such an address.
func (e *podEnd) compare() (missing, stale, moved []netlink.Route, err error) {
	var have []netlink.Route
	for _, family := range rtnl.Families {
		filter := &netlink.Route{LinkIndex: e.link.Attrs().Index, Table: unix.RT_TABLE_MAIN}
		routes, err := netlinksafe.RouteListFiltered(family, filter, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("list routes of link %s: %w", e.link.Attrs().Name, err)
		}
		have = append(have, routes...)
	}
	leadsTo := func(to netlink.Route) func(netlink.Route) bool {
		return func(r netlink.Route) bool { return rtnl.PrefixOf(r.Dst) == rtnl.PrefixOf(to.Dst) }
	}
	for _, want := range e.routes {
		i := slices.IndexFunc(have, leadsTo(want))
		if i < 0 || !have[i].Gw.Equal(want.Gw) || !have[i].Src.Equal(want.Src) {
			missing = append(missing, want)
		}
	}
	for _, r := range have {
		gateway, _ := netip.AddrFromSlice(r.Gw)
		gateway = gateway.Unmap()
		switch {
		case slices.ContainsFunc(e.routes, leadsTo(r)):
		case r.Protocol == rtnl.Protocol:
			stale = append(stale, r)
		case gateway.IsValid():
			if node := e.end.Of(gateway); node.IsValid() && node != gateway {
				r.Gw = node.AsSlice()
				moved = append(moved, r)
			}
		}
	}
	return missing, stale, moved, nil
}

// check returns ErrNotWired if a piece is missing, or a route leads to an address that the node no
// longer has.
func (e *podEnd) check() error {
	name := e.link.Attrs().Name
	errs := []error{e.plan.Check(e.link)}
	wrong := func(format string, a ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrNotWired}, a...)...))
	}
	if e.link.Attrs().Flags&net.FlagUp == 0 {
		wrong("link %s is down", name)
	}
	if group := e.link.Attrs().Group; group != nodeLinkGroup {
		wrong("link %s has the group %d, must have %d", name, group, nodeLinkGroup)
	}
	key := "net/ipv4/conf/" + name + "/rp_filter"
	if filter, err := e.d.wirer.Sysctl(key); err != nil {
		errs = append(errs, err)
	} else if filter != strconv.Itoa(loose) {
		wrong("%s is %s, must be %d", key, filter, loose)
	}
	missing, stale, moved, err := e.compare()
	errs = append(errs, err)
	for _, r := range missing {
		wrong("route %s on link %s is missing", r.Dst, name)
	}
	for _, r := range stale {
		wrong("route %s on link %s leads to an address that the node no longer has", r.Dst, name)
	}
	for _, r := range moved {
		wrong("route %s on link %s is not by %s", r.Dst, name, r.Gw)
	}
	return errors.Join(errs...)
}
