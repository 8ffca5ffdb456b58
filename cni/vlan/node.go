// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"net/netip"
	"slices"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-dev/berth/cni/rtnl"
)

// back is a container's way to its node: node is the node's address, source the container's.
type back struct {
	node, source netip.Addr
}

// backsOf returns the container's ways to its node, for each family one.
func backsOf(spec Spec) ([]back, error) {
	var all []back
	for _, a := range spec.Addresses {
		own, err := nodeAddress(spec.Uplink, a.Address)
		if err != nil {
			return nil, err
		}
		if own.IsValid() && !slices.ContainsFunc(all, func(b back) bool { return b.node == own }) {
			source, _ := firstOf(spec.Addresses, own)
			all = append(all, back{own, source})
		}
	}
	return all, nil
}

// nodeNeigh is the node's neighbour entry of the container.
func nodeNeigh(spec Spec, addr netip.Addr, node netlink.Link) netlink.Neigh {
	return netlink.Neigh{LinkIndex: node.Attrs().Index, Family: rtnl.FamilyOf(addr), State: netlink.NUD_PERMANENT, IP: addr.AsSlice(), HardwareAddr: nodeLinkMAC(spec)}
}

// backNeigh is the container's neighbour entry of its node.
func backNeigh(b back, inside, node netlink.Link) netlink.Neigh {
	return netlink.Neigh{LinkIndex: inside.Attrs().Index, Family: rtnl.FamilyOf(b.node), State: netlink.NUD_PERMANENT, IP: b.node.AsSlice(), HardwareAddr: node.Attrs().HardwareAddr}
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
