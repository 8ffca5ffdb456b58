// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/fault"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// claim returns the link below each segment, and makes missing links. sweep keeps them until the
// caller calls release; afterwards it keeps them because of the segments' own links.
func (d *Driver) claim(spec Spec, segments []segment) (lowers []netlink.Link, release func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	uplink, err := uplinkOf(spec)
	if err != nil {
		return nil, nil, err
	}
	var names []string
	for _, g := range segments {
		lower, err := d.lowerOf(spec, uplink, g.vlan, true)
		if err != nil {
			return nil, nil, fmt.Errorf("address %s: %w", g.addrs[0].Address, err)
		}
		if err := d.keepSecluded(spec, lower); err != nil {
			return nil, nil, err
		}
		lowers = append(lowers, lower)
		names = append(names, lower.Attrs().Name)
	}
	for _, name := range names {
		d.claimed[name]++
	}
	return lowers, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, name := range names {
			if d.claimed[name]--; d.claimed[name] == 0 {
				delete(d.claimed, name)
			}
		}
	}, nil
}

// find returns the link below each segment, nil for a missing link.
func (d *Driver) find(spec Spec, segments []segment) ([]netlink.Link, error) {
	uplink, err := uplinkOf(spec)
	if err != nil {
		return nil, err
	}
	var lowers []netlink.Link
	for _, g := range segments {
		lower, err := d.lowerOf(spec, uplink, g.vlan, false)
		if err != nil {
			return nil, err
		}
		lowers = append(lowers, lower)
	}
	return lowers, nil
}

// findAll is find, but returns an error if any link is missing.
func (d *Driver) findAll(spec Spec, segments []segment) ([]netlink.Link, error) {
	lowers, err := d.find(spec, segments)
	if i := slices.Index(lowers, nil); err == nil && i >= 0 {
		err = fmt.Errorf("%w: VLAN %d has no link on %s", ErrNotWired, segments[i].vlan, spec.Uplink)
	}
	return lowers, err
}

func uplinkOf(spec Spec) (netlink.Link, error) {
	uplink, err := rtnl.LinkOrNil(spec.Uplink)
	if err == nil && uplink == nil {
		err = fmt.Errorf("%w: the node has no link %q", wire.ErrUplink, spec.Uplink)
	}
	return uplink, err
}

// lowerOf returns the link for a VLAN. If it is missing, lowerOf makes it or, without create,
// returns nil.
func (d *Driver) lowerOf(spec Spec, uplink netlink.Link, vlan int, create bool) (netlink.Link, error) {
	if vlan == 0 && spec.Mode == Bridge {
		return namedBridge(spec.Bridge)
	}
	lower := uplink
	if vlan != 0 {
		var err error
		if lower, err = d.vlanLink(spec, uplink, vlan, create); err != nil || lower == nil {
			return nil, err
		}
	}
	if spec.Mode == Bridge {
		return d.bridgeOf(uplink, lower, vlan, create)
	}
	if create && lower.Attrs().Flags&net.FlagUp == 0 {
		if lower == uplink || !isOurs(lower) {
			return nil, wire.CheckUp(lower)
		}
		if err := rtnl.SetUp(lower); err != nil {
			return nil, err
		}
	}
	return lower, nil
}

func namedBridge(name string) (netlink.Link, error) {
	link, err := rtnl.LinkOrNil(name)
	switch {
	case err != nil:
		return nil, err
	case link == nil:
		return nil, fmt.Errorf("%w: the node has no bridge %q; make it, or give the pool a VLAN", wire.ErrUplink, name)
	case link.Type() != "bridge":
		return nil, fmt.Errorf("%w: link %s is of type %s, not a bridge", wire.ErrUplink, name, link.Type())
	}
	return link, nil
}

