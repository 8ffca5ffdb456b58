// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
)

const (
	// tableBase begins our routing tables. On the node a table is for an address of a node link, in a
	// container for an address with another gateway than the default route.
	tableBase = 0x66000000
	tableMask = 0xff000000
	// A container's rules to these tables have priority. Before them, its rules for the routes of its
	// node link have priorityNode: they use only routes of the main table by links outside of the
	// default group.
	priority     = 32280
	priorityNode = 32279
	// nodeLinkGroup is the group of a container's end of its node link.
	nodeLinkGroup = rtnl.Protocol
	// The node's rules, before package wire's: for packets that a container sends and, if the node
	// translated their destination, the main table without its default route, and the address's table.
	prioritySent       = 32281
	priorityMain       = 32282
	priorityTranslated = 32283
	// priorityBack is the priority of the node's rule for the way back from an address, for the
	// look-up of reverse path filtering for ARP requests for the address.
	priorityBack = 32284
	// loopback is the incoming link in rules for packets that the node itself sends.
	loopback = "lo"
)

type routePlan struct{ wire.Plan }

// planPod computes the routes of a container: through the gateway of its pools or, if the node
// routes for it, to its link. links has the index of each segment's interface, and inside is the
// index of the node link. The container reaches Services by its node, which translates their
// addresses.
//
// For each family the default route goes through the gateway of the first address with a gateway.
// An address with another gateway, or of another segment, has a table with its own way out, which
// its packets take unless they are for the node.
func planPod(spec Spec, segments []segment, links []int, inside int, end wire.NodeEnd) routePlan {
	var plan routePlan
	for _, is4 := range []bool{true, false} {
		position := 0
		var first *hop
		for i, g := range segments {
			for _, a := range g.addrs {
				if a.Address.Is4() != is4 {
					continue
				}
				position++
				if here := (hop{a, links[i]}); spec.routed() {
					first = plan.addRouted(first, here, tableBase+position)
				} else if a.Gateway.IsValid() {
					first = plan.addGateway(first, here, tableBase+position)
				}
			}
		}
	}
	several := len(plan.Rules) > 0
	for _, b := range end {
		for _, p := range spec.Services {
			if p.Addr().Is4() == b.Addr.Is4() && !spec.routed() {
				plan.Routes = append(plan.Routes, viaNode(b, inside, p))
			}
		}
		if several {
			rule := rtnl.NewRule(rtnl.FamilyOf(b.Addr), priorityNode, unix.RT_TABLE_MAIN)
			rule.SuppressIfgroup = 0
			plan.Rules = append(plan.Rules, rule)
		}
	}
	return plan
}

func viaNode(b wire.EndAddress, inside int, to netip.Prefix) netlink.Route {
	r := toLink(b.Source, inside, to, unix.RT_TABLE_MAIN)
	r.Scope, r.Gw = netlink.SCOPE_UNIVERSE, b.Addr.AsSlice()
	return r
}

// hop is an address and the index of the pod's link with it.
type hop struct {
	api.Address
	link int
}

// addRouted adds the routes of an address whose link leads to a router, and returns the hop of the
// default route: the first.
func (p *routePlan) addRouted(first *hop, here hop, table int) *hop {
	if first == nil {
		p.Routes = append(p.Routes, toLink(here.Address.Address, here.link, rtnl.AnyPrefix(here.Address.Address), unix.RT_TABLE_MAIN))
		return &here
	}
	if here.link != first.link {
		p.add(here.Address, table, toLink(here.Address.Address, here.link, rtnl.AnyPrefix(here.Address.Address), table))
	}
	return first
}

// addGateway is addRouted for an address whose packets go to a gateway.
func (p *routePlan) addGateway(first *hop, here hop, table int) *hop {
	if first == nil {
		p.Routes = append(p.Routes, viaGateway(here.Address, here.link, unix.RT_TABLE_MAIN))
		return &here
	}
	if here.Gateway != first.Gateway || here.link != first.link {
		p.add(here.Address, table, toLink(here.Address.Address, here.link, here.Subnet.Masked(), table), viaGateway(here.Address, here.link, table))
	}
	return first
}

func (p *routePlan) add(a api.Address, table int, routes ...netlink.Route) {
	p.Routes = append(p.Routes, routes...)
	p.Rules = append(p.Rules, fromRule(a.Address, table))
}

