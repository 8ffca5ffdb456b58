// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/leftover"
	"github.com/berth-dev/berth/cni/rtnl"
)

// Leftovers lists the kernel's links, rules, routes and proxy entries with Berth's marks, also of
// other packages, in the order in which the node stops carrying addresses. Pods lose their network
// when they are removed.
func (w *Wirer) Leftovers() ([]leftover.Item, error) {
	var items []leftover.Item
	advertised := func(r route) bool { return r.table == AdvertisedTable }
	for _, list := range []func(int) ([]leftover.Item, error){
		func(family int) ([]leftover.Item, error) { return routeLeftovers(family, advertised) }, proxyLeftovers, ruleLeftovers,
		func(family int) ([]leftover.Item, error) {
			return routeLeftovers(family, func(r route) bool { return !advertised(r) })
		},
	} {
		for _, family := range rtnl.Families {
			more, err := list(family)
			if err != nil {
				return nil, err
			}
			items = append(items, more...)
		}
	}
	links, err := rtnl.Links()
	if err != nil {
		return nil, err
	}
	for _, link := range links {
		// A network card with such a name is not Berth's.
		if strings.HasPrefix(link.Attrs().Name, LinkPrefix) && link.Type() != "device" {
			items = append(items, leftover.Item{Name: "link " + link.Attrs().Name, Remove: func() error { return rtnl.DeleteLink(link) }})
		}
	}
	return items, nil
}

func proxyLeftovers(family int) ([]leftover.Item, error) {
	proxies, err := listProxies(family)
	var items []leftover.Item
	for _, p := range proxies {
		items = append(items, leftover.Item{Name: fmt.Sprintf("proxy neighbour %s on %s", p.addr, linkName(p.link)), Remove: p.del})
	}
	return items, err
}

func ruleLeftovers(family int) ([]leftover.Item, error) {
	rules, err := rtnl.Rules(family)
	var items []leftover.Item
	for _, r := range rules {
		name := fmt.Sprintf("IPv%d %s", version(family), strings.TrimSpace(strings.TrimPrefix(r.String(), "ip ")))
		items = append(items, leftover.Item{Name: name, Remove: func() error { return rtnl.DeleteRule(r) }})
	}
	return items, err
}

func routeLeftovers(family int, match func(route) bool) ([]leftover.Item, error) {
	routes, err := listRoutes(family)
	var items []leftover.Item
	for _, r := range routes {
		if match(r) {
			items = append(items, leftover.Item{Name: fmt.Sprintf("route %s on %s of table %d", r.dst, linkName(r.link), r.table), Remove: r.del})
		}
	}
	return items, err
}

func version(family int) int {
	if family == unix.AF_INET {
		return 4
	}
	return 6
}

func linkName(index int) string {
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return fmt.Sprintf("link %d", index)
	}
	return link.Attrs().Name
}
