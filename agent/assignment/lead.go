// SPDX-License-Identifier: Apache-2.0

package assignment

import (
	"net/netip"
	"slices"

	"github.com/berth-dev/berth/cni/egress"
	"github.com/berth-dev/berth/cni/nodeaddress"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// sharesPorts returns whether the node has, or leads to others, ports of addresses that nodes
// share.
func sharesPorts(a *v1alpha1.NodeAssignment) bool {
	return len(a.Spec.Claims) > 0 || slices.ContainsFunc(a.Spec.Addresses, func(a v1alpha1.AssignedAddress) bool { return a.Use == v1alpha1.UseEgress })
}

// leadOf reads to which other nodes the node leads packets to an address. Pure.
func leadOf(assignment *v1alpha1.NodeAssignment, a *v1alpha1.AssignedAddress, addr netip.Addr) *egress.Lead {
	l := &egress.Lead{Address: addr, Size: uint16(a.PortsPerNode), Nodes: map[uint16]netip.Addr{}} //nolint:gosec // the API server limits it
	for _, b := range a.Blocks {
		via, err := netip.ParseAddr(b.Via)
		if isOwn := b.Node == assignment.Name; err == nil && !isOwn {
			l.Nodes[uint16(b.FirstPort)] = via //nolint:gosec // likewise
		}
	}
	return l
}

// lead has the kernel lead packets to other nodes, also to addresses for which the node does not
// answer yet: that does no harm, and nothing is lost when it begins to.
func (c *Carrier) lead(all []wanted) error {
	var leads []egress.Lead
	for _, w := range all {
		s, is := w.carriage.(service)
		if !is || s.lead == nil {
			continue
		}
		uplink, err := c.Uplink()
		if err != nil {
			continue // The address has this error, too.
		}
		if s.lead.Link, err = nodeaddress.LinkFor(uplink, w.vlan); err == nil {
			leads = append(leads, *s.lead)
		}
	}
	return egress.PutLeads(leads)
}