// planRouted computes the node's routes for the packets that the address's container sends through
// an ipvlan link in mode l3 or l3s. node is the index of the node link, lower is the link below the
// container's. In mode l3 they use the gateway even to addresses of the subnet, because nobody
// answers for pods' addresses there.
//
// All rules except priorityBack's are for packets that the node itself sends; the kernel counts the
// packets of ipvlan links as such (doc.go explains this). The rule to the main table comes after
// the rules to the address's table, because it does not show itself to which address it belongs.
func planRouted(spec Spec, a api.Address, position, node int, lower netlink.LinkAttrs) routePlan {
	table := tableOf(node, position)
	sent, translated, main := fromRule(a.Address, table), fromRule(a.Address, table), fromRule(a.Address, unix.RT_TABLE_MAIN)
	sent.Priority, sent.OifName = prioritySent, lower.Name
	translated.Priority = priorityTranslated
	main.Priority, main.SuppressPrefixlen = priorityMain, 0
	plan := routePlan{wire.Plan{Rules: []netlink.Rule{sent, translated, main}}}
	for i := range plan.Rules {
		plan.Rules[i].IifName = loopback
	}
	if spec.answers() && a.Address.Is4() {
		mask, back := uint32(netfilter.MarkMask), fromRule(a.Address, table)
		back.Priority, back.Mark, back.Mask = priorityBack, netfilter.ArrivalMark, &mask
		plan.Rules = append(plan.Rules, back)
	}
	if spec.answers() || !a.Gateway.IsValid() {
		subnet := toLink(a.Address, lower.Index, a.Subnet.Masked(), table)
		subnet.Src, subnet.Protocol = nil, rtnl.Protocol
		plan.Routes = append(plan.Routes, subnet)
	}
	if a.Gateway.IsValid() {
		way := viaGateway(a, lower.Index, table)
		way.Src, way.Protocol = nil, rtnl.Protocol
		plan.Routes = append(plan.Routes, way)
	}
	return plan
}

// tableOf returns the table of an address of a node link. Indexes beyond two million
// share tables, which no node reaches.
func tableOf(node, position int) int {
	return tableBase + (node*wire.MaxAddresses+position)&^tableMask
}

func viaGateway(a api.Address, link, table int) netlink.Route {
	r := toLink(a.Address, link, rtnl.AnyPrefix(a.Address), table)
	r.Gw, r.Flags, r.Scope = a.Gateway.AsSlice(), int(netlink.FLAG_ONLINK), netlink.SCOPE_UNIVERSE
	return r
}

func toLink(from netip.Addr, link int, to netip.Prefix, table int) netlink.Route {
	family := rtnl.FamilyOf(to.Addr())
	return netlink.Route{LinkIndex: link, Dst: rtnl.IPNet(to), Src: from.AsSlice(), Table: table, Family: family, Scope: rtnl.LinkScope(family)}
}

func fromRule(addr netip.Addr, table int) netlink.Rule {
	rule := rtnl.NewRule(rtnl.FamilyOf(addr), priority, table)
	rule.Src = rtnl.IPNet(rtnl.SinglePrefix(addr))
	return rule
}

// planNode computes the node's neighbour and route to the address through the node link; own is the
// node's own address, the zero Addr if it has none of the family.
func planNode(spec Spec, a api.Address, node netlink.Link, own netip.Addr) wire.Plan {
	r := toLink(own, node.Attrs().Index, rtnl.SinglePrefix(a.Address), unix.RT_TABLE_MAIN)
	r.Protocol = rtnl.Protocol
	return wire.Plan{Neighs: []netlink.Neigh{rtnl.Neigh(node.Attrs().Index, a.Address, nodeLinkMAC(spec))}, Routes: []netlink.Route{r}}
}

// planBack computes the container's routes to the addresses of its node, in the order in which they
// need each other.
func planBack(b wire.EndAddress, link int) []netlink.Route {
	all := []netlink.Route{toLink(b.Source, link, rtnl.SinglePrefix(b.Addr), unix.RT_TABLE_MAIN)}
	for _, a := range b.Others {
		all = append(all, viaNode(b, link, rtnl.SinglePrefix(a)))
	}
	for i := range all {
		all[i].Protocol = rtnl.Protocol
	}
	return all
}

func planAddresses(spec Spec, g segment) (plan wire.Plan) {
	for _, a := range g.addrs {
		plan.Addrs = append(plan.Addrs, planAddress(spec, a))
	}
	return plan
}

// planAddress computes an address of the container's interface. If the node routes for it, no
// network is on the link.
func planAddress(spec Spec, a api.Address) netlink.Addr {
	prefix := netip.PrefixFrom(a.Address, a.Subnet.Bits())
	if spec.routed() {
		prefix = rtnl.SinglePrefix(a.Address)
	}
	return wire.PodAddress(prefix)
}
