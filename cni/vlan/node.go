// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// back is a container's way to its node, of one family: node is the address by which they talk, source the container's, and others are
// the node's other addresses.
type back struct {
	node, source netip.Addr
	others       []netip.Addr
}

// backsOf returns the container's ways to its node, for each family one.
func backsOf(spec Spec) ([]back, error) {
	own, err := rtnl.NodeAddresses()
	if err != nil {
		return nil, err
	}
	var all []back
	for _, is4 := range []bool{true, false} {
		i := slices.IndexFunc(spec.Addresses, func(a api.Address) bool { return a.Address.Is4() == is4 })
		if i < 0 {
			continue
		}
		b := back{source: spec.Addresses[i].Address}
		for _, a := range own {
			if a.Is4() == is4 {
				b.others = append(b.others, a.Addr)
			}
		}
		if b.node, err = nodeAddress(spec.Uplink, b.source, b.others); err != nil {
			return nil, err
		}
		if b.node.IsValid() {
			b.others = slices.DeleteFunc(b.others, func(a netip.Addr) bool { return a == b.node })
			all = append(all, b)
		}
	}
	return all, nil
}

// nodeAddress returns the one of the node's own addresses by which it talks to its containers, or the zero Addr where it has none: the
// oldest of the uplink, because virtual addresses come later and go to other nodes, else that by which the node would talk to the address to,
// else the first.
func nodeAddress(uplink string, to netip.Addr, own []netip.Addr) (netip.Addr, error) {
	own = slices.DeleteFunc(slices.Clone(own), netip.Addr.IsLinkLocalUnicast)
	link, err := rtnl.LinkOrNil(uplink)
	if err != nil || len(own) == 0 {
		return netip.Addr{}, err
	}
	if link != nil {
		addrs, err := netlinksafe.AddrList(link, rtnl.FamilyOf(to))
		if err != nil {
			return netip.Addr{}, fmt.Errorf("list addresses of link %s: %w", uplink, err)
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
	// An error means that the node has no way there.
	routes, _ := netlink.RouteGet(to.AsSlice())
	for _, r := range routes {
		if addr, ok := netip.AddrFromSlice(r.Src); ok && slices.Contains(own, addr.Unmap()) {
			return addr.Unmap(), nil
		}
	}
	return own[0], nil
}

// nodeOf returns the address by which the node talks in the family of addr, the zero Addr where it has none.
func nodeOf(backs []back, addr netip.Addr) netip.Addr {
	for _, b := range backs {
		if b.node.Is4() == addr.Is4() {
			return b.node
		}
	}
	return netip.Addr{}
}

// endAddress is an address of an end of a node link, which has it beside another link of its namespace.
func endAddress(addr netip.Addr) netlink.Addr {
	a := wire.PodAddress(rtnl.SinglePrefix(addr))
	a.Flags |= unix.IFA_F_NOPREFIXROUTE
	return a
}

// nodeEnd compares the addresses of the node's end with those by which the node talks to the container: the kernel masquerades to the
// address of the link by which a packet leaves, and REDIRECT leads to the one of the link by which it came.
func nodeEnd(node netlink.Link, backs []back) (missing, stale []netlink.Addr, err error) {
	have, err := netlinksafe.AddrList(node, netlink.FAMILY_ALL)
	if err != nil {
		return nil, nil, fmt.Errorf("list addresses of link %s: %w", node.Attrs().Name, err)
	}
	for _, b := range backs {
		if !slices.ContainsFunc(have, func(a netlink.Addr) bool { return a.IP.Equal(b.node.AsSlice()) }) {
			missing = append(missing, endAddress(b.node))
		}
	}
	for _, a := range have {
		isWanted := func(b back) bool { return a.IP.Equal(b.node.AsSlice()) }
		if !slices.ContainsFunc(backs, isWanted) && !(a.IP.To4() == nil && a.IP.IsLinkLocalUnicast()) {
			stale = append(stale, a)
		}
	}
	return missing, stale, nil
}

// addAddresses gives the node's end its addresses, and returns those that it should not have.
func addAddresses(node netlink.Link, backs []back) (stale []netlink.Addr, err error) {
	missing, stale, err := nodeEnd(node, backs)
	for _, a := range missing {
		if err := netlink.AddrReplace(node, &a); err != nil {
			return stale, fmt.Errorf("add address %s to %s: %w", a.IPNet, node.Attrs().Name, err)
		}
	}
	return stale, err
}

// deleteAddresses deletes addresses of a node's end, which may be gone.
func deleteAddresses(node netlink.Link, addrs []netlink.Addr) error {
	var errs []error
	for _, a := range addrs {
		if err := netlink.AddrDel(node, &a); err != nil && !rtnl.IsGone(err) {
			errs = append(errs, fmt.Errorf("delete address %s of link %s: %w", a.IPNet, node.Attrs().Name, err))
		}
	}
	return errors.Join(errs...)
}

// result is the CNI result of the interfaces. It lists the addresses in the order of spec.
func result(spec Spec, segments []segment, made []netlink.Link, node netlink.Link) *current.Result {
	r := &current.Result{CNIVersion: current.ImplementedSpecVersion}
	r.Interfaces = append(r.Interfaces, &current.Interface{Name: node.Attrs().Name, Mac: node.Attrs().HardwareAddr.String(), Mtu: node.Attrs().MTU})
	position := map[int]int{}
	for i, g := range segments {
		position[g.vlan] = len(r.Interfaces)
		r.Interfaces = append(r.Interfaces, &current.Interface{
			Name: g.ifName, Mac: made[i].Attrs().HardwareAddr.String(), Mtu: made[i].Attrs().MTU, Sandbox: spec.NetNS,
		})
	}
	seen := map[bool]bool{}
	for _, a := range spec.Addresses {
		config := &current.IPConfig{Interface: current.Int(position[a.VLAN]), Address: *planAddress(spec, a).IPNet}
		if a.Gateway.IsValid() && !spec.routed() {
			config.Gateway = a.Gateway.AsSlice()
		}
		r.IPs = append(r.IPs, config)
		if is4 := a.Address.Is4(); !seen[is4] && (a.Gateway.IsValid() || spec.routed()) {
			seen[is4] = true
			r.Routes = append(r.Routes, &types.Route{Dst: *rtnl.IPNet(rtnl.AnyPrefix(a.Address)), GW: config.Gateway})
		}
	}
	return r
}
