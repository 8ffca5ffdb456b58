// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/cni/rtnl"
)

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
