// SPDX-License-Identifier: Apache-2.0

package speaker

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
)

// unusable are the flags of addresses that may go, or are not there yet.
const unusable = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_DEPRECATED | unix.IFA_F_TEMPORARY

// nextHop returns the node's IPv6 address on the link by which a router is reached over IPv4: a
// session over IPv4 has none that IPv6 packets could be sent to. Of several it is the lowest.
func nextHop(router netip.Addr) (netip.Addr, error) {
	routes, err := netlink.RouteGet(router.AsSlice())
	if err != nil || len(routes) == 0 {
		return netip.Addr{}, fmt.Errorf("find the link by which %s is reached: %w", router, err)
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("find the link by which %s is reached: %w", router, err)
	}
	all, err := rtnl.Addresses(link, netlink.FAMILY_V6)
	if err != nil {
		return netip.Addr{}, err
	}
	hop := lowest(all, netip.PrefixFrom(netip.IPv6Unspecified(), 0), netlink.SCOPE_UNIVERSE)
	if !hop.IsValid() {
		return netip.Addr{}, fmt.Errorf("link %s, by which %s is reached, has no IPv6 address: give it one, or have a BGPPeer with an IPv6 address of the router", link.Attrs().Name, router)
	}
	return hop, nil
}

// sourceIn returns the node's address in a prefix, of several the lowest.
func sourceIn(prefix netip.Prefix) (netip.Addr, error) {
	all, err := rtnl.Addresses(nil, netlink.FAMILY_ALL)
	if err != nil {
		return netip.Addr{}, err
	}
	source := lowest(all, prefix, netlink.SCOPE_UNIVERSE)
	if !source.IsValid() {
		return netip.Addr{}, fmt.Errorf("the node has no address in spec.source, %s: give a link of it one, such as lo", prefix)
	}
	return source, nil
}

// lowest returns the lowest of the addresses of a scope in a prefix that the node may speak from;
// not valid: there is none.
func lowest(all []netlink.Addr, in netip.Prefix, scope netlink.Scope) (found netip.Addr) {
	for i := range all {
		addr, ok := netip.AddrFromSlice(all[i].IP)
		addr = addr.Unmap()
		if ok && in.Contains(addr) && all[i].Scope == int(scope) && all[i].Flags&unusable == 0 && (!found.IsValid() || addr.Less(found)) {
			found = addr
		}
	}
	return found
}
