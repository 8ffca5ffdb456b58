// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/fault"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// Withdraw stops the container from using its addresses at once: it deletes the container's
// interfaces in the pools' networks, and the node's routes to it. The node link stays, but is down.
// Withdraw needs neither the path of the container's namespace nor a record of its interfaces.
func (d *Driver) Withdraw(spec Spec) error {
	if spec.Mode == Pure {
		return d.wirer.Withdraw(spec.Spec)
	}
	node, err := rtnl.LinkOrNil(NodeLink(spec.ContainerID, spec.IfName))
	if err != nil {
		return err
	}
	errs := []error{d.deleteInterfaces(spec, node), d.forgetClosed(spec)}
	fault.Point("vlan/interfaces-deleted")
	errs = append(errs, d.withdrawNode(spec, node))
	if node != nil {
		errs = append(errs, rtnl.SetDown(node))
	}
	return errors.Join(errs...)
}

// Teardown withdraws the container's addresses, and removes the node link, and the VLAN links and
// bridges that no other container uses. It succeeds if pieces are missing.
func (d *Driver) Teardown(spec Spec) error {
	if spec.Mode == Pure {
		return errors.Join(d.wirer.Teardown(spec.Spec), d.sweep())
	}
	err := d.Withdraw(spec)
	fault.Point("vlan/withdrawn")
	return errors.Join(err, wire.DeleteEnd(NodeLink(spec.ContainerID, spec.IfName)), sweepLowers(), sweepGuards(), d.sweep())
}

// deleteInterfaces deletes the container's interfaces in the pools' networks. node is nil if the
// node link is missing.
func (d *Driver) deleteInterfaces(spec Spec, node netlink.Link) error {
	uses, ports := usesOfNode(spec, node), portsOf(spec, node)
	errs := []error{d.giveFunctions(spec, node)}
	for _, name := range ports {
		port, err := rtnl.LinkOrNil(name)
		if err == nil && port != nil {
			err = rtnl.DeleteLink(port)
		}
		errs = append(errs, err)
	}
	if len(uses) == 0 {
		return errors.Join(errs...)
	}
	lowers := map[string]int{}
	for _, u := range uses {
		lower, err := rtnl.LinkOrNil(u.lower)
		errs = append(errs, err)
		if lower != nil {
			lowers[u.lower] = lower.Attrs().Index
		}
	}
	if node != nil && node.Attrs().NetNsID >= 0 {
		links, err := rtnl.LinksIn(node.Attrs().NetNsID)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		for _, l := range interfacesOf(links, uses, lowers) {
			errs = append(errs, deleteIn(node.Attrs().NetNsID, l))
		}
		return errors.Join(errs...)
	}
	// Without a node link the namespace is found only by its path. Without a path, too, no namespace
	// that had both is left.
	netns, err := rtnl.FindNS(spec.NetNS)
	if err != nil || netns == nil {
		return errors.Join(append(errs, err)...)
	}
	defer netns.Close()
	err = netns.Do(func(ns.NetNS) error {
		links, err := rtnl.Links()
		if err != nil {
			return err
		}
		var errs []error
		for _, l := range interfacesOf(links, uses, lowers) {
			errs = append(errs, rtnl.DeleteLink(l))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		errs = append(errs, fmt.Errorf("delete the interfaces in %s: %w", spec.NetNS, err))
	}
	return errors.Join(errs...)
}

// usesOfNode returns the container's macvlan or ipvlan interfaces by the alias of the node link or,
// if the node link is missing, by spec.
func usesOfNode(spec Spec, node netlink.Link) []use {
	if node != nil {
		if mode, uses, ok := parseAlias(node.Attrs().Alias); ok {
			if mode != Macvlan && mode != IPvlan {
				return nil
			}
			return uses
		}
	}
	if spec.Mode != Macvlan && spec.Mode != IPvlan {
		return nil
	}
	uplink, err := rtnl.LinkOrNil(spec.Uplink)
	if err != nil || uplink == nil {
		return nil
	}
	var uses []use
	for _, g := range spec.segments() {
		lower := uplink
		if g.vlan != 0 {
			if lower, err = rtnl.VLANLink(uplink, g.vlan); err != nil || lower == nil {
				continue
			}
		}
		uses = append(uses, use{g.ifName, lower.Attrs().Name})
	}
	return uses
}

func portsOf(spec Spec, node netlink.Link) []string {
	var names []string
	if spec.Mode == Bridge {
		for _, g := range spec.segments() {
			names = append(names, portOf(spec.ContainerID, g.ifName))
		}
	}
	if node == nil {
		return names
	}
	links, err := netlinksafe.LinkList()
	if err != nil {
		return names
	}
	for _, l := range links {
		if isPortOf(l, node.Attrs().Name) && !slices.Contains(names, l.Attrs().Name) {
			names = append(names, l.Attrs().Name)
		}
	}
	return names
}

func isPortOf(link netlink.Link, node string) bool {
	return strings.HasPrefix(link.Attrs().Name, portPrefix) && link.Attrs().Alias == aliasPrefix+"port of "+node
}

func interfacesOf(links []netlink.Link, uses []use, lowers map[string]int) []netlink.Link {
	var all []netlink.Link
	for _, u := range uses {
		lower, ok := lowers[u.lower]
		if !ok {
			// The kernel has deleted them with the lower link.
			continue
		}
		others := slices.DeleteFunc(slices.Clone(uses), func(o use) bool { return o == u })
		all = append(all, onLower(links, u, lower, others)...)
	}
	return all
}

// withdrawNode removes the node's routes, rules, addresses and answers for the container. node is
// nil if the node link is missing.
func (d *Driver) withdrawNode(spec Spec, node netlink.Link) error {
	index, name := 0, NodeLink(spec.ContainerID, spec.IfName)
	addrs := map[netip.Addr]bool{}
	for _, a := range spec.Addresses {
		addrs[a.Address] = true
	}
	if node != nil {
		index, name = node.Attrs().Index, node.Attrs().Name
		have, err := wire.Routed()
		if err != nil {
			return err
		}
		for _, a := range have[index] {
			addrs[a] = true
		}
	}
	var errs []error
	for addr := range addrs {
		errs = append(errs, withdrawAddress(addr, name, index))
	}
	if node != nil {
		all, err := wire.NodeEnd{}.Add(node)
		errs = append(errs, err, wire.DeleteAddresses(node, all))
		errs = append(errs, deleteTables(func(table int) bool { return nodeOfTable(table) == index }))
	}
	return errors.Join(errs...)
}

// stopUnlessElsewhere removes the node's answers for an address unless another link of the node
// than the one with the index has a route to it.
func stopUnlessElsewhere(addr netip.Addr, index int) error {
	routes, err := hostRoutes(addr)
	if err != nil || isElsewhere(routes, index) {
		return err
	}
	return wire.StopAnswering(addr)
}

func isElsewhere(routes []netlink.Route, index int) bool {
	return slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.LinkIndex != index })
}

