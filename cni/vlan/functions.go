// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/cni/sriov"
)

func wishOf(spec Spec, g segment) sriov.Wish {
	return sriov.Wish{
		Owner: NodeLink(spec.ContainerID, spec.IfName), IfName: g.ifName, NetNS: spec.NetNS,
		PFs: spec.Cards(spec.Uplink), Device: spec.DeviceID, VLAN: g.vlan, MAC: g.mac, MTU: spec.MTU,
	}
}

// checkFunction returns ErrNotWired if the container lacks its function or an attribute of it. A
// closed function may lack attributes while the uplink has no carrier.
func (d *Driver) checkFunction(w sriov.Wish) error {
	if closed, err := d.functions.IsClosed(w); err != nil || closed {
		return err
	}
	err := d.functions.Check(w)
	if errors.Is(err, sriov.ErrNotGiven) {
		err = fmt.Errorf("%w: %w", ErrNotWired, err)
	}
	return err
}

// giveFunctions takes the container's virtual functions back. node is nil if the node link is
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
