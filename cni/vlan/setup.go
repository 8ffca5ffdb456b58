// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/fault"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// Setup gives the container its interfaces and returns their CNI result. It is idempotent: a
// second call makes the missing pieces. After an error the caller calls Teardown.
func (d *Driver) Setup(spec Spec) (*current.Result, error) {
	if err := spec.validate(); err != nil {
		return nil, err
	}
	d.setups.RLock()
	defer d.setups.RUnlock()
	segments := spec.segments()
	lowers, release, err := d.claim(spec, segments)
	if err != nil {
		return nil, err
	}
	defer release()
	if spec.Mode == Pure {
		return d.setupPure(spec, segments, lowers)
	}
	netns, err := rtnl.GetNS(spec.NetNS)
	if err != nil {
		return nil, err
	}
	defer netns.Close()
	// From here on the alias of the node link keeps the lower links.
	node, err := ensureNodeLink(spec, netns, usesOf(segments, lowers), mtuOf(spec, lowers[0]))
	if err != nil {
		return nil, err
	}
	fault.Point("vlan/node-link")
	end, err := spec.NodeEnd()
	if err != nil {
		return nil, err
	}
	if err := d.setupNode(spec, segments, node, lowers, end); err != nil {
		return nil, err
	}
	fault.Point("vlan/node")
	var made []netlink.Link
	for i, g := range segments {
		link, err := d.setupSegment(spec, netns, g, lowers[i])
		if err != nil {
			return nil, fmt.Errorf("make %s in %s: %w", g.ifName, spec.NetNS, err)
		}
		made = append(made, link)
		fault.Point("vlan/segment")
	}
	if err := d.setupRoutes(spec, netns, segments, made, node, end); err != nil {
		return nil, fmt.Errorf("configure %s in %s: %w", spec.IfName, spec.NetNS, err)
	}
	fault.Point("vlan/routes")
	if err := d.answer(spec, segments, node, lowers); err != nil {
		return nil, err
	}
	fault.Point("vlan/answer")
	return result(spec, segments, made, node), nil
}

func (d *Driver) setupPure(spec Spec, segments []segment, lowers []netlink.Link) (*current.Result, error) {
	wired, err := d.wirer.Setup(spec.Spec)
	if err != nil {
		return nil, err
	}
	fault.Point("vlan/pure")
	host, err := rtnl.LinkOrNil(spec.HostLink())
	if err == nil && host == nil {
		err = fmt.Errorf("%w: link %s is missing", ErrNotWired, spec.HostLink())
	}
	if err != nil {
		return nil, err
	}
	if err := setAlias(host, formatAlias(Pure, usesOf(segments, lowers))); err != nil {
		return nil, err
	}
	return wire.Result(spec.Spec, wired), nil
}

func usesOf(segments []segment, lowers []netlink.Link) []use {
	var uses []use
	for i, g := range segments {
		uses = append(uses, use{g.ifName, lowers[i].Attrs().Name})
	}
	return uses
}

func setAlias(link netlink.Link, alias string) error {
	if link.Attrs().Alias == alias {
		return nil
	}
	if err := netlink.LinkSetAlias(link, alias); err != nil {
		return fmt.Errorf("set the alias of link %s: %w", link.Attrs().Name, err)
	}
	return nil
}

func mtuOf(spec Spec, lower netlink.Link) int {
	if spec.MTU > 0 {
		return spec.MTU
	}
	return lower.Attrs().MTU
}

// ensureNodeLink makes the node link, if it is missing, and returns the node's end. It replaces a
// pair whose other end is not in the container.
func ensureNodeLink(spec Spec, netns ns.NetNS, uses []use, mtu int) (netlink.Link, error) {
	name, alias := NodeLink(spec.ContainerID, spec.IfName), formatAlias(spec.Mode, uses)
	node, err := rtnl.Pair{Host: name, Inside: name, HostMAC: rtnl.MACOf(hostMACPrefix, name), InsideMAC: nodeLinkMAC(spec), MTU: mtu}.Ensure(netns)
	if err != nil {
		return nil, err
	}
	return node, setAlias(node, alias)
}

func nodeLinkMAC(spec Spec) net.HardwareAddr {
	return rtnl.MACOf(nodeMACPrefix, NodeLink(spec.ContainerID, spec.IfName))
}

