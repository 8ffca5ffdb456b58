// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
)

// apply makes the overlay's entries in the kernel equal to the plan, one by one, and returns the
// number of changes. Neighbours come before the routes that need them.
func apply(w ways, p plan) (changed int, err error) {
	var errs []error
	note := func(n int, err error) {
		changed += n
		errs = append(errs, err)
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		link := w.link4
		if family == unix.AF_INET6 {
			link = w.link6
		}
		if w.vtep && link != 0 {
			note(applyNeighs(link, family, p.neighs))
			note(applyNeighs(link, unix.AF_BRIDGE, p.neighs))
		}
		note(applyRoutes(w, family, p.routes))
	}
	return changed, errors.Join(errs...)
}

func applyRoutes(w ways, family int, want []netlink.Route) (changed int, err error) {
	have, err := overlayRoutes(w, family)
	if err != nil {
		return 0, err
	}
	var errs []error
	present := map[string]netlink.Route{}
	for _, r := range have {
		present[keyOf(r)] = r
	}
	for _, r := range want {
		if r.Family != family {
			continue
		}
		key := keyOf(r)
		old, ok := present[key]
		delete(present, key)
		if ok && old.LinkIndex == r.LinkIndex && old.Gw.Equal(r.Gw) && old.Protocol == r.Protocol && old.Type == max(r.Type, unix.RTN_UNICAST) {
			continue
		}
		if err := netlink.RouteReplace(&r); err != nil {
			errs = append(errs, fmt.Errorf("make the route to %s via %s: %w", r.Dst, r.Gw, err))
			continue
		}
		changed++
	}
	for _, r := range present {
		if err := netlink.RouteDel(&r); err != nil && !rtnl.IsGone(err) {
			errs = append(errs, fmt.Errorf("delete the route to %s via %s, which leads to no node: %w", r.Dst, r.Gw, err))
			continue
		}
		changed++
	}
	return changed, errors.Join(errs...)
}

func keyOf(r netlink.Route) string {
	metric := r.Priority
	if r.Family == unix.AF_INET6 && metric == 0 {
		metric = 1024 // the kernel's default
	}
	return fmt.Sprintf("%s %d", r.Dst, metric)
}

// overlayRoutes lists the overlay's routes in the main table: routes with our protocol that have a
// gateway or are unreachable, and all routes with a gateway on a VTEP, also flannel's.
func overlayRoutes(w ways, family int) ([]netlink.Route, error) {
	ours, err := netlinksafe.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var all []netlink.Route
	for _, r := range ours {
		onVTEP := w.vtep && r.LinkIndex != 0 && (r.LinkIndex == w.link4 || r.LinkIndex == w.link6)
		if (r.Gw != nil || r.Type == unix.RTN_UNREACHABLE) && r.Dst != nil && (r.Protocol == rtnl.Protocol || onVTEP) {
			r.Family = family
			all = append(all, r)
		}
	}
	return all, nil
}

// applyNeighs does the same for the neighbours of a VTEP in one family.
func applyNeighs(link, family int, want []netlink.Neigh) (changed int, err error) {
	have, err := permanentNeighs(link, family)
	if err != nil {
		return 0, err
	}
	same := func(a, b netlink.Neigh) bool {
		return a.IP.Equal(b.IP) && bytes.Equal(a.HardwareAddr, b.HardwareAddr)
	}
	var errs []error
	for _, w := range want {
		if w.LinkIndex != link || w.Family != family {
			continue
		}
		before := len(have)
		if have = slices.DeleteFunc(have, func(h netlink.Neigh) bool { return same(h, w) }); len(have) < before {
			continue
		}
		if err := netlink.NeighSet(&w); err != nil {
			errs = append(errs, fmt.Errorf("make the entry %s %s of the VTEP: %w", w.IP, w.HardwareAddr, err))
			continue
		}
		changed++
	}
	for _, h := range have {
		if replaced(h, family, want) {
			continue
		}
		if err := netlink.NeighDel(&h); err != nil && !rtnl.IsGone(err) {
			errs = append(errs, fmt.Errorf("delete the entry %s %s of the VTEP, which leads to no node: %w", h.IP, h.HardwareAddr, err))
			continue
		}
		changed++
	}
	return changed, errors.Join(errs...)
}

// replaced reports whether a wanted entry has replaced h: a neighbour with the same address, or a
// forwarding entry with the same MAC.
func replaced(h netlink.Neigh, family int, want []netlink.Neigh) bool {
	return slices.ContainsFunc(want, func(w netlink.Neigh) bool {
		takesPlace := bytes.Equal(w.HardwareAddr, h.HardwareAddr)
		if family != unix.AF_BRIDGE {
			takesPlace = w.IP.Equal(h.IP)
		}
		return takesPlace && w.Family == family && w.LinkIndex == h.LinkIndex
	})
}

func permanentNeighs(link, family int) ([]netlink.Neigh, error) {
	listed, err := rtnl.Neighbors(link, family)
	if err != nil {
		return nil, err
	}
	var all []netlink.Neigh
	for _, n := range listed {
		if n.LinkIndex != link || n.State&netlink.NUD_PERMANENT == 0 || len(n.HardwareAddr) != 6 || n.HardwareAddr[0]&1 != 0 {
			continue
		}
		n.Family = family
		if family == unix.AF_BRIDGE {
			n.Flags = netlink.NTF_SELF
		}
		all = append(all, n)
	}
	return all, nil
}

func isUp(link netlink.Link) bool { return link.Attrs().Flags&net.FlagUp != 0 }
