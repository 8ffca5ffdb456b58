// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"strings"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/leftover"
	"github.com/berth-dev/berth/cni/rtnl"
)

// Leftovers lists all with Berth's marks among the kernel's links, rules, routes and proxy
// entries, also of other packages, in the order in which the node stops carrying addresses.
// The pods lose their network with them.
func (w *Wirer) Leftovers() ([]leftover.Item, error) {
	items, err := advertisedLeftovers()
	if err != nil {
		return nil, err
	}
	more, err := proxyLeftovers()
	if err != nil {
		return nil, err
	}
	items = append(items, more...)
	for _, list := range []func(int) ([]leftover.Item, error){ruleLeftovers, routeLeftovers} {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			more, err := list(family)
			if err != nil {
				return nil, err
			}
			items = append(items, more...)
		}
	}
	links, err := netlinksafe.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	for _, link := range links {
		// A network card with such a name is not Berth's.
		if strings.HasPrefix(link.Attrs().Name, LinkPrefix) && link.Type() != "device" {
			items = append(items, leftover.Item{Name: "link " + link.Attrs().Name, Remove: func() error { return rtnl.DeleteLink(link) }})
		}
	}
	return items, nil
}

func proxyLeftovers() ([]leftover.Item, error) {
	var items []leftover.Item
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		proxies, err := listProxies(family)
		if err != nil {
			return nil, err
		}
		for _, p := range proxies {
			items = append(items, leftover.Item{Name: fmt.Sprintf("proxy neighbour %s on %s", p.addr, linkName(p.link)), Remove: p.del})
		}
	}
	return items, nil
}

func ruleLeftovers(family int) ([]leftover.Item, error) {
	rules, err := netlinksafe.RuleList(family)
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	var items []leftover.Item
	for _, r := range rules {
		if r.Protocol == rtnl.Protocol {
			r.Family = family
			name := fmt.Sprintf("IPv%d %s", version(family), strings.TrimSpace(strings.TrimPrefix(r.String(), "ip ")))
			items = append(items, leftover.Item{Name: name, Remove: func() error { return rtnl.DeleteRule(r) }})
		}
	}
	return items, nil
}

func routeLeftovers(family int) ([]leftover.Item, error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_UNSPEC, Protocol: rtnl.Protocol}
	routes, err := netlinksafe.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var items []leftover.Item
	for _, r := range routes {
		if r.Table == AdvertisedTable {
			continue // it comes first
		}
		name := fmt.Sprintf("route %s on %s of table %d", r.Dst, linkName(r.LinkIndex), r.Table)
		items = append(items, leftover.Item{Name: name, Remove: func() error { return rtnl.DeleteRoute(r) }})
	}
	return items, nil
}

func version(family int) int {
	if family == unix.AF_INET {
		return 4
	}
	return 6
}

// linkName returns the name of a link for messages.
func linkName(index int) string {
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return fmt.Sprintf("link %d", index)
	}
	return link.Attrs().Name
}