// setupNode makes the node's address on the node link, its routes to the container and, if the node
// routes for the container, its routes from it.
func (d *Driver) setupNode(spec Spec, segments []segment, node netlink.Link, lowers []netlink.Link, end wire.NodeEnd) error {
	// The link's packets are filtered before it is up.
	if err := netfilter.Allow(d.sources, sourcesOf(spec, segments, lowers)...); err != nil {
		return err
	}
	if err := rtnl.SetUp(node); err != nil {
		return err
	}
	stale, err := end.Add(node)
	if err != nil {
		return err
	}
	route := func() error {
		for _, a := range spec.Addresses {
			if err := wire.NotOnNode(a); err != nil {
				return err
			}
			plan := planNode(spec, a, node, end.Of(a.Address))
			if err := plan.Apply(node); err != nil {
				return err
			}
			fault.Point("vlan/route")
		}
		return nil
	}
	if err := route(); err != nil {
		return err
	}
	if len(stale) > 0 {
		// The kernel deletes routes with a deleted address as source, and all with the last address.
		if err := errors.Join(wire.DeleteAddresses(node, stale), route()); err != nil {
			return err
		}
	}
	return eachRouted(spec, segments, node, lowers, func(_ netlink.Link, plan routePlan) error { return plan.Apply(nil) })
}

// eachRouted calls do for each address for which the node routes, with the node's routes for its
// packets.
func eachRouted(spec Spec, segments []segment, node netlink.Link, lowers []netlink.Link, do func(lower netlink.Link, plan routePlan) error) error {
	if !spec.routed() {
		return nil
	}
	position := 0
	for i, g := range segments {
		for _, a := range g.addrs {
			if err := do(lowers[i], planRouted(spec, a, position, node.Attrs().Index, *lowers[i].Attrs())); err != nil {
				return err
			}
			position++
		}
	}
	return nil
}

// ownRules lists the node's rules of a family for addresses for which the node routes.
func ownRules(family int) ([]netlink.Rule, error) {
	all, err := rtnl.Rules(family)
	return slices.DeleteFunc(all, func(r netlink.Rule) bool { return r.Priority < prioritySent || r.Priority > priorityBack }), err
}

// answer makes the node answer for the addresses in mode l3s, and in no other mode.
func (d *Driver) answer(spec Spec, segments []segment, node netlink.Link, lowers []netlink.Link) error {
	for i, g := range segments {
		for _, a := range g.addrs {
			if !spec.answers() {
				// The address may have been another container's of the node, for which the node
				// answered.
				if err := wire.StopAnswering(a.Address); err != nil {
					return err
				}
				continue
			}
			if err := d.wirer.Answer(node, lowers[i], a); err != nil {
				return err
			}
		}
	}
	return nil
}

// setupSegment makes one of the container's interfaces, filtered, with its addresses, and up.
func (d *Driver) setupSegment(spec Spec, netns ns.NetNS, g segment, lower netlink.Link) (netlink.Link, error) {
	port, err := d.ensureInterface(spec, netns, g, lower)
	if err != nil {
		return nil, err
	}
	if port != nil {
		if err := guardOf(spec, g, lower).set(); err != nil {
			return nil, err
		}
		if err := rtnl.SetUp(port); err != nil {
			return nil, err
		}
	}
	if l := lowerGuardOf(spec, g, lower); l != nil {
		if err := errors.Join(l.set(), l.open()); err != nil {
			return nil, err
		}
		fault.Point("vlan/lower-guard")
	}
	var made netlink.Link
	err = netns.Do(func(ns.NetNS) error {
		if port == nil {
			if err := guardOf(spec, g, lower).set(); err != nil {
				return err
			}
		}
		if made, err = netlinksafe.LinkByName(g.ifName); err != nil {
			return fmt.Errorf("find link %s: %w", g.ifName, err)
		}
		if slices.ContainsFunc(g.addrs, func(a api.Address) bool { return a.Address.Is6() }) {
			// Some runtimes turn IPv6 off in a new namespace.
			if err := d.wirer.SetSysctl("net/ipv6/conf/"+g.ifName+"/disable_ipv6", "0"); err != nil {
				return err
			}
		}
		plan := planAddresses(spec, g)
		if err := plan.Apply(made); err != nil {
			return err
		}
		return rtnl.SetUp(made)
	})
	return made, err
}

// guardOf returns the guard of a segment. ipvlan links have the MAC address of the link below.
func guardOf(spec Spec, g segment, lower netlink.Link) guard {
	f := guard{device: g.ifName, speaker: speech{mac: g.mac, addrs: g.addrs}}
	switch spec.Mode {
	case Bridge:
		f.device, f.incoming = portOf(spec.ContainerID, g.ifName), true
	case IPvlan:
		f.speaker.mac, f.speaker.sharesMAC = lower.Attrs().HardwareAddr, true
	case Macvlan, Pure, SRIOV:
	}
	return f
}

