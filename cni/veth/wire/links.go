// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/cni/netfilter"
)

// Link is a host end on this node and the addresses whose traffic it carries.
type Link struct {
	Name      string
	Addresses []netip.Addr
}

// List returns every host end on the node.
func (w *Wirer) List() ([]Link, error) {
	links, err := ourLinks()
	if err != nil {
		return nil, err
	}
	var all []Link
	for _, l := range links {
		addrs, err := addressesOf(l.Attrs().Index)
		if err != nil {
			return nil, err
		}
		all = append(all, Link{Name: l.Attrs().Name, Addresses: addrs})
	}
	return all, nil
}

// sourcesOf lists what the pod may send from.
func sourcesOf(spec Spec) []netfilter.Source {
	var all []netfilter.Source
	for _, a := range spec.Addresses {
		all = append(all, netfilter.Source{Link: spec.HostLink(), Address: a.Address})
	}
	return all
}

// sources lists what the pods on the node may send from, which rules and links say.
func (w *Wirer) sources() ([]netfilter.Source, error) {
	links, err := w.List()
	if err != nil {
		return nil, err
	}
	var all []netfilter.Source
	for _, l := range links {
		for _, addr := range l.Addresses {
			all = append(all, netfilter.Source{Link: l.Name, Address: addr})
		}
	}
	return all, nil
}

// Remove removes one host end and all that belongs to it.
func (w *Wirer) Remove(name string) error {
	if !strings.HasPrefix(name, LinkPrefix) {
		return fmt.Errorf("link %s is not one of ours", name)
	}
	link, err := linkOrNil(name)
	if err != nil || link == nil {
		return err
	}
	err = w.withdrawAddresses(nil, name, link.Attrs().Index)
	return errors.Join(err, deleteLink(name))
}

func ourLinks() ([]netlink.Link, error) {
	links, err := netlinksafe.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var ours []netlink.Link
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, LinkPrefix) && l.Type() == "veth" {
			ours = append(ours, l)
		}
	}
	return ours, nil
}
