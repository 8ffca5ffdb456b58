// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/fault"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
)

// poolNetwork is the network that addresses of one or more pools share.
type poolNetwork struct {
	link    string
	index   int
	subnet  netip.Prefix
	gateway netip.Addr
}

// tries is how many tables are tried for a network if others use its first tables.
const tries = 16

// table returns the network's table, which differs by attempt.
func (n poolNetwork) table(attempt int) int {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %s %d", n.link, n.subnet, n.gateway, attempt))
	// Number 0 of the block is podsTable.
	const most = 1<<24 - 1
	return networkTables + 1 + int(binary.BigEndian.Uint32(sum[:])%most)
}

func (n poolNetwork) routes(table int) []netlink.Route {
	family := rtnl.FamilyOf(n.subnet.Addr())
	routes := []netlink.Route{{
		LinkIndex: n.index, Dst: rtnl.IPNet(n.subnet), Scope: rtnl.LinkScope(family), Protocol: rtnl.Protocol, Table: table, Family: family,
	}}
	if n.gateway.IsValid() {
		routes = append(routes, netlink.Route{
			LinkIndex: n.index, Dst: rtnl.IPNet(rtnl.AnyPrefix(n.subnet.Addr())), Gw: n.gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK),
			Protocol: rtnl.Protocol, Table: table, Family: family,
		})
	}
	return routes
}

func marked(rule netlink.Rule, mark uint32) netlink.Rule {
	mask := uint32(netfilter.MarkMask)
	rule.Mark, rule.Mask = mark, &mask
	return rule
}

func nodeRules(family int) []netlink.Rule {
	arrivals := marked(rtnl.NewRule(family, PriorityArrivals, unix.RT_TABLE_MAIN), netfilter.ArrivalMark)
	arrivals.SuppressPrefixlen = netip.IPv6Unspecified().BitLen() - 1
	if family == unix.AF_INET {
		arrivals.SuppressPrefixlen = netip.IPv4Unspecified().BitLen() - 1
	}
	main := marked(rtnl.NewRule(family, PriorityMain, unix.RT_TABLE_MAIN), netfilter.Mark)
	main.SuppressPrefixlen = 0
	return []netlink.Rule{rtnl.NewRule(family, PriorityPods, podsTable), arrivals, main}
}

// sourceRules are the rules that lead to a table: for packets from src, and for the look-up
// of the way back to src, for packets that arrive.
func sourceRules(src netip.Prefix, out, back, table int) []netlink.Rule {
	family := rtnl.FamilyOf(src.Addr())
	rules := []netlink.Rule{marked(rtnl.NewRule(family, out, table), netfilter.Mark), marked(rtnl.NewRule(family, back, table), netfilter.ArrivalMark)}
	rules[0].Src, rules[1].Src = rtnl.IPNet(src), rtnl.IPNet(src)
	return rules
}

func networkRules(subnet netip.Prefix, table int) []netlink.Rule {
	return sourceRules(subnet, PriorityNetwork, PriorityBackNetwork, table)
}

// addressRules are for an address that the rules of another network would catch.
func addressRules(addr netip.Addr, table int) []netlink.Rule {
	return sourceRules(rtnl.SinglePrefix(addr), PriorityAddress, PriorityBackAddress, table)
}

// routing has our rules and routes of a family in the kernel. Its methods also change them in the
// kernel.
type routing struct {
	family int
	// rules are in the kernel's order.
	rules  []netlink.Rule
	routes []route
}

func readRouting(family int) (*routing, error) {
	rules, err := rtnl.Rules(family)
	if err != nil {
		return nil, err
	}
	k := &routing{family: family, rules: rules}
	k.routes, err = ownRoutes(family)
	return k, err
}

// ownRoutes lists the routes with our protocol number, except the overlay's routes to pods of other
// nodes, which have a gateway.
func ownRoutes(family int) ([]route, error) {
	routes, err := listRoutes(family)
	return slices.DeleteFunc(routes, func(r route) bool { return r.table == unix.RT_TABLE_MAIN && r.gateway.IsValid() }), err
}

