// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/api"
	"github.com/berth-dev/berth/cni/veth/wire"
)

const (
	// tableBase begins our routing tables. On the node one is for an address of a node
	// link, in a container for an address whose gateway is not that of the default route.
	tableBase = 0x66000000
	tableMask = 0xff000000
	// priority is that of the rules to these tables, before those of package wire, and
	// priorityNode that of a container's rules for packets to its node, before them.
	priority     = 32280
	priorityNode = 32279
)

// routePlan describes routes and rules of one namespace.
type routePlan struct {
	// routes are in the order in which they need each other.
	routes []netlink.Route
	rules  []netlink.Rule
}

// planPod computes the routes of a container: through the gateway of its pools or, where the
// node routes for it, to its link. links has the index of each segment's interface.
//
// For each family the default route goes through the gateway of the first address with one.
// An address with another gateway, or of another segment, has a table with its own way
// out, which its packets take unless they are for the node.
func planPod(spec Spec, segments []segment, links []int, backs []back) routePlan {
	var plan routePlan
	for _, is4 := range []bool{true, false} {
		chosen := false
		var first api.Address
		var firstLink int
		position := 0
		for i, g := range segments {
			for _, a := range g.addrs {
				if a.Address.Is4() != is4 {
					continue
				}
				position++
				if spec.routed() {
					if !chosen {
						plan.routes = append(plan.routes, toLink(a, links[i], anyPrefix(a.Address), unix.RT_TABLE_MAIN))
						chosen, first, firstLink = true, a, links[i]
					} else if links[i] != firstLink {
						plan.add(a, tableBase+position, toLink(a, links[i], anyPrefix(a.Address), tableBase+position))
					}
					continue
				}
				if !a.Gateway.IsValid() {
					continue
				}
				switch {
				case !chosen:
					plan.routes = append(plan.routes, viaGateway(a, links[i], unix.RT_TABLE_MAIN))
					chosen, first, firstLink = true, a, links[i]
				case a.Gateway != first.Gateway || links[i] != firstLink:
					plan.add(a, tableBase+position,
						toLink(a, links[i], a.Subnet.Masked(), tableBase+position), viaGateway(a, links[i], tableBase+position))
				}
			}
		}
	}
	if len(plan.rules) > 0 {
		for _, b := range backs {
			rule := *netlink.NewRule()
			rule.Family, rule.Priority, rule.Table, rule.Protocol = familyOf(b.node), priorityNode, unix.RT_TABLE_MAIN, wire.Protocol
			rule.Dst = wire.IPNet(singlePrefix(b.node))
			plan.rules = append(plan.rules, rule)
		}
	}
	return plan
}

// add gives the packets from an address a table.
func (p *routePlan) add(a api.Address, table int, routes ...netlink.Route) {
	p.routes = append(p.routes, routes...)
	p.rules = append(p.rules, fromRule(a.Address, table))
}

// planRouted computes the node's routes for the packets that the address's container sends
// through an ipvlan link in mode l3 or l3s. node is the index of the node link, lower that of
// the link that the container's is on. In mode l3 they take the gateway, also to addresses of
// the subnet: other nodes answer for none of these.
func planRouted(spec Spec, a api.Address, position, node, lower int) routePlan {
	table := tableOf(node, position)
	plan := routePlan{rules: []netlink.Rule{fromRule(a.Address, table)}}
	if spec.answers() || !a.Gateway.IsValid() {
		subnet := toLink(a, lower, a.Subnet.Masked(), table)
		subnet.Src, subnet.Protocol = nil, wire.Protocol
		plan.routes = append(plan.routes, subnet)
	}
	if a.Gateway.IsValid() {
		way := viaGateway(a, lower, table)
		way.Src, way.Protocol = nil, wire.Protocol
		plan.routes = append(plan.routes, way)
	}
	return plan
}

// tableOf returns the table of an address of a node link. Indexes beyond two million
// share tables, which no node reaches.
func tableOf(node, position int) int {
	return tableBase + (node*wire.MaxAddresses+position)&^tableMask
}

// viaGateway is a default route through the pool's gateway.
func viaGateway(a api.Address, link, table int) netlink.Route {
	r := toLink(a, link, anyPrefix(a.Address), table)
	r.Gw, r.Flags, r.Scope = a.Gateway.AsSlice(), int(netlink.FLAG_ONLINK), netlink.SCOPE_UNIVERSE
	return r
}

// toLink is a route to a network on the link, from the address.
func toLink(a api.Address, link int, to netip.Prefix, table int) netlink.Route {
	r := netlink.Route{LinkIndex: link, Dst: wire.IPNet(to), Src: a.Address.AsSlice(), Table: table, Family: familyOf(a.Address)}
	if a.Address.Is4() {
		r.Scope = netlink.SCOPE_LINK
	}
	return r
}

func fromRule(addr netip.Addr, table int) netlink.Rule {
	rule := *netlink.NewRule()
	rule.Family, rule.Priority, rule.Table, rule.Protocol = familyOf(addr), priority, table, wire.Protocol
	rule.Src = wire.IPNet(singlePrefix(addr))
	return rule
}

// planNode computes the node's route to the address through the node link, and the
// container's route back; node is the node's own address, the zero Addr where it has none of
// the family.
func planNode(a api.Address, link int, node netip.Addr) netlink.Route {
	r := netlink.Route{LinkIndex: link, Dst: wire.IPNet(singlePrefix(a.Address)), Table: unix.RT_TABLE_MAIN, Protocol: wire.Protocol, Family: familyOf(a.Address)}
	if a.Address.Is4() {
		r.Scope = netlink.SCOPE_LINK
	}
	if node.IsValid() {
		r.Src = node.AsSlice()
	}
	return r
}

// planBack computes the container's route to its node: source is its first address of the
// family.
func planBack(node netip.Addr, link int, source netip.Addr) netlink.Route {
	r := netlink.Route{LinkIndex: link, Dst: wire.IPNet(singlePrefix(node)), Src: source.AsSlice(), Table: unix.RT_TABLE_MAIN, Family: familyOf(node)}
	if node.Is4() {
		r.Scope = netlink.SCOPE_LINK
	}
	return r
}

// planAddress computes an address of the container's interface. Where the node routes for
// it, no network is on the link.
func planAddress(spec Spec, a api.Address) netlink.Addr {
	prefix := netip.PrefixFrom(a.Address, a.Subnet.Bits())
	if spec.routed() {
		prefix = singlePrefix(a.Address)
	}
	addr := netlink.Addr{IPNet: wire.IPNet(prefix)}
	if a.Address.Is6() {
		// The FloatingIP proves that no other pod has the address, so duplicate
		// address detection would only delay the pod by a second.
		addr.Flags = unix.IFA_F_NODAD
	}
	return addr
}

// firstOf returns the container's first address of the family of addr.
func firstOf(addrs []api.Address, addr netip.Addr) (netip.Addr, bool) {
	i := slices.IndexFunc(addrs, func(a api.Address) bool { return a.Address.Is4() == addr.Is4() })
	if i < 0 {
		return netip.Addr{}, false
	}
	return addrs[i].Address, true
}

func familyOf(addr netip.Addr) int {
	if addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func singlePrefix(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, addr.BitLen()) }

func anyPrefix(addr netip.Addr) netip.Prefix {
	if addr.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}
