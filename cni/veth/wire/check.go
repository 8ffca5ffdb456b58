// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/agent/api"
	"github.com/berth-dev/berth/cni/netfilter"
)

// ErrNotWired is returned where a piece of the set-up is missing.
var ErrNotWired = errors.New("not wired")

// Check verifies every piece that Setup makes. Its error names the missing ones.
func (w *Wirer) Check(spec Spec) error {
	host, err := upHostEnd(spec)
	if err != nil {
		return err
	}
	return errors.Join(w.checkPod(spec, host.Attrs().HardwareAddr), w.checkNode(spec, host))
}

// CheckNode verifies the pieces of the node's side, which Repair makes. A pod may change
// its own side: a VPN takes the default route, a sandbox the addresses.
func (w *Wirer) CheckNode(spec Spec) error {
	host, err := upHostEnd(spec)
	if err != nil {
		return err
	}
	return w.checkNode(spec, host)
}

func (w *Wirer) checkNode(spec Spec, host netlink.Link) error {
	errs := []error{netfilter.Check(sourcesOf(spec)...)}
	for i, a := range spec.Addresses {
		errs = append(errs, w.checkHost(spec, a, i, host))
	}
	return errors.Join(errs...)
}

// hostEnd returns the host end of a valid Spec, or nil where it is missing.
func hostEnd(spec Spec) (netlink.Link, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	return linkOrNil(spec.HostLink())
}

// upHostEnd returns ErrNotWired where the host end is missing or down.
func upHostEnd(spec Spec) (netlink.Link, error) {
	host, err := hostEnd(spec)
	switch {
	case err != nil:
		return nil, err
	case host == nil:
		return nil, fmt.Errorf("%w: link %s is missing", ErrNotWired, spec.HostLink())
	case host.Attrs().Flags&net.FlagUp == 0:
		return nil, fmt.Errorf("%w: link %s is down", ErrNotWired, spec.HostLink())
	}
	return host, nil
}

func (w *Wirer) checkHost(spec Spec, a api.Address, position int, host netlink.Link) error {
	uplink, err := uplinkOf(spec.Uplink, a.VLAN)
	if err != nil {
		return err
	}
	plan, err := planHost(a, position, host.Attrs().Index, uplink.Attrs().Index, spec.podMAC())
	if err != nil {
		return err
	}
	errs := []error{
		w.checkForward(host, plan.hostRoute.Family, false),
		w.checkForward(uplink, plan.hostRoute.Family, true),
		checkNeighbour(plan.podNeigh),
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
	if want.Src != nil {
		mask |= netlink.RT_FILTER_SRC
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

// checkNeighbour checks the neighbour entry of the other end of a pair: nobody answers
// ARP for the pod's gateway, and the kernel drops entries when the MAC of a link
// changes.
func checkNeighbour(want netlink.Neigh) error {
	have, err := dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(want.LinkIndex, want.Family) })
	if err != nil {
		return fmt.Errorf("list neighbours of link %d: %w", want.LinkIndex, err)
	}
	known := func(n netlink.Neigh) bool {
		return n.IP.Equal(want.IP) && bytes.Equal(n.HardwareAddr, want.HardwareAddr)
	}
	if !slices.ContainsFunc(have, known) {
		return fmt.Errorf("%w: neighbour %s with MAC address %s on link %d is missing", ErrNotWired, want.IP, want.HardwareAddr, want.LinkIndex)
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

// checkPod checks the pod's side; hostMAC is the MAC of the host end.
func (w *Wirer) checkPod(spec Spec, hostMAC net.HardwareAddr) error {
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
		if have := link.Attrs().HardwareAddr; !bytes.Equal(have, spec.podMAC()) {
			return fmt.Errorf("%w: link has MAC address %s, must have %s", ErrNotWired, have, spec.podMAC())
		}
		return checkPodPlan(planPod(spec.Addresses, link.Attrs().Index, hostMAC), link)
	})
	if err != nil {
		return fmt.Errorf("check %s in %s: %w", spec.IfName, spec.NetNS, err)
	}
	return nil
}

func checkPodPlan(plan podPlan, link netlink.Link) error {
	have, err := netlinksafe.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	var errs []error
	for _, want := range plan.addrs {
		if !slices.ContainsFunc(have, func(a netlink.Addr) bool { return a.IP.Equal(want.IP) }) {
			errs = append(errs, fmt.Errorf("%w: address %s is missing", ErrNotWired, want.IP))
		}
	}
	for _, neigh := range plan.neighs {
		errs = append(errs, checkNeighbour(neigh))
	}
	for _, route := range plan.routes {
		errs = append(errs, checkRoute(route))
	}
	return errors.Join(errs...)
}
