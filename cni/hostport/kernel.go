// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// linksTo returns the node's link to each pod that is there. It leaves out links to the
// outside, where a pod's address leads when its own link is gone.
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

// defaultLinks returns the links that have a default route.
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

// servicesOfIPVS lists the addresses of Services that are on the node itself.
func servicesOfIPVS() ([]netip.Addr, error) {
	link, err := netlinksafe.LinkByName(linkOfIPVS)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for link %s: %w", linkOfIPVS, err)
	}
	return addresses(link)
}

// addresses lists the addresses of a link, or of the node where link is nil.
func addresses(link netlink.Link) ([]netip.Addr, error) {
	found, err := netlinksafe.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var all []netip.Addr
	for _, a := range found {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			all = append(all, addr.Unmap())
		}
	}
	return all, nil
}

// Attributes of linux/if_link.h and linux/ip.h, and the mark of Berth's routes.
const (
	iflaInetConf             = 1
	ipv4DevconfRouteLocalnet = 26
	protocolBerth            = 98
	// metricLoopback is that of our route to ::1, after the kernel's own.
	metricLoopback = 2048
)

// routeLoopback lets packets with a loopback address leave by a link and their replies come
// back, or ends that. A link that is gone is no error.
func routeLoopback(name string, on bool) error {
	link, err := netlinksafe.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for link %s: %w", name, err)
	}
	if err := setRouteLocalnet(link, on); err != nil {
		return err
	}
	// For packets from a link, the kernel takes ::1 only from routes with this link. Those that
	// come with this address it drops before.
	route := &netlink.Route{
		LinkIndex: link.Attrs().Index, Dst: &net.IPNet{IP: net.IPv6loopback, Mask: net.CIDRMask(128, 128)},
		Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST, Protocol: protocolBerth, Priority: metricLoopback,
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

// setRouteLocalnet sets net.ipv4.conf.<link>.route_localnet through netlink, which needs
// CAP_NET_ADMIN. The file would need a writable /proc/sys.
func setRouteLocalnet(link netlink.Link, on bool) error {
	value := uint32(0)
	if on {
		value = 1
	}
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(link.Attrs().Index)
	req.AddData(msg)
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	conf := spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(iflaInetConf, nil)
	conf.AddRtAttr(ipv4DevconfRouteLocalnet, nl.Uint32Attr(value))
	req.AddData(spec)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("set route_localnet of link %s to %d: %w", link.Attrs().Name, value, err)
	}
	return nil
}