// toPod returns the address whose pod a route leads to, also for routes of package vlan.
func (r route) toPod() (netip.Addr, bool) {
	return r.dst.Addr(), (r.table == unix.RT_TABLE_MAIN || r.table == podsTable) && r.dst.IsSingleIP()
}

// links returns the links that lead to an address, also package vlan's.
func (k *routing) links(addr netip.Addr) []int {
	var all []int
	for _, r := range k.routes {
		if to, ok := r.toPod(); ok && to == addr {
			all = append(all, r.link)
		}
	}
	return all
}

func addressesByLink(routes []route) map[int][]netip.Addr {
	all := map[int][]netip.Addr{}
	for _, r := range routes {
		if addr, ok := r.toPod(); ok && !slices.Contains(all[r.link], addr) {
			all[r.link] = append(all[r.link], addr)
		}
	}
	return all
}

// tableOf returns the table of a network: the table with its routes, or a table that no other
// network has.
func (k *routing) tableOf(n poolNetwork) (int, error) {
	for attempt := range tries {
		table := n.table(attempt)
		var wanted []route
		for _, r := range n.routes(table) {
			wanted = append(wanted, routeOf(r))
		}
		if !slices.ContainsFunc(k.routes, func(r route) bool { return r.table == table && !slices.Contains(wanted, r) }) {
			return table, nil
		}
	}
	return 0, fmt.Errorf("%d routing tables, from %d on, have routes that are not of subnet %s on link %s with gateway %s; delete those routes",
		tries, n.table(0), n.subnet, n.link, n.gateway)
}

// tableFor returns the table by which the kernel routes packets from a pod's address, 0 if it is
// not ours.
func (k *routing) tableFor(addr netip.Addr) int {
	return k.lookup(addr, PriorityAddress, PriorityNetwork)
}

// tableBack is tableFor for the way back to the address.
func (k *routing) tableBack(addr netip.Addr) int {
	return k.lookup(addr, PriorityBackAddress, PriorityBackNetwork)
}

func (k *routing) lookup(addr netip.Addr, priorities ...int) int {
	for _, priority := range priorities {
		if r, ok := k.first(addr, priority); ok {
			return r.Table
		}
	}
	return 0
}

// first returns the rule of a priority by which the kernel routes packets from addr.
func (k *routing) first(addr netip.Addr, priority int) (netlink.Rule, bool) {
	for _, r := range k.rules {
		leads := func(way route) bool { return way.table == r.Table }
		if r.Priority == priority && sourceOf(r).Contains(addr) && slices.ContainsFunc(k.routes, leads) {
			return r, true
		}
	}
	return netlink.Rule{}, false
}

func (k *routing) hasRule(want netlink.Rule) bool {
	return slices.ContainsFunc(k.rules, func(r netlink.Rule) bool { return rtnl.SameRule(r, want) })
}

func (k *routing) hasRoute(want netlink.Route) bool { return slices.Contains(k.routes, routeOf(want)) }

// setup makes the routing of one address: first its way out, then its way in.
func (k *routing) setup(p hostPlan) error {
	table, err := k.tableFrom(p)
	if err != nil {
		return err
	}
	for _, r := range p.routesOut(table) {
		if err := k.addRoute(r); err != nil {
			return err
		}
		fault.Point("veth/table")
	}
	for _, r := range p.rules(table) {
		if err := k.addRule(r); err != nil {
			return err
		}
		fault.Point("veth/rule")
	}
	if err := k.leadTo(p.addr, table); err != nil {
		return err
	}
	for _, r := range p.hostRoutes {
		if err := k.addRoute(r); err != nil {
			return err
		}
		fault.Point("veth/route")
	}
	return nil
}

