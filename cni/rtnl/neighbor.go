// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func Neigh(link int, addr netip.Addr, mac net.HardwareAddr) netlink.Neigh {
	return netlink.Neigh{LinkIndex: link, Family: FamilyOf(addr), State: netlink.NUD_PERMANENT, IP: addr.AsSlice(), HardwareAddr: mac}
}

// Neighbors lists the neighbours of a family at the link with an index, or at all links if it is 0.
func Neighbors(link, family int) ([]netlink.Neigh, error) {
	all, err := Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(link, family) })
	if err != nil && link != 0 {
		return nil, fmt.Errorf("list neighbours at link %d: %w", link, err)
	}
	if err != nil {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	return all, nil
}

// DropQueued drops the packets that wait for the link-layer addresses of neighbours: they have
// already passed all hooks except postrouting. No packets wait for a neighbour with a known
// link-layer address.
func DropQueued(addresses []netip.Addr) error {
	var errs []error
	for _, family := range Families {
		if !slices.ContainsFunc(addresses, func(a netip.Addr) bool { return a.Is4() == (family == unix.AF_INET) }) {
			continue
		}
		all, err := Neighbors(0, family)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, n := range all {
			if a, ok := netip.AddrFromSlice(n.IP); !ok || n.State&netlink.NUD_INCOMPLETE == 0 || !slices.Contains(addresses, a.Unmap()) {
				continue
			}
			if err := netlink.NeighDel(&n); err != nil && !IsGone(err) {
				errs = append(errs, fmt.Errorf("delete the neighbour %s, whose link-layer address is not known: %w", n.IP, err))
			}
		}
	}
	return errors.Join(errs...)
}