// withdrawAddress removes the node's route to an address through the node link, and its
// answers unless another link of the node has a route to the address.
func withdrawAddress(addr netip.Addr, link string, index int) error {
	routes, err := hostRoutes(addr)
	if err != nil {
		return err
	}
	elsewhere := isElsewhere(routes, index)
	if !elsewhere {
		if err := wire.StopAnswering(addr); err != nil {
			return err
		}
		fault.Point("vlan/answer-deleted")
	}
	for _, r := range routes {
		if r.LinkIndex != index {
			continue
		}
		if err := rtnl.DeleteRoute(r); err != nil {
			return err
		}
	}
	fault.Point("vlan/route-deleted")
	return netfilter.Revoke(netfilter.Source{Link: link, Address: addr}, elsewhere)
}

// hostRoutes lists Berth's routes from this node to a container in the main table. A route
// with a gateway leads to another node, over the overlay.
func hostRoutes(addr netip.Addr) ([]netlink.Route, error) {
	filter := &netlink.Route{Dst: rtnl.IPNet(rtnl.SinglePrefix(addr)), Table: unix.RT_TABLE_MAIN, Protocol: rtnl.Protocol}
	routes, err := netlinksafe.RouteListFiltered(rtnl.FamilyOf(addr), filter, netlink.RT_FILTER_DST|netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return nil, fmt.Errorf("list routes to %s: %w", addr, err)
	}
	return slices.DeleteFunc(routes, func(r netlink.Route) bool { return r.Gw != nil || r.Via != nil }), nil
}

// deleteTables removes the rules and routes of our tables that match selects.
func deleteTables(match func(table int) bool) error {
	var errs []error
	for _, family := range rtnl.Families {
		rules, err := ownRules(family)
		if err != nil {
			return err
		}
		// Rules to the main table go first, because without the others they would not be found.
		kept := map[netip.Prefix]bool{}
		for _, r := range rules {
			if isOurTable(r.Table) && !match(r.Table) {
				kept[rtnl.PrefixOf(r.Src)] = true
			}
		}
		for _, r := range rules {
			if r.Table == unix.RT_TABLE_MAIN && !kept[rtnl.PrefixOf(r.Src)] {
				errs = append(errs, rtnl.DeleteRule(r))
			}
		}
		for _, r := range rules {
			if isOurTable(r.Table) && match(r.Table) {
				errs = append(errs, rtnl.DeleteRule(r))
			}
		}
		filter := &netlink.Route{Table: unix.RT_TABLE_UNSPEC, Protocol: rtnl.Protocol}
		routes, err := netlinksafe.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			return fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			if !isOurTable(r.Table) || !match(r.Table) {
				continue
			}
			errs = append(errs, rtnl.DeleteRoute(r))
		}
	}
	return errors.Join(errs...)
}

func isOurTable(table int) bool { return table&tableMask == tableBase }

// nodeOfTable returns the index of a table's node link.
func nodeOfTable(table int) int { return table &^ tableMask / wire.MaxAddresses }
