// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
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

// Remove takes one host end away, with all that belongs to it.
func (w *Wirer) Remove(name string) error {
	if !strings.HasPrefix(name, LinkPrefix) {
		return fmt.Errorf("link %s is not one of ours", name)
	}
	link, err := linkOrNil(name)
	if err != nil || link == nil {
		return err
	}
	err = w.withdrawAddresses(Spec{}, link.Attrs().Index)
	return errors.Join(err, deleteLink(name))
}

// RemoveLoose takes away what is marked as ours and belongs to no link any
// more: rules and tables of links that are gone, and answers for addresses
// that no route of ours leads to.
func (w *Wirer) RemoveLoose() error {
	var errs []error
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, err := podRules(family)
		errs = append(errs, err)
		for _, r := range rules {
			exists, err := linkExists(linkOfTable(r.rule.Table))
			if err != nil || exists {
				errs = append(errs, err)
				continue
			}
			if err := netlink.RuleDel(&r.rule); err != nil && !isGone(err) {
				errs = append(errs, fmt.Errorf("delete rule %q: %w", r.rule.String(), err))
			}
		}
		errs = append(errs, removeLooseTables(family))
	}
	return errors.Join(append(errs, removeLooseProxies())...)
}

func removeLooseTables(family int) error {
	var unknown error
	err := flushTables(family, func(table int) bool {
		exists, err := linkExists(linkOfTable(table))
		unknown = errors.Join(unknown, err)
		return err == nil && !exists
	})
	return errors.Join(err, unknown)
}

func removeLooseProxies() error {
	proxies, err := listProxies()
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range proxies {
		routes, err := hostRoutes(p.addr)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if len(routes) == 0 {
			errs = append(errs, p.del())
		}
	}
	return errors.Join(errs...)
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
