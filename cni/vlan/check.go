// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"errors"
	"fmt"
	"net"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/sriov"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// Check verifies every piece that Setup makes. Its error names the missing pieces.
func (d *Driver) Check(spec Spec) error {
	if spec.Mode == Pure {
		return errors.Join(d.checkPure(spec), d.wirer.Check(spec.Spec))
	}
	return errors.Join(d.CheckNode(spec), d.checkPod(spec))
}

// CheckNode verifies the pieces that Repair makes: the node's side, the container's interfaces with
// their filters, and the node link. A container may change its other addresses and routes: a VPN
// takes the default route.
func (d *Driver) CheckNode(spec Spec) error {
	if err := spec.validate(); err != nil {
		return err
	}
	if spec.Mode == Pure {
		return errors.Join(d.checkPure(spec), d.wirer.CheckNode(spec.Spec))
	}
	segments := spec.segments()
	lowers, err := d.findAll(spec, segments)
	if err != nil {
		return err
	}
	for _, lower := range lowers {
		if isOurs(lower) && lower.Attrs().Flags&net.FlagUp == 0 {
			return fmt.Errorf("%w: link %s is down", ErrNotWired, lower.Attrs().Name)
		}
	}
	node, err := nodeLinkOf(spec, usesOf(segments, lowers))
	if err != nil {
		return err
	}
	end, err := spec.NodeEnd()
	if err != nil {
		return err
	}
	errs := []error{netfilter.Check(sourcesOf(spec, segments, lowers)...), end.Check(node), checkRoutes(spec, node, end)}
	errs = append(errs, d.inPodEnd(spec, node, end, (*podEnd).check))
	errs = append(errs, eachRouted(spec, segments, node, lowers, func(_ netlink.Link, plan routePlan) error { return plan.Check(nil) }))
	for i, g := range segments {
		errs = append(errs, d.checkSecluded(spec, lowers[i]), d.checkAnswer(spec, g, lowers[i]), d.checkInterface(spec, g, lowers[i]))
	}
	return errors.Join(errs...)
}

// checkPure verifies that our alias keeps the VLAN links.
func (d *Driver) checkPure(spec Spec) error {
	segments := spec.segments()
	lowers, err := d.findAll(spec, segments)
	if err != nil {
		return err
	}
	for _, lower := range lowers {
		if err := d.checkSecluded(spec, lower); err != nil {
			return err
		}
	}
	host, err := rtnl.LinkOrNil(spec.HostLink())
	if err != nil || host == nil {
		return err
	}
	if host.Attrs().Alias != formatAlias(Pure, usesOf(segments, lowers)) {
		return fmt.Errorf("%w: link %s lacks its alias", ErrNotWired, spec.HostLink())
	}
	return nil
}

func nodeLinkOf(spec Spec, uses []use) (netlink.Link, error) {
	name := NodeLink(spec.ContainerID, spec.IfName)
	node, err := rtnl.LinkOrNil(name)
	switch {
	case err != nil:
		return nil, err
	case node == nil:
		return nil, fmt.Errorf("%w: link %s is missing", ErrNotWired, name)
	case node.Attrs().Flags&net.FlagUp == 0:
		return nil, fmt.Errorf("%w: link %s is down", ErrNotWired, name)
	case node.Attrs().Alias != formatAlias(spec.Mode, uses):
		return nil, fmt.Errorf("%w: link %s lacks its alias", ErrNotWired, name)
	}
	return node, nil
}

func checkRoutes(spec Spec, node netlink.Link, end wire.NodeEnd) error {
	var errs []error
	for _, a := range spec.Addresses {
		plan := planNode(spec, a, node, end.Of(a.Address))
		errs = append(errs, wire.NotOnNode(a), plan.Check(node))
	}
	return errors.Join(errs...)
}

func (d *Driver) checkAnswer(spec Spec, g segment, lower netlink.Link) error {
	if !spec.answers() {
		return nil
	}
	var errs []error
	for _, a := range g.addrs {
		errs = append(errs, d.wirer.CheckAnswer(lower, a))
	}
	return errors.Join(errs...)
}

