// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// LinkNotFound reports whether a search failed because there is no such link.
func LinkNotFound(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound) || errors.Is(err, unix.ENODEV)
}

// LinkOrNil returns nil if the link does not exist.
func LinkOrNil(name string) (netlink.Link, error) {
	link, err := netlinksafe.LinkByName(name)
	if LinkNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find link %s: %w", name, err)
	}
	return link, nil
}

// LinkWith returns the link that has an address of the node, nil if there is none. The node also
// has addresses of local routes. A pod's link only repeats an address, and loses it when no other
// link has the address any more.
func LinkWith(addr netip.Addr) (netlink.Link, error) {
	// This saves a list of all addresses if no link has the address.
	ways, err := netlink.RouteGet(addr.AsSlice())
	isLocal := slices.ContainsFunc(ways, func(r netlink.Route) bool { return r.Type == unix.RTN_LOCAL })
	if err != nil && !errors.As(err, new(unix.Errno)) {
		return nil, fmt.Errorf("look whether the node has %s: %w", addr, err)
	}
	if !isLocal {
		return nil, nil // the errors are of routes: unreachable, prohibited
	}
	addrs, err := Addresses(nil, FamilyOf(addr))
	if err != nil {
		return nil, err
	}
	repeated := false
	for _, a := range addrs {
		if have, ok := netip.AddrFromSlice(a.IP); !ok || have.Unmap() != addr {
			continue
		}
		link, err := netlink.LinkByIndex(a.LinkIndex)
		if LinkNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("find link %d: %w", a.LinkIndex, err)
		}
		if !isPodLink(link.Attrs().Name) {
			return link, nil
		}
		repeated = true
	}
	if repeated {
		return nil, nil
	}
	return netlink.LinkByIndex(ways[0].LinkIndex)
}

// HasCarrier reports whether a link had its carrier when it was read. Without a carrier it is down
// or its cable is out.
func HasCarrier(link netlink.Link) bool { return link.Attrs().RawFlags&unix.IFF_LOWER_UP != 0 }

// Links lists all links.
func Links() ([]netlink.Link, error) {
	links, err := netlinksafe.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return links, nil
}

// VLANLink returns the link for a VLAN on the parent, nil if there is none.
func VLANLink(parent netlink.Link, vlan int) (netlink.Link, error) {
	links, err := Links()
	for _, link := range links {
		if v, ok := link.(*netlink.Vlan); ok && v.VlanId == vlan && v.ParentIndex == parent.Attrs().Index {
			return link, nil
		}
	}
	return nil, err
}

func SetUp(link netlink.Link) error {
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set link %s up: %w", link.Attrs().Name, err)
	}
	return nil
}

// SetDown sets a link down that may be gone.
func SetDown(link netlink.Link) error {
	if err := netlink.LinkSetDown(link); err != nil && !IsGone(err) {
		return fmt.Errorf("set link %s down: %w", link.Attrs().Name, err)
	}
	return nil
}

// WithoutIPv6 keeps a link from getting a link-local address when it is set up.
func WithoutIPv6(link netlink.Link) error {
	const addrGenModeNone = 1 // IN6_ADDR_GEN_MODE_NONE of linux/if_link.h
	err := netlink.LinkSetIP6AddrGenMode(link, addrGenModeNone)
	// These errors are from a kernel without IPv6.
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("keep link %s without an IPv6 address: %w", link.Attrs().Name, err)
	}
	return nil
}

// DeleteLink deletes a link that may be gone.
func DeleteLink(link netlink.Link) error {
	if err := netlink.LinkDel(link); err != nil && !IsGone(err) {
		return fmt.Errorf("delete link %s: %w", link.Attrs().Name, err)
	}
	return nil
}
