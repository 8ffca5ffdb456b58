// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// back is a container's way to its node in one family: node is the node's address on the node link,
// source is the container's address, and others are the node's other addresses.
type back struct {
	node, source netip.Addr
	others       []netip.Addr
}

// backsOf returns the container's ways to its node, one for each family.
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
		if b.node, err = wire.NodeAddress(spec.Uplink, b.source, b.others); err != nil {
			return nil, err
		}
		if b.node.IsValid() {
			b.others = slices.DeleteFunc(b.others, func(a netip.Addr) bool { return a == b.node })
			all = append(all, b)
		}
	}
	return all, nil
}

// nodeOf returns the node's address on the node link in the family of addr, or the zero Addr.
func nodeOf(backs []back, addr netip.Addr) netip.Addr {
	for _, b := range backs {
		if b.node.Is4() == addr.Is4() {
			return b.node
		}
	}
	return netip.Addr{}
}

// ends returns the node's addresses on the node link.
func ends(backs []back) wire.NodeEnd {
	var all wire.NodeEnd
	for _, b := range backs {
		all = all.Repeat(b.node, b.others)
	}
	return all
}

// result returns the CNI result of the interfaces. It lists the addresses in the order of spec.
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