func (d *Driver) checkInterface(spec Spec, g segment, lower netlink.Link) error {
	if spec.Mode == Bridge {
		name := portOf(spec.ContainerID, g.ifName)
		port, err := rtnl.LinkOrNil(name)
		switch {
		case err != nil:
			return err
		case port == nil:
			return fmt.Errorf("%w: link %s is missing", ErrNotWired, name)
		case port.Attrs().MasterIndex != lower.Attrs().Index:
			return fmt.Errorf("%w: link %s is no port of %s", ErrNotWired, name, lower.Attrs().Name)
		}
		up, err := isPortUp(spec, port)
		if err == nil && !up {
			err = fmt.Errorf("%w: link %s is down", ErrNotWired, name)
		}
		if err != nil {
			return err
		}
		return guardOf(spec, g, lower).check()
	}
	if l := lowerGuardOf(spec, g, lower); l != nil {
		if err := l.check(); err != nil {
			return err
		}
	}
	if err := d.checkOpen(spec, g, lower); err != nil {
		return err
	}
	if spec.Mode == SRIOV {
		if err := d.checkFunction(wishOf(spec, g)); err != nil {
			return err
		}
		return insideOf(spec, guardOf(spec, g, lower).check)
	}
	return insideOf(spec, func() error {
		link, err := rtnl.LinkOrNil(g.ifName)
		if err != nil {
			return err
		}
		if link == nil || !isSegment(spec, g, link, lower) {
			return fmt.Errorf("%w: %s link %s on %s is missing", ErrNotWired, spec.Mode, g.ifName, lower.Attrs().Name)
		}
		return guardOf(spec, g, lower).check()
	})
}

func (d *Driver) checkPod(spec Spec) error {
	end, err := spec.NodeEnd()
	if err != nil {
		return err
	}
	node, err := rtnl.LinkOrNil(NodeLink(spec.ContainerID, spec.IfName))
	if err != nil || node == nil {
		return err
	}
	return insideOf(spec, func() error {
		segments := spec.segments()
		var errs []error
		var links []int
		for _, g := range segments {
			link, err := rtnl.LinkOrNil(g.ifName)
			if err != nil {
				return err
			}
			if link == nil {
				return fmt.Errorf("%w: link %s is missing", ErrNotWired, g.ifName)
			}
			if link.Attrs().Flags&net.FlagUp == 0 {
				errs = append(errs, fmt.Errorf("%w: link %s is down", ErrNotWired, g.ifName))
			}
			links = append(links, link.Attrs().Index)
			own := planAddresses(spec, g)
			errs = append(errs, own.Check(link))
		}
		inside, err := rtnl.LinkOrNil(node.Attrs().Name)
		if err == nil && inside == nil {
			err = fmt.Errorf("%w: link %s is missing", ErrNotWired, node.Attrs().Name)
		}
		if err != nil {
			return err
		}
		plan := planPod(spec, segments, links, inside.Attrs().Index, end)
		return errors.Join(append(errs, plan.Check(nil))...)
	})
}

func insideOf(spec Spec, do func() error) error {
	if err := rtnl.InNetNS(spec.NetNS, do); err != nil {
		return fmt.Errorf("interface %s in %s: %w", spec.IfName, spec.NetNS, err)
	}
	return nil
}

// Filter restores lost filters of CheckNode for existing links and interfaces. It also keeps the
// ends of the node link up to date, because the node's addresses come and go.
func (d *Driver) Filter(spec Spec) error {
	if err := spec.validate(); err != nil {
		return err
	}
	if spec.Mode == Pure {
		return d.wirer.Filter()
	}
	segments := spec.segments()
	lowers, err := d.find(spec, segments)
	if err != nil {
		return err
	}
	errs := []error{netfilter.Restore(d.sources), d.keepNodeLink(spec)}
	for i, g := range segments {
		if lowers[i] != nil {
			errs = append(errs, filterInterface(spec, g, lowers[i]))
		}
	}
	return errors.Join(errs...)
}

// keepNodeLink restores missing pieces of the ends of the node link, except the node's routes,
// which carry the container's addresses.
func (d *Driver) keepNodeLink(spec Spec) error {
	node, err := rtnl.LinkOrNil(NodeLink(spec.ContainerID, spec.IfName))
	if err != nil || node == nil {
		return err
	}
	end, err := spec.NodeEnd()
	if err != nil {
		return err
	}
	// Routes of the node may still have the stale addresses as source.
	if _, err := end.Add(node); err != nil {
		return err
	}
	return d.inPodEnd(spec, node, end, (*podEnd).set)
}

