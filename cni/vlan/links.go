// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/cni/leftover"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// List returns every node link on the node and its container's addresses. Mode pure has no node
// links: package wire lists its links.
func (d *Driver) List() ([]wire.Link, error) { return wire.LinksThat(isNodeLink) }

// PodEnd returns the name of the container's interface of a node link, empty if the node link is
// gone.
func (d *Driver) PodEnd(nodeLink string) (string, error) {
	node, err := rtnl.LinkOrNil(nodeLink)
	if err != nil || node == nil {
		return "", err
	}
	_, uses, ok := parseAlias(node.Attrs().Alias)
	if !ok || len(uses) == 0 {
		return "", nil
	}
	return uses[0].ifName, nil
}

func isNodeLink(l netlink.Link) bool {
	return strings.HasPrefix(l.Attrs().Name, nodeLinkPrefix) && l.Type() == "veth"
}

// Remove removes a node link and everything that belongs to it. It needs no record, because the
// link's alias names the interfaces.
func (d *Driver) Remove(name string) error {
	node, err := rtnl.LinkOrNil(name)
	if err != nil || node == nil {
		return err
	}
	if !isNodeLink(node) {
		return fmt.Errorf("link %s is no node link", name)
	}
	var spec Spec
	errs := []error{d.deleteInterfaces(spec, node), d.withdrawNode(spec, node), wire.DeleteEnd(name), sweepLowers(), sweepGuards(), d.sweep()}
	return errors.Join(errs...)
}

// RemoveLoose removes kernel state with our marks that belongs to no container: ports and virtual
// functions whose node link is gone, VLAN links and bridges without users, and rules, routes and
// chains of links that no longer exist.
func (d *Driver) RemoveLoose() error {
	d.setups.Lock()
	defer d.setups.Unlock()
	links, err := rtnl.Links()
	if err != nil {
		return err
	}
	exists := map[int]bool{}
	var nodes []string
	for _, l := range links {
		exists[l.Attrs().Index] = true
		if isNodeLink(l) {
			nodes = append(nodes, l.Attrs().Name)
		}
	}
	var errs []error
	for _, l := range links {
		if !strings.HasPrefix(l.Attrs().Name, portPrefix) || !isOurs(l) || slices.ContainsFunc(nodes, func(n string) bool { return isPortOf(l, n) }) {
			continue
		}
		errs = append(errs, rtnl.DeleteLink(l))
	}
	errs = append(errs, deleteTables(func(table int) bool { return !exists[nodeOfTable(table)] }))
	sources, err := netfilter.Sources()
	errs = append(errs, err)
	for _, s := range sources {
		if !strings.HasPrefix(s.Link, nodeLinkPrefix) || slices.Contains(nodes, s.Link) {
			continue
		}
		routes, err := hostRoutes(s.Address)
		if err == nil {
			err = netfilter.Revoke(s, len(routes) > 0)
		}
		errs = append(errs, err, netfilter.Forget(s.Link))
	}
	hasOwner := func(owner string) bool { return slices.Contains(nodes, owner) }
	return errors.Join(append(errs, d.functions.GiveLoose(hasOwner), sweepLowers(), sweepGuards(), d.sweep())...)
}

// Leftovers lists the interfaces that containers have in pools' networks, each with its node link,
// and virtual functions whose containers are gone. Package wire lists the other links and routes.
func (d *Driver) Leftovers() ([]leftover.Item, error) {
	links, err := d.List()
	var items []leftover.Item
	for _, l := range links {
		items = append(items, leftover.Item{Name: "interfaces of the container behind link " + l.Name, Remove: func() error { return d.Remove(l.Name) }})
	}
	exists := func(owner string) bool {
		return slices.ContainsFunc(links, func(l wire.Link) bool { return l.Name == owner })
	}
	functions, loose := d.functions.Leftovers(exists)
	return append(items, functions...), errors.Join(err, loose)
}

// Announce tells the networks that the addresses are here now: from the container's interfaces or,
// if the node answers for them, from the node's.
func (d *Driver) Announce(spec Spec) error {
	if spec.Mode == Pure {
		return d.wirer.Announce(spec.Spec)
	}
	segments := spec.segments()
	if spec.routed() {
		return d.announceFromNode(spec, segments)
	}
	return insideOf(spec, func() error {
		var errs []error
		for _, g := range segments {
			link, err := netlinksafe.LinkByName(g.ifName)
			if err != nil {
				errs = append(errs, fmt.Errorf("find link %s: %w", g.ifName, err))
				continue
			}
			for _, a := range g.addrs {
				errs = append(errs, wire.AnnounceOn(link, a.Address, false))
			}
		}
		return errors.Join(errs...)
	})
}

func (d *Driver) announceFromNode(spec Spec, segments []segment) error {
	lowers, err := d.findAll(spec, segments)
	if err != nil {
		return err
	}
	var errs []error
	for i, g := range segments {
		for _, a := range g.addrs {
			errs = append(errs, wire.AnnounceOn(lowers[i], a.Address, true))
		}
	}
	return errors.Join(errs...)
}

// Networks lists the layer 2 networks of a container's addresses, with the MAC address of the
// container's interface, if it has one of its own. It makes missing links. They stay until the
// caller calls release; afterwards Teardown or RemoveLoose removes unused links. Mode l3 has no
// such networks: other hosts route the addresses.
func (d *Driver) Networks(spec Spec) (networks []conflict.Target, release func(), err error) {
	if err := spec.validate(); err != nil {
		return nil, nil, err
	}
	if spec.routed() && !spec.answers() {
		return nil, func() {}, nil
	}
	segments := spec.segments()
	lowers, release, err := d.claim(spec, segments)
	if err != nil {
		return nil, nil, err
	}
	return networksOn(spec, segments, lowers), release, nil
}

// NetworksNow lists the networks whose links exist. It makes no links.
func (d *Driver) NetworksNow(spec Spec) ([]conflict.Target, error) {
	if err := spec.validate(); err != nil || spec.routed() && !spec.answers() {
		return nil, err
	}
	segments := spec.segments()
	lowers, err := d.find(spec, segments)
	if err != nil {
		return nil, err
	}
	return networksOn(spec, segments, lowers), nil
}

// networksOn leaves out segments whose link is missing.
func networksOn(spec Spec, segments []segment, lowers []netlink.Link) (all []conflict.Target) {
	for i, g := range segments {
		if lowers[i] == nil {
			continue
		}
		for _, a := range g.addrs {
			n := conflict.Target{Address: a.Address, Link: lowers[i].Attrs().Index, Own: g.mac}
			if spec.Mode == IPvlan {
				n.Own = nil
			}
			all = append(all, n)
		}
	}
	return all
}
