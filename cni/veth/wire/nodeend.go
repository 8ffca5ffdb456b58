// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/rtnl"
)

// NodeEnd is the node's end of a pod's link: the addresses of at most one of each family, which the
// end of the link may repeat. The kernel masquerades to the address of the link by which a packet
// leaves, and REDIRECT leads to the address of the link by which it came. Without an address there,
// the kernel takes the first address of the node, which may be on an unrelated network.
//
// A node with one address of a family needs no repetition, and is better without: programs look for
// the link of an address, and FRR takes the first one by name, whose link-local address it
// announces as next hop.
type NodeEnd []EndAddress

// EndAddress is the node's address for a container, whose first address of the family is Source.
// Others are the node's other addresses.
type EndAddress struct {
	netip.Addr
	Source netip.Addr
	Others []netip.Addr
}

// NodeEnd returns the node's end of the container's pair.
func (s Spec) NodeEnd() (NodeEnd, error) {
	own, err := rtnl.NodeAddresses()
	if err != nil {
		return nil, err
	}
	var end NodeEnd
	for _, is4 := range []bool{true, false} {
		i := slices.IndexFunc(s.Addresses, func(a api.Address) bool { return a.Address.Is4() == is4 })
		if i < 0 {
			continue
		}
		a := EndAddress{Source: s.Addresses[i].Address}
		for _, o := range own {
			if o.Is4() == is4 {
				a.Others = append(a.Others, o.Addr)
			}
		}
		if a.Addr, err = nodeAddress(s.Uplink, a.Source, a.Others); err != nil {
			return nil, err
		}
		if a.IsValid() {
			a.Others = slices.DeleteFunc(a.Others, func(o netip.Addr) bool { return o == a.Addr })
			end = append(end, a)
		}
	}
	return end, nil
}

// Of returns the node's address in the family of addr, or the zero Addr.
func (e NodeEnd) Of(addr netip.Addr) netip.Addr {
	for _, a := range e {
		if a.Is4() == addr.Is4() {
			return a.Addr
		}
	}
	return netip.Addr{}
}

// nodeAddress returns the node's own address for its containers, or the zero Addr. It is the oldest
// address of the uplink, because virtual addresses come later and move to other nodes; else the
// node's source address for packets to the address to; else the first address.
func nodeAddress(uplink string, to netip.Addr, own []netip.Addr) (netip.Addr, error) {
	own = slices.DeleteFunc(slices.Clone(own), netip.Addr.IsLinkLocalUnicast)
	link, err := rtnl.LinkOrNil(uplink)
	if err != nil || len(own) == 0 {
		return netip.Addr{}, err
	}
	if link != nil {
		addrs, err := rtnl.Addresses(link, rtnl.FamilyOf(to))
		if err != nil {
			return netip.Addr{}, err
		}
		if to.Is6() {
			slices.Reverse(addrs) // Linux lists the newest first
		}
		for _, a := range addrs {
			const passing = unix.IFA_F_TEMPORARY | unix.IFA_F_DEPRECATED
			if addr, ok := netip.AddrFromSlice(a.IP); ok && a.Flags&passing == 0 && slices.Contains(own, addr.Unmap()) {
				return addr.Unmap(), nil
			}
		}
	}
	// An error means that the node has no route to it.
	routes, _ := netlink.RouteGet(to.AsSlice())
	for _, r := range routes {
		if addr, ok := netip.AddrFromSlice(r.Src); ok && slices.Contains(own, addr.Unmap()) {
			return addr.Unmap(), nil
		}
	}
	return own[0], nil
}

// RepeatedAddress returns an address for an end of a link that repeats the address of another link
// of its namespace.
func RepeatedAddress(addr netip.Addr) netlink.Addr {
	a := PodAddress(rtnl.SinglePrefix(addr))
	a.Flags |= unix.IFA_F_NOPREFIXROUTE
	return a
}

// compare returns the missing addresses of a link, and its addresses that it should not have. An
// address that is needed no more stays: with the last address of a link the kernel deletes routes.
func (e NodeEnd) compare(have []netlink.Addr) (missing, stale []netlink.Addr) {
	for _, addr := range e {
		if len(addr.Others) > 0 && !slices.ContainsFunc(have, func(a netlink.Addr) bool { return a.IP.Equal(addr.AsSlice()) }) {
			missing = append(missing, RepeatedAddress(addr.Addr))
		}
	}
	for _, a := range have {
		isWanted := func(addr EndAddress) bool { return a.IP.Equal(addr.AsSlice()) }
		if !slices.ContainsFunc(e, isWanted) && !(a.IP.To4() == nil && a.IP.IsLinkLocalUnicast()) {
			stale = append(stale, a)
		}
	}
	return missing, stale
}

// Add adds the addresses to a link, and returns stale addresses for DeleteAddresses. Routes may
// still have them as source.
func (e NodeEnd) Add(link netlink.Link) (stale []netlink.Addr, err error) {
	have, err := rtnl.Addresses(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	missing, stale := e.compare(have)
	for _, a := range missing {
		if err := netlink.AddrReplace(link, &a); err != nil {
			return stale, fmt.Errorf("add address %s to %s: %w", a.IPNet, link.Attrs().Name, err)
		}
	}
	return stale, nil
}

// DeleteAddresses deletes addresses of a link, which may be gone.
func DeleteAddresses(link netlink.Link, addrs []netlink.Addr) error {
	var errs []error
	for _, a := range addrs {
		if err := netlink.AddrDel(link, &a); err != nil && !rtnl.IsGone(err) {
			errs = append(errs, fmt.Errorf("delete address %s of link %s: %w", a.IPNet, link.Attrs().Name, err))
		}
	}
	return errors.Join(errs...)
}

// Check returns ErrNotWired for each address that a link lacks or should not have.
func (e NodeEnd) Check(link netlink.Link) error {
	have, err := rtnl.Addresses(link, netlink.FAMILY_ALL)
	return errors.Join(err, e.check(link, have))
}

func (e NodeEnd) check(link netlink.Link, have []netlink.Addr) error {
	missing, stale := e.compare(have)
	var errs []error
	for _, a := range missing {
		errs = append(errs, fmt.Errorf("%w: address %s is missing on link %s", ErrNotWired, a.IPNet, link.Attrs().Name))
	}
	for _, a := range stale {
		errs = append(errs, fmt.Errorf("%w: link %s repeats the address %s, which is no longer the one by which the node talks to the container", ErrNotWired, link.Attrs().Name, a.IPNet))
	}
	return errors.Join(errs...)
}