func filterInterface(spec Spec, g segment, lower netlink.Link) error {
	var errs []error
	if l := lowerGuardOf(spec, g, lower); l != nil {
		errs = append(errs, keepFilter(l))
	}
	at := guardOf(spec, g, lower)
	keepGuard := func() error {
		link, err := rtnl.LinkOrNil(at.device)
		if err != nil || link == nil {
			return err
		}
		return keepFilter(at)
	}
	if spec.Mode == Bridge {
		return keepGuard()
	}
	return errors.Join(append(errs, insideOf(spec, keepGuard))...)
}

// filter is a guard of an interface or of the link below it.
type filter interface {
	check() error
	set() error
}

func keepFilter(f filter) error {
	err := f.check()
	if errors.Is(err, ErrNotWired) {
		return f.set()
	}
	return err
}

// Repair makes the pieces that CheckNode verifies. If an interface is missing, it also sets up the
// container's side. Otherwise the container's own changes of its addresses and routes stay, except
// at the node link.
func (d *Driver) Repair(spec Spec) error {
	if err := spec.validate(); err != nil {
		return err
	}
	if spec.Mode == Pure {
		return d.repairPure(spec)
	}
	segments := spec.segments()
	lowers, release, err := d.claim(spec, segments)
	if err != nil {
		return err
	}
	defer release()
	node, err := rtnl.LinkOrNil(NodeLink(spec.ContainerID, spec.IfName))
	if err != nil {
		return err
	}
	cut, err := wire.IsCut(spec.Uplink)
	if err != nil {
		return err
	}
	missing := node == nil
	for i, g := range segments {
		if !cut {
			if err := d.open(spec, g, lowers[i]); err != nil {
				return err
			}
		}
		has, err := d.hasInterface(spec, g, lowers[i])
		if err != nil {
			return err
		}
		missing = missing || !has
	}
	if missing {
		_, err := d.Setup(spec)
		return err
	}
	if err := setAlias(node, formatAlias(spec.Mode, usesOf(segments, lowers))); err != nil {
		return err
	}
	end, err := spec.NodeEnd()
	if err != nil {
		return err
	}
	if err := d.setupNode(spec, segments, node, lowers, end); err != nil {
		return err
	}
	if err := d.inPodEnd(spec, node, end, (*podEnd).set); err != nil {
		return err
	}
	for i, g := range segments {
		if err := filterInterface(spec, g, lowers[i]); err != nil {
			return err
		}
		if err := plugPort(spec, g, lowers[i], cut); err != nil {
			return err
		}
	}
	return d.answer(spec, segments, node, lowers)
}

func (d *Driver) hasInterface(spec Spec, g segment, lower netlink.Link) (has bool, err error) {
	switch spec.Mode {
	case Bridge:
		port, err := rtnl.LinkOrNil(portOf(spec.ContainerID, g.ifName))
		return port != nil, err
	case SRIOV:
		if closed, err := d.functions.IsClosed(wishOf(spec, g)); err != nil || closed {
			return closed, err
		}
		err := d.functions.Check(wishOf(spec, g))
		if errors.Is(err, sriov.ErrNotGiven) {
			return false, nil
		}
		return err == nil, err
	case Macvlan, IPvlan, Pure:
	}
	err = insideOf(spec, func() error {
		link, err := rtnl.LinkOrNil(g.ifName)
		has = err == nil && link != nil && isSegment(spec, g, link, lower)
		return err
	})
	return has, err
}

// plugPort makes the node's end of a segment in mode bridge a port of the bridge again. Its packets
// are filtered before it is up. While the uplink has no carrier, its state does not change.
func plugPort(spec Spec, g segment, bridge netlink.Link, cut bool) error {
	if spec.Mode != Bridge {
		return nil
	}
	port, err := netlinksafe.LinkByName(portOf(spec.ContainerID, g.ifName))
	if err != nil {
		return fmt.Errorf("find link %s: %w", portOf(spec.ContainerID, g.ifName), err)
	}
	if err := setMaster(port, bridge); err != nil || cut {
		return err
	}
	return rtnl.SetUp(port)
}

func (d *Driver) repairPure(spec Spec) error {
	segments := spec.segments()
	lowers, release, err := d.claim(spec, segments)
	if err != nil {
		return err
	}
	defer release()
	if err := d.wirer.Repair(spec.Spec); err != nil {
		return err
	}
	host, err := rtnl.LinkOrNil(spec.HostLink())
	if err != nil || host == nil {
		return err
	}
	return setAlias(host, formatAlias(Pure, usesOf(segments, lowers)))
}