// ensureInterface makes the container's interface, down. In mode bridge it returns the port of the
// bridge, otherwise nil.
func (d *Driver) ensureInterface(spec Spec, netns ns.NetNS, g segment, lower netlink.Link) (netlink.Link, error) {
	switch spec.Mode {
	case Bridge:
		return ensurePort(spec, netns, g, lower)
	case SRIOV:
		return nil, d.functions.Take(wishOf(spec, g))
	case Macvlan, IPvlan, Pure:
	}
	have, err := rtnl.LinkInside(netns, g.ifName)
	if err != nil || have != nil && isSegment(spec, g, have, lower) {
		return nil, err
	}
	if have != nil && have.Type() != string(Macvlan) && have.Type() != string(IPvlan) {
		return nil, fmt.Errorf("the container has an interface of this name already, of type %s", have.Type())
	}
	name := newName(spec.ContainerID, g.ifName)
	if err := deleteLeftovers(netns, g.ifName, name); err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex, attrs.Namespace = name, lower.Attrs().Index, netlink.NsFd(int(netns.Fd()))
	attrs.MTU = mtuOf(spec, lower)
	var link netlink.Link
	if spec.Mode == Macvlan {
		attrs.HardwareAddr = g.mac
		link = &netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE}
	} else {
		link = &netlink.IPVlan{LinkAttrs: attrs, Mode: kernelMode(spec.IPvlanMode)}
	}
	if err := netlink.LinkAdd(link); err != nil {
		if errors.Is(err, unix.EBUSY) {
			err = fmt.Errorf("%w: %s carries links of another type or is a port of a bridge", err, lower.Attrs().Name)
		}
		return nil, fmt.Errorf("create %s link on %s: %w", spec.Mode, lower.Attrs().Name, err)
	}
	fault.Point("vlan/new")
	return nil, netns.Do(func(ns.NetNS) error {
		made, err := netlinksafe.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find link %s just created: %w", name, err)
		}
		if err := netlink.LinkSetName(made, g.ifName); err != nil {
			return fmt.Errorf("rename link %s to %s: %w", name, g.ifName, err)
		}
		return nil
	})
}

// deleteLeftovers deletes links of the container from an interrupted set-up, or from a set-up with
// another configuration.
func deleteLeftovers(netns ns.NetNS, names ...string) error {
	return netns.Do(func(ns.NetNS) error {
		for _, name := range names {
			link, err := rtnl.LinkOrNil(name)
			if err != nil {
				return err
			}
			if link == nil {
				continue
			}
			if err := rtnl.DeleteLink(link); err != nil {
				return err
			}
		}
		return nil
	})
}

func kernelMode(mode IPvlanMode) netlink.IPVlanMode {
	switch mode {
	case L3:
		return netlink.IPVLAN_MODE_L3
	case L3S:
		return netlink.IPVLAN_MODE_L3S
	case L2, "":
	}
	return netlink.IPVLAN_MODE_L2
}

// isSegment reports whether a link of the container is the segment's interface.
func isSegment(spec Spec, g segment, link, lower netlink.Link) bool {
	if link.Type() != string(spec.Mode) || link.Attrs().ParentIndex != lower.Attrs().Index {
		return false
	}
	if v, ok := link.(*netlink.IPVlan); ok {
		return v.Mode == kernelMode(spec.IPvlanMode)
	}
	return bytes.Equal(link.Attrs().HardwareAddr, g.mac)
}

// ensurePort makes the veth pair of a segment in mode bridge, with the node's end a port of
// the bridge, down.
func ensurePort(spec Spec, netns ns.NetNS, g segment, bridge netlink.Link) (netlink.Link, error) {
	name := portOf(spec.ContainerID, g.ifName)
	port, err := rtnl.Pair{Host: name, Inside: g.ifName, HostMAC: rtnl.MACOf(hostMACPrefix, name), InsideMAC: g.mac, MTU: mtuOf(spec, bridge)}.Ensure(netns)
	if err == nil {
		err = setAlias(port, aliasPrefix+"port of "+NodeLink(spec.ContainerID, spec.IfName))
	}
	if err != nil {
		return nil, err
	}
	// A port has no addresses of its own.
	if err := rtnl.WithoutIPv6(port); err != nil {
		return nil, err
	}
	return port, setMaster(port, bridge)
}

func setMaster(port, bridge netlink.Link) error {
	if port.Attrs().MasterIndex == bridge.Attrs().Index {
		return nil
	}
	if err := netlink.LinkSetMaster(port, bridge); err != nil {
		return fmt.Errorf("make %s a port of bridge %s: %w", port.Attrs().Name, bridge.Attrs().Name, err)
	}
	return nil
}

func (d *Driver) setupRoutes(spec Spec, netns ns.NetNS, segments []segment, made []netlink.Link, node netlink.Link, end wire.NodeEnd) error {
	return netns.Do(func(ns.NetNS) error {
		inside, err := d.podEnd(node, end)
		if err == nil && inside == nil {
			err = fmt.Errorf("link %s is missing, or the container lacks its addresses", node.Attrs().Name)
		}
		if err != nil {
			return err
		}
		if err := inside.set(); err != nil {
			return err
		}
		plan := planPod(spec, segments, indexes(made), inside.link.Attrs().Index, end)
		return plan.Apply(nil)
	})
}

func indexes(links []netlink.Link) []int {
	var all []int
	for _, l := range links {
		all = append(all, l.Attrs().Index)
	}
	return all
}
