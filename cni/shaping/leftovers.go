// SPDX-License-Identifier: Apache-2.0

package shaping

import (
	"fmt"
	"maps"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/cni/leftover"
	"github.com/berth-dev/berth/cni/rtnl"
)

// Leftovers lists the filters on the links of pods and the devices. They must be removed in this
// order, and before any other package removes links: while a filter leads to a missing device, the
// kernel drops the packets. Package netfilter lists the nftables table.
func Leftovers() ([]leftover.Item, error) {
	links, qdiscs, err := linksAndQdiscs()
	if err != nil {
		return nil, err
	}
	var filters, devices []leftover.Item
	for _, name := range slices.Sorted(maps.Keys(links)) {
		link := links[name]
		if IsDevice(link) {
			devices = append(devices, leftover.Item{Name: "link " + name, Remove: func() error { return rtnl.DeleteLink(link) }})
			continue
		}
		ours, err := hasFilters(link, qdiscs)
		if err != nil {
			return nil, err
		}
		if ours {
			filters = append(filters, leftover.Item{Name: "filters on link " + name, Remove: func() error { return unhook(link, qdiscs) }})
		}
	}
	return append(filters, devices...), nil
}

func hasFilters(link netlink.Link, qdiscs map[int][]netlink.Qdisc) (bool, error) {
	for _, d := range directionsOf(link, qdiscs) {
		filters, err := netlinksafe.FilterList(link, d.parent())
		if err != nil && !isGone(err) {
			return false, fmt.Errorf("list the filters of link %s: %w", link.Attrs().Name, err)
		}
		if slices.ContainsFunc(filters, func(f netlink.Filter) bool { _, ours := ourFilter(f, d); return ours }) {
			return true, nil
		}
	}
	return false, nil
}

func directionsOf(link netlink.Link, qdiscs map[int][]netlink.Qdisc) []direction {
	switch hookOf(qdiscs[link.Attrs().Index]) {
	case bothHooks:
		return []direction{ingress, egress}
	case ingressHook:
		return []direction{egress}
	default:
		return nil
	}
}

// unhook removes our filters from a link. It also removes the hook if no other filters are left:
// then the hook is ours or has no effect.
func unhook(link netlink.Link, qdiscs map[int][]netlink.Qdisc) error {
	others := 0
	for _, d := range directionsOf(link, qdiscs) {
		if err := applyHook(link, qdiscs, d, 0); err != nil {
			return err
		}
		filters, err := netlinksafe.FilterList(link, d.parent())
		if err != nil && !isGone(err) {
			return fmt.Errorf("list the filters of link %s: %w", link.Attrs().Name, err)
		}
		others += len(filters)
	}
	if others > 0 || hookOf(qdiscs[link.Attrs().Index]) != bothHooks {
		return nil
	}
	hook := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	if err := netlink.QdiscDel(hook); err != nil && !isGone(err) {
		return fmt.Errorf("remove the hook of link %s: %w", link.Attrs().Name, err)
	}
	return nil
}
