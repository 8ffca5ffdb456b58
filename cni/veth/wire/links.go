// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
)

// Link is a host end on this node and the addresses whose traffic it carries.
type Link struct {
	Name      string
	Addresses []netip.Addr
}

// List returns every host end on the node.
func (w *Wirer) List() ([]Link, error) {
	return LinksThat(func(l netlink.Link) bool { return isHostLink(l.Attrs().Name) && l.Type() == "veth" })
}

// LinksThat returns the links of the node that match selects, each with the addresses of our routes
// by it.
func LinksThat(match func(netlink.Link) bool) ([]Link, error) {
	links, err := rtnl.Links()
	if err != nil {
		return nil, err
	}
	addresses, err := Routed()
	if err != nil {
		return nil, err
	}
	var all []Link
	for _, l := range links {
		if match(l) {
			all = append(all, Link{Name: l.Attrs().Name, Addresses: addresses[l.Attrs().Index]})
		}
	}
	return all, nil
}

// PodEnd returns the name of the container's interface of a host end, empty if the pair or its
// other end's namespace is gone.
func (w *Wirer) PodEnd(hostLink string) (string, error) {
	host, err := rtnl.LinkOrNil(hostLink)
	if err != nil || host == nil || host.Attrs().NetNsID < 0 {
		return "", err
	}
	links, err := rtnl.LinksIn(host.Attrs().NetNsID)
	if err != nil {
		return "", err
	}
	for _, l := range links {
		if l.Attrs().Index == host.Attrs().ParentIndex {
			return l.Attrs().Name, nil
		}
	}
	return "", nil
}

// Routed lists, by the index of a link, the addresses of our routes through the link.
func Routed() (map[int][]netip.Addr, error) {
	var routes []route
	for _, family := range rtnl.Families {
		more, err := ownRoutes(family)
		if err != nil {
			return nil, err
		}
		routes = append(routes, more...)
	}
	return addressesByLink(routes), nil
}

// sourcesOf lists the addresses that the pod may send from, and the links where packets to it
// arrive. uplinks has the uplink of each address.
func sourcesOf(spec Spec, uplinks []netlink.Link) []netfilter.Source {
	var all []netfilter.Source
	for i, a := range spec.Addresses {
		all = append(all, netfilter.Source{Link: spec.HostLink(), Address: a.Address, Uplink: uplinks[i].Attrs().Name, Routed: a.Routed})
	}
	return all
}

// Sources lists the addresses that the pods on the node may send from, by its routes, rules and
// proxy entries, for a caller that makes the table of package netfilter.
func (w *Wirer) Sources() ([]netfilter.Source, error) {
	links, err := w.List()
	if err != nil {
		return nil, err
	}
	uplinks, err := AnsweredOn(unix.AF_INET)
	if err != nil {
		return nil, err
	}
	var all []netfilter.Source
	for _, l := range links {
		for _, addr := range l.Addresses {
			all = append(all, netfilter.Source{Link: l.Name, Address: addr, Uplink: uplinks[addr]})
		}
	}
	return all, nil
}

// AnsweredOn returns, for each address of a family for which the node answers, the name of the
// link.
func AnsweredOn(family int) (map[netip.Addr]string, error) {
	proxies, err := listProxies(family)
	if err != nil {
		return nil, err
	}
	uplinks, names := map[netip.Addr]string{}, map[int]string{}
	for _, p := range proxies {
		if _, known := names[p.link]; !known {
			link, err := netlink.LinkByIndex(p.link)
			if err != nil && !rtnl.LinkNotFound(err) {
				return nil, fmt.Errorf("find link %d: %w", p.link, err)
			}
			if err == nil {
				names[p.link] = link.Attrs().Name
			}
		}
		uplinks[p.addr] = names[p.link]
	}
	return uplinks, nil
}

// Remove removes a host end and everything that belongs to it.
func (w *Wirer) Remove(name string) error {
	if !isHostLink(name) {
		return fmt.Errorf("link %s is not one of ours", name)
	}
	link, err := rtnl.LinkOrNil(name)
	if err != nil || link == nil {
		return err
	}
	err = w.withdrawAddresses(nil, name, link.Attrs().Index)
	return errors.Join(err, DeleteEnd(name))
}
