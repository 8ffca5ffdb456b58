// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
)

// ErrNotWired is returned if a piece of the set-up is missing.
var ErrNotWired = errors.New("not wired")

// ErrOnNode is returned if the node itself has an address of a pod, or of its gateway: packets to
// it would reach the node.
var ErrOnNode = errors.New("the node itself has an address of the pool")

// NotOnNode returns ErrOnNode if the node has the address or its gateway, on a link or by a local
// route.
func NotOnNode(a api.Address) error {
	for _, of := range []struct {
		what string
		addr netip.Addr
	}{{"the address", a.Address}, {"the pool's gateway", a.Gateway}} {
		what, addr := of.what, of.addr
		if !addr.IsValid() || addr.IsLinkLocalUnicast() {
			continue
		}
		link, err := rtnl.LinkWith(addr)
		if err != nil {
			return err
		}
		if link != nil {
			return fmt.Errorf("%w: %s %s is on link %s; take it away from the node, or leave it out of the pool", ErrOnNode, what, addr, link.Attrs().Name)
		}
	}
	return nil
}

// Check verifies every piece that Setup makes. Its error names the missing pieces.
func (w *Wirer) Check(spec Spec) error {
	host, err := upHostEnd(spec)
	if err != nil {
		return err
	}
	return errors.Join(w.CheckPod(spec, host.Attrs().HardwareAddr), w.checkNode(newSurvey(), spec, host))
}

// CheckNode verifies the pieces of the node's side, which Repair makes. A pod may change
// its own side: a VPN takes the default route, a sandbox the addresses.
func (w *Wirer) CheckNode(spec Spec) error { return w.Survey()(spec) }

func (w *Wirer) checkNode(s *survey, spec Spec, host netlink.Link) error {
	var uplinks []netlink.Link
	for _, a := range spec.Addresses {
		uplink, err := uplinkOf(spec.Uplink, a.VLAN)
		if err != nil {
			return err
		}
		uplinks = append(uplinks, uplink)
	}
	errs := []error{netfilter.Check(sourcesOf(spec, uplinks)...), s.checkNodeEnd(spec, host)}
	for i, a := range spec.Addresses {
		errs = append(errs, w.checkHost(s, spec, a, host, uplinks[i]))
	}
	return errors.Join(errs...)
}

// hostEnd returns the host end of a valid Spec, or nil if it is missing.
func hostEnd(spec Spec) (netlink.Link, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	return rtnl.LinkOrNil(spec.HostLink())
}

// upHostEnd returns ErrNotWired if the host end is missing or down.
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

func (w *Wirer) checkHost(s *survey, spec Spec, a api.Address, host, uplink netlink.Link) error {
	k, err := s.routing(rtnl.FamilyOf(a.Address))
	if err != nil {
		return err
	}
	plan := planHost(a, host.Attrs().Index, uplink.Attrs(), spec.MAC)
	errs := []error{NotOnNode(a), w.checkForward(host, uplink, k.family), s.checkNeighbour(plan.podNeigh), s.checkAnswers(plan.gateway, host)}
	if spec.Standby {
		return errors.Join(errs...)
	}
	errs = append(errs, k.check(plan))
	if a.Routed {
		return errors.Join(append(errs, k.checkAdvertised(spec, a.Address, host.Attrs().Index))...)
	}
	errs = append(errs, w.checkReversePath(uplink, plan.network))
	if spec.Routed {
		return errors.Join(errs...)
	}
	errs = append(errs, w.checkSolicited(uplink, k.family))
	if rtnl.HasCarrier(uplink) {
		errs = append(errs, s.checkAnswers(plan.proxy, uplink))
	}
	return errors.Join(errs...)
}

// check returns ErrNotWired for each piece of setup that is missing in the kernel, and if another
// rule of ours matches the address's packets first.
func (k *routing) check(p hostPlan) error {
	table, err := k.tableFrom(p)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range append(p.routesOut(table), p.hostRoutes...) {
		if !k.hasRoute(r) {
			errs = append(errs, fmt.Errorf("%w: route %s on link %d is missing from table %d", ErrNotWired, r.Dst, r.LinkIndex, r.Table))
		}
	}
	for _, r := range p.rules(table) {
		if !k.hasRule(r) {
			errs = append(errs, fmt.Errorf("%w: rule %q is missing", ErrNotWired, r.String()))
		}
	}
	out, back := k.tableFor(p.addr), k.tableBack(p.addr)
	if p.routed && out == 0 && back == 0 {
		// No rule of ours matches the address: its packets leave by the node's routes.
		out, back = table, table
	}
	if len(errs) == 0 && (out != table || back != table) {
		errs = append(errs, fmt.Errorf("%w: packets from %s are routed by table %d, and back by %d, instead of %d", ErrNotWired, p.addr, out, back, table))
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

func missingNeighbour(want netlink.Neigh) error {
	return fmt.Errorf("%w: neighbour %s with MAC address %s on link %d is missing", ErrNotWired, want.IP, want.HardwareAddr, want.LinkIndex)
}

// CheckPod returns ErrNotWired if a piece of the pod's side is missing; hostMAC is the MAC of the
// host end.
func (w *Wirer) CheckPod(spec Spec, hostMAC net.HardwareAddr) error {
	err := rtnl.InNetNS(spec.NetNS, func() error {
		link, err := rtnl.LinkOrNil(spec.IfName)
		if err != nil {
			return err
		}
		if link == nil {
			return fmt.Errorf("%w: link is missing", ErrNotWired)
		}
		if link.Attrs().Flags&net.FlagUp == 0 {
			return fmt.Errorf("%w: link is down", ErrNotWired)
		}
		if have := link.Attrs().HardwareAddr; !bytes.Equal(have, spec.MAC) {
			return fmt.Errorf("%w: link has MAC address %s, must have %s", ErrNotWired, have, spec.MAC)
		}
		plan := planPod(spec, link.Attrs().Index, hostMAC)
		return plan.Check(link)
	})
	if err != nil {
		return fmt.Errorf("check %s in %s: %w", spec.IfName, spec.NetNS, err)
	}
	return nil
}

func checkRule(rule netlink.Rule) error {
	have, err := rtnl.Rules(rule.Family)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(have, func(r netlink.Rule) bool { return rtnl.SameRule(r, rule) }) {
		return fmt.Errorf("%w: rule %q is missing", ErrNotWired, rule.String())
	}
	return nil
}
