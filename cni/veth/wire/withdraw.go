// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/api"
	"github.com/berth-dev/berth/agent/fault"
	"github.com/berth-dev/berth/cni/netfilter"
)

// Withdraw stops the node from answering for the container's addresses, and removes
// their routes and rules. The pair stays, down. An address that another link of this
// node carries keeps its answer and the other link's routes and rules.
func (w *Wirer) Withdraw(spec Spec) error {
	host, err := linkOrNil(spec.HostLink())
	if err != nil {
		return err
	}
	if host == nil {
		// The kernel removed the routes with the link.
		return w.withdrawAddresses(spec.Addresses, spec.HostLink(), 0)
	}
	err = w.withdrawAddresses(spec.Addresses, spec.HostLink(), host.Attrs().Index)
	if e := netlink.LinkSetDown(host); e != nil && !isGone(e) {
		err = errors.Join(err, fmt.Errorf("set link %s down: %w", spec.HostLink(), e))
	}
	return err
}

// withdrawAddresses withdraws the addresses given, and all that the host link has rules
// for. host is the link's index, 0 where the link no longer exists.
func (w *Wirer) withdrawAddresses(given []api.Address, link string, host int) error {
	var errs []error
	addrs := map[netip.Addr]bool{}
	for _, a := range given {
		addrs[a.Address] = true
	}
	if host != 0 {
		// A caller that lost its records passes no addresses, but the link's
		// rules have them.
		more, err := addressesOf(host)
		errs = append(errs, err)
		for _, addr := range more {
			addrs[addr] = true
		}
	}
	for addr := range addrs {
		errs = append(errs, withdrawAddress(addr, link, host))
	}
	if host != 0 {
		// An interrupted set-up leaves a table without a rule.
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			errs = append(errs, flushTables(family, func(table int) bool { return linkOfTable(table) == host }))
		}
	}
	return errors.Join(errs...)
}

// withdrawAddress removes proxy entries, route, rules and table of one address
// on the host link, and those of links that no longer exist. host is 0 where the
// host link no longer exists.
func withdrawAddress(addr netip.Addr, link string, host int) error {
	elsewhere, err := carriedElsewhere(addr, host)
	if err != nil {
		return err
	}
	if !elsewhere {
		if err := stopAnswering(addr); err != nil {
			return err
		}
		fault.Point("veth/proxy-deleted")
	}
	if err := deleteRoutes(addr, host); err != nil {
		return err
	}
	fault.Point("veth/route-deleted")
	if err := netfilter.Revoke(netfilter.Source{Link: link, Address: addr}, elsewhere); err != nil {
		return err
	}
	fault.Point("veth/source-deleted")
	return deleteRules(addr, ofLinkOrGone(host))
}

// carriedElsewhere returns whether another host link has a route to the address.
func carriedElsewhere(addr netip.Addr, host int) (bool, error) {
	routes, err := hostRoutes(addr)
	if err != nil {
		return false, err
	}
	for _, r := range routes {
		if r.LinkIndex != host && r.Protocol == Protocol {
			return true, nil
		}
	}
	return false, nil
}

// hostRoutes lists the routes to a pod of this node. Those of the overlay, to a pod of another
// node, have a gateway.
func hostRoutes(addr netip.Addr) ([]netlink.Route, error) {
	filter := &netlink.Route{Dst: IPNet(singlePrefix(addr)), Table: unix.RT_TABLE_MAIN, Protocol: Protocol}
	routes, err := netlinksafe.RouteListFiltered(familyOf(addr), filter, netlink.RT_FILTER_DST|netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return nil, fmt.Errorf("list routes to %s: %w", addr, err)
	}
	return slices.DeleteFunc(routes, func(r netlink.Route) bool { return r.Gw != nil }), nil
}

func stopAnswering(addr netip.Addr) error {
	proxies, err := listProxies()
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range proxies {
		if p.addr == addr {
			errs = append(errs, p.del())
		}
	}
	return errors.Join(errs...)
}

func deleteRoutes(addr netip.Addr, host int) error {
	routes, err := hostRoutes(addr)
	if err != nil {
		return err
	}
	for _, r := range routes {
		if r.LinkIndex != host {
			continue
		}
		if err := netlink.RouteDel(&r); err != nil && !isGone(err) {
			return fmt.Errorf("delete route to %s: %w", addr, err)
		}
	}
	return nil
}

// deleteRules removes the address's rules to the tables that match selects, and
// empties these tables.
func deleteRules(addr netip.Addr, match func(table int) (bool, error)) error {
	rules, err := podRules(familyOf(addr))
	if err != nil {
		return err
	}
	for _, r := range rules {
		if r.addr != addr {
			continue
		}
		selected, err := match(r.rule.Table)
		if err != nil {
			return err
		}
		if !selected {
			continue
		}
		// Empty the table first, because the rule leads to it.
		if err := flushTables(familyOf(addr), func(table int) bool { return table == r.rule.Table }); err != nil {
			return err
		}
		if err := netlink.RuleDel(&r.rule); err != nil && !isGone(err) {
			return fmt.Errorf("delete rule %q: %w", r.rule.String(), err)
		}
		fault.Point("veth/rule-deleted")
	}
	return nil
}

// ofLinkOrGone selects the tables of the host link and of links that no longer
// exist.
func ofLinkOrGone(host int) func(int) (bool, error) {
	return func(table int) (bool, error) {
		link := linkOfTable(table)
		if link == host {
			return true, nil
		}
		exists, err := linkExists(link)
		return !exists, err
	}
}

// ourRule is a rule that sends a pod's traffic to its table.
type ourRule struct {
	addr netip.Addr
	rule netlink.Rule
}

func podRules(family int) ([]ourRule, error) {
	rules, err := netlinksafe.RuleList(family)
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	var ours []ourRule
	for _, r := range rules {
		if r.Protocol != Protocol || r.Priority != PriorityPod || !isOurTable(r.Table) || r.Src == nil {
			continue
		}
		if addr, ok := netip.AddrFromSlice(r.Src.IP); ok {
			r.Family = family
			ours = append(ours, ourRule{addr: addr.Unmap(), rule: r})
		}
	}
	return ours, nil
}

func addressesOf(host int) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, err := podRules(family)
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			if linkOfTable(r.rule.Table) == host {
				addrs = append(addrs, r.addr)
			}
		}
	}
	return addrs, nil
}

// flushTables removes our routes from our tables that match selects.
func flushTables(family int, match func(table int) bool) error {
	filter := &netlink.Route{Table: unix.RT_TABLE_UNSPEC, Protocol: Protocol}
	routes, err := netlinksafe.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if !isOurTable(r.Table) || !match(r.Table) {
			continue
		}
		if err := netlink.RouteDel(&r); err != nil && !isGone(err) {
			return fmt.Errorf("delete route %s of table %d: %w", r.Dst, r.Table, err)
		}
		fault.Point("veth/table-deleted")
	}
	return nil
}

func linkExists(index int) (bool, error) {
	_, err := netlink.LinkByIndex(index)
	if err == nil {
		return true, nil
	}
	if isLinkNotFound(err) {
		return false, nil
	}
	return false, fmt.Errorf("find link %d: %w", index, err)
}
