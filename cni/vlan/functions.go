// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/cni/sriov"
)

// wishOf describes the virtual function of a segment in mode sriov.
func wishOf(spec Spec, g segment) sriov.Wish {
	pfs := spec.PhysicalFunctions
	if len(pfs) == 0 {
		pfs = []string{spec.Uplink}
	}
	return sriov.Wish{
		Owner: NodeLink(spec.ContainerID, spec.IfName), IfName: g.ifName, NetNS: spec.NetNS,
		PFs: pfs, Device: spec.DeviceID, VLAN: g.vlan, MAC: g.mac, MTU: spec.MTU,
	}
}

// giveFunctions takes the container's virtual functions back. node is nil where the node link is
// missing.
func (d *Driver) giveFunctions(spec Spec, node netlink.Link) error {
	mode, owner := spec.Mode, NodeLink(spec.ContainerID, spec.IfName)
	if node != nil {
		owner = node.Attrs().Name
		if of, _, ok := parseAlias(node.Attrs().Alias); ok {
			mode = of
		}
	}
	if mode != SRIOV {
		return nil
	}
	return d.functions.Give(owner)
}