func (d *Driver) vlanLink(spec Spec, uplink netlink.Link, vlan int, create bool) (netlink.Link, error) {
	have, err := rtnl.VLANLink(uplink, vlan)
	if err != nil || have != nil || !create {
		return have, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex = vlanName(uplink.Attrs().Index, vlan), uplink.Attrs().Index
	link := &netlink.Vlan{LinkAttrs: attrs, VlanId: vlan, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}
	if err := netlink.LinkAdd(link); err != nil {
		return nil, fmt.Errorf("%w: create a link for VLAN %d on %s: %w", wire.ErrUplink, vlan, uplink.Attrs().Name, err)
	}
	fault.Point("vlan/vlan")
	made, err := netlinksafe.LinkByName(attrs.Name)
	if err != nil {
		return nil, fmt.Errorf("find link %s just created: %w", attrs.Name, err)
	}
	if err := setAlias(made, lowerAlias(uplink, vlan)); err != nil {
		return nil, err
	}
	if err := d.seclude(made, spec.takesPart()); err != nil {
		return nil, err
	}
	return made, rtnl.SetUp(made)
}

func (d *Driver) bridgeOf(uplink, lower netlink.Link, vlan int, create bool) (netlink.Link, error) {
	if master := lower.Attrs().MasterIndex; master != 0 {
		link, err := netlink.LinkByIndex(master)
		if err != nil {
			return nil, fmt.Errorf("find the master of link %s: %w", lower.Attrs().Name, err)
		}
		if link.Type() != "bridge" {
			return nil, fmt.Errorf("%w: link %s belongs to %s, which is of type %s, not a bridge", wire.ErrUplink, lower.Attrs().Name, link.Attrs().Name, link.Type())
		}
		if create && isOurs(link) {
			return link, errors.Join(rtnl.SetUp(lower), rtnl.SetUp(link))
		}
		return link, nil
	}
	if !create {
		return nil, nil
	}
	addrs, err := rtnl.Addresses(lower, unix.AF_INET)
	if err != nil {
		return nil, err
	}
	if len(addrs) > 0 {
		return nil, fmt.Errorf("%w: link %s has the node's address %s, and would lose it as a port of a bridge; move the address to a bridge with that link, or use another mode",
			wire.ErrUplink, lower.Attrs().Name, addrs[0].IPNet)
	}
	name := bridgeName(uplink.Attrs().Index, vlan)
	link, err := rtnl.LinkOrNil(name)
	if err != nil {
		return nil, err
	}
	if link == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = name, lower.Attrs().MTU
		attrs.HardwareAddr = rtnl.MACOf(hostMACPrefix, lower.Attrs().HardwareAddr.String()+name)
		snooping := false
		// Without a querier, snooping would lose the multicast of neighbour discovery.
		bridge := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}
		if err := netlink.LinkAdd(bridge); err != nil {
			return nil, fmt.Errorf("create bridge %s: %w", name, err)
		}
		fault.Point("vlan/bridge")
		if link, err = netlinksafe.LinkByName(name); err != nil {
			return nil, fmt.Errorf("find bridge %s just created: %w", name, err)
		}
		if err := setAlias(link, lowerAlias(uplink, vlan)); err != nil {
			return nil, err
		}
		if err := d.seclude(link, false); err != nil {
			return nil, err
		}
	}
	if err := netlink.LinkSetMaster(lower, link); err != nil {
		return nil, fmt.Errorf("make %s a port of bridge %s: %w", lower.Attrs().Name, name, err)
	}
	return link, errors.Join(rtnl.SetUp(lower), rtnl.SetUp(link))
}

// sweep removes our VLAN links and bridges that no container uses.
func (d *Driver) sweep() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	links, err := rtnl.Links()
	if err != nil {
		return err
	}
	used := map[string]bool{}
	for name := range d.claimed {
		used[name] = true
	}
	for _, link := range links {
		if _, uses, ok := parseAlias(link.Attrs().Alias); ok && link.Type() == "veth" {
			for _, u := range uses {
				used[u.lower] = true
			}
		}
	}
	var kept []int
	var errs []error
	for _, prefix := range []string{bridgePrefix, vlanPrefix} {
		for _, link := range links {
			attrs := link.Attrs()
			if !strings.HasPrefix(attrs.Name, prefix) || !isOurs(link) {
				continue
			}
			// A VLAN link stays as long as its bridge, ours or not.
			if used[attrs.Name] || slices.Contains(kept, attrs.MasterIndex) {
				kept = append(kept, attrs.Index)
				continue
			}
			if prefix == bridgePrefix && hasForeignPort(links, attrs.Index) {
				kept = append(kept, attrs.Index)
				continue
			}
			errs = append(errs, rtnl.DeleteLink(link))
			fault.Point("vlan/swept")
		}
	}
	return errors.Join(errs...)
}

// hasForeignPort reports whether another program made a port of the bridge: then others use the
// bridge, too.
func hasForeignPort(links []netlink.Link, bridge int) bool {
	return slices.ContainsFunc(links, func(l netlink.Link) bool {
		return l.Attrs().MasterIndex == bridge && !isOurs(l) && l.Type() != "vlan"
	})
}

// lowerAlias returns the alias by which an administrator sees the purpose of a link.
func lowerAlias(uplink netlink.Link, vlan int) string {
	return fmt.Sprintf("%sVLAN %d of %s", aliasPrefix, vlan, uplink.Attrs().Name)
}

// isOurs reports whether a link is ours, by its name.
func isOurs(link netlink.Link) bool {
	return slices.ContainsFunc([]string{nodeLinkPrefix, portPrefix, vlanPrefix, bridgePrefix, newPrefix}, func(prefix string) bool {
		return strings.HasPrefix(link.Attrs().Name, prefix)
	})
}