// leadTo makes the kernel use a table for packets from a pod's address, even if the subnet of
// another network also contains the address.
func (k *routing) leadTo(addr netip.Addr, table int) error {
	err := k.deleteRules(func(r netlink.Rule) bool {
		return isAddressRule(r) && sourceOf(r) == rtnl.SinglePrefix(addr) && r.Table != table
	})
	if err != nil {
		return err
	}
	shared, ok := k.first(addr, PriorityNetwork)
	if ok && shared.Table == table || !ok && table == unix.RT_TABLE_MAIN {
		return nil
	}
	for _, r := range addressRules(addr, table) {
		if err := k.addRule(r); err != nil {
			return err
		}
		fault.Point("veth/rule")
	}
	return nil
}

func isAddressRule(r netlink.Rule) bool {
	return r.Priority == PriorityAddress || r.Priority == PriorityBackAddress
}

func (k *routing) addRoute(r netlink.Route) error {
	if k.hasRoute(r) {
		return nil
	}
	if err := netlink.RouteReplace(&r); err != nil {
		return fmt.Errorf("add route %s on link %d to table %d: %w", r.Dst, r.LinkIndex, r.Table, err)
	}
	have := routeOf(r)
	// The kernel has replaced the route of another link.
	k.routes = slices.DeleteFunc(k.routes, func(old route) bool {
		return old.table == have.table && old.dst == have.dst && old.metric == have.metric
	})
	k.routes = append(k.routes, have)
	return nil
}

func (k *routing) addRule(rule netlink.Rule) error {
	if k.hasRule(rule) {
		return nil
	}
	if err := rtnl.AddRule(rule); err != nil {
		return err
	}
	k.rules = append(k.rules, rule)
	return nil
}

func (k *routing) deleteRoutes(match func(route) bool) error {
	var errs []error
	var kept []route
	for _, r := range k.routes {
		if !match(r) {
			kept = append(kept, r)
			continue
		}
		if err := r.del(); err != nil {
			errs, kept = append(errs, err), append(kept, r)
		}
		fault.Point("veth/route-deleted")
	}
	k.routes = kept
	return errors.Join(errs...)
}

// deleteRules removes the rules that match selects; match sees the original rules.
func (k *routing) deleteRules(match func(netlink.Rule) bool) error {
	var errs []error
	var kept []netlink.Rule
	for _, r := range k.rules {
		if !match(r) {
			kept = append(kept, r)
			continue
		}
		if err := rtnl.DeleteRule(r); err != nil {
			errs, kept = append(errs, err), append(kept, r)
		}
		fault.Point("veth/rule-deleted")
	}
	k.rules = kept
	return errors.Join(errs...)
}

// sweep removes unneeded rules, routes of tables without a rule, and advertised addresses without a
// pod. If no address is left, only the rules of PriorityUnreachable are left.
func (k *routing) sweep() error {
	carried, used := map[netip.Addr]bool{}, map[int]bool{}
	for _, r := range k.routes {
		if addr, ok := r.toPod(); ok && r.table == podsTable {
			carried[addr], used[k.tableFor(addr)] = true, true
		}
	}
	err := k.deleteRules(func(r netlink.Rule) bool {
		switch r.Priority {
		case PriorityPods, PriorityArrivals, PriorityMain:
			return len(carried) == 0
		case PriorityNetwork, PriorityBackNetwork:
			return isNetworkTable(r.Table) && !used[r.Table]
		case PriorityAddress, PriorityBackAddress:
			addr := sourceOf(r).Addr()
			shared, ok := k.first(addr, PriorityNetwork)
			return !carried[addr] || ok && shared.Table == r.Table
		}
		return false
	})
	return errors.Join(k.sweepAdvertised(), err, k.deleteRoutes(func(r route) bool {
		return isNetworkTable(r.table) && !slices.ContainsFunc(k.rules, func(rule netlink.Rule) bool { return rule.Table == r.table })
	}))
}

func isNetworkTable(table int) bool { return table&tableMask == networkTables && table != podsTable }

func sourceOf(r netlink.Rule) netip.Prefix { return rtnl.PrefixOf(r.Src) }
