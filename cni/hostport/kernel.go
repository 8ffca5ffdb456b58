// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
)

// linksTo returns the node's link to each existing pod. It leaves out links to the outside, to
// which a pod's address leads when its own link is gone.
func linksTo(mappings []Mapping) (map[netip.Addr]string, error) {
	links := map[netip.Addr]string{}
	if len(mappings) == 0 {
		return links, nil
	}
	outside, err := defaultLinks()
	if err != nil {
		return nil, err
	}
	for _, m := range mappings {
		if _, known := links[m.Pod]; known {
			continue
		}
		links[m.Pod] = ""
		routes, err := netlink.RouteGet(m.Pod.AsSlice())
		if err != nil || len(routes) == 0 || routes[0].Gw != nil || outside[routes[0].LinkIndex] {
			continue // no route is an error, too
		}
		link, err := netlink.LinkByIndex(routes[0].LinkIndex)
		if err != nil || link.Attrs().Flags&unix.IFF_LOOPBACK != 0 {
			continue // it went away just now
		}
		links[m.Pod] = link.Attrs().Name
	}
	return links, nil
}

func defaultLinks() (map[int]bool, error) {
	routes, err := netlinksafe.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	links := map[int]bool{}
	for _, r := range routes {
		if r.Dst != nil {
			if ones, _ := r.Dst.Mask.Size(); ones != 0 {
				continue
			}
		}
		links[r.LinkIndex] = true
		for _, hop := range r.MultiPath {
			links[hop.LinkIndex] = true
		}
	}
	return links, nil
}

// linkOfIPVS is the link to which kube-proxy's mode ipvs adds the addresses of Services.
const linkOfIPVS = "kube-ipvs0"

func servicesOfIPVS() ([]netip.Addr, error) {
	link, err := rtnl.LinkOrNil(linkOfIPVS)
	if err != nil || link == nil {
		return nil, err
	}
	return addresses(link)
}

// addresses lists the addresses of a link, or of the node if link is nil.
func addresses(link netlink.Link) ([]netip.Addr, error) {
	found, err := rtnl.Addresses(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	var all []netip.Addr
	for _, a := range found {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			all = append(all, addr.Unmap())
		}
	}
	return all, nil
}

// metricLoopback puts our route to ::1 after the kernel's own.
const metricLoopback = 2048

// routeLoopback switches on or off that packets with a loopback address may leave by a link and
// their replies may come back. A missing link is no error.
func routeLoopback(name string, on bool) error {
	link, err := rtnl.LinkOrNil(name)
	if err != nil || link == nil {
		return err
	}
	localnet := rtnl.Devconf{rtnl.RouteLocalnet: 0}
	if on {
		localnet[rtnl.RouteLocalnet] = 1
	}
	if err := rtnl.SetIPv4(link, localnet); err != nil && !errors.Is(err, unix.ENODEV) {
		return err
	}
	// For packets from a link, the kernel takes ::1 only from routes with this link. It drops
	// packets that come with this address before.
	route := &netlink.Route{
		LinkIndex: link.Attrs().Index, Dst: rtnl.IPNet(rtnl.SinglePrefix(netip.IPv6Loopback())),
		Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST, Protocol: rtnl.Protocol, Priority: metricLoopback,
	}
	if on {
		err = netlink.RouteReplace(route)
	} else if err = netlink.RouteDel(route); errors.Is(err, unix.ESRCH) {
		err = nil
	}
	// The link went away, or IPv6 is off on it.
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("route ::1 from link %s: %w", name, err)
	}
	return nil
}
