// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/agent/api"
)

// ErrNotWired is returned when a piece of the set-up is missing.
var ErrNotWired = errors.New("not wired")

// Check verifies every piece that Setup makes and names all that are missing.
func (w *Wirer) Check(spec Spec) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	host, err := linkOrNil(spec.HostLink())
	if err != nil {
		return err
	}
	if host == nil {
		return fmt.Errorf("%w: link %s is missing", ErrNotWired, spec.HostLink())
	}
	if host.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("%w: link %s is down", ErrNotWired, spec.HostLink())
	}
	errs := []error{w.checkPod(spec)}
	for i, a := range spec.Addresses {
		errs = append(errs, w.checkHost(spec, a, i, host))
	}
	return errors.Join(errs...)
}

func (w *Wirer) checkHost(spec Spec, a api.Address, position int, host netlink.Link) error {
	uplink, err := uplinkOf(spec.Uplink, a.VLAN)
	if err != nil {
		return err
	}
	plan, err := planHost(a, position, host.Attrs().Index, uplink.Attrs().Index, podMAC(spec.Addresses[0].Address))
	if err != nil {
		return err
	}
	errs := []error{
		w.checkForward(host, plan.hostRoute.Family, false),
		w.checkForward(uplink, plan.hostRoute.Family, true),
	}
	for _, route := range append([]netlink.Route{plan.hostRoute}, plan.table...) {
		errs = append(errs, checkRoute(route))
	}
	errs = append(errs, checkRules(plan.rules))
	proxies, err := listProxies()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	if !slices.Contains(proxies, plan.proxy) {
		errs = append(errs, fmt.Errorf("%w: the node does not answer for %s on %s", ErrNotWired, a.Address, uplink.Attrs().Name))
	}
	return errors.Join(errs...)
}

func checkRoute(want netlink.Route) error {
	mask := netlink.RT_FILTER_DST | netlink.RT_FILTER_TABLE | netlink.RT_FILTER_OIF
	if want.Gw != nil {
		mask |= netlink.RT_FILTER_GW
	}
	routes, err := netlinksafe.RouteListFiltered(want.Family, &want, mask)
	if err != nil {
		return fmt.Errorf("list routes to %s: %w", want.Dst, err)
	}
	if len(routes) == 0 {
		return fmt.Errorf("%w: route %s on link %d is missing from table %d", ErrNotWired, want.Dst, want.LinkIndex, want.Table)
	}
	return nil
}

func checkRules(want []netlink.Rule) error {
	have, err := netlinksafe.RuleList(want[0].Family)
	if err != nil {
		return fmt.Errorf("list rules: %w", err)
	}
	for _, rule := range want {
		if !slices.ContainsFunc(have, func(r netlink.Rule) bool { return sameRule(r, rule) }) {
			return fmt.Errorf("%w: rule %q is missing", ErrNotWired, rule.String())
		}
	}
	return nil
}

func sameRule(a, b netlink.Rule) bool {
	return a.Priority == b.Priority && a.Table == b.Table && a.Protocol == b.Protocol &&
		a.SuppressPrefixlen == b.SuppressPrefixlen && netString(a.Src) == netString(b.Src)
}

func netString(n *net.IPNet) string {
	if n == nil {
		return ""
	}
	return n.String()
}

func (w *Wirer) checkPod(spec Spec) error {
	netns, err := ns.GetNS(spec.NetNS)
	if err != nil {
		return fmt.Errorf("%w: %q: %w", ErrNetNS, spec.NetNS, err)
	}
	defer netns.Close()
	err = netns.Do(func(ns.NetNS) error {
		link, err := linkOrNil(spec.IfName)
		if err != nil {
			return err
		}
		if link == nil {
			return fmt.Errorf("%w: link is missing", ErrNotWired)
		}
		if link.Attrs().Flags&net.FlagUp == 0 {
			return fmt.Errorf("%w: link is down", ErrNotWired)
		}
		for _, a := range spec.Addresses {
			if err := checkPodAddress(a.Address, link); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("check %s in %s: %w", spec.IfName, spec.NetNS, err)
	}
	return nil
}

func checkPodAddress(addr netip.Addr, link netlink.Link) error {
	addrs, err := netlinksafe.AddrList(link, familyOf(addr))
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	if !slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.IP.Equal(addr.AsSlice()) }) {
		return fmt.Errorf("%w: address %s is missing", ErrNotWired, addr)
	}
	plan := planPod(addr, link.Attrs().Index, nil)
	return errors.Join(checkRoute(plan.gateway), checkRoute(plan.byRoute))
}
