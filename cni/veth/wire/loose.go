// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/netfilter"
)

// RemoveLoose removes kernel state with our marks that belongs to no link: rules and
// tables of links that no longer exist, and proxy entries for addresses without a
// route of ours.
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
	return errors.Join(append(errs, removeLooseProxies(), removeLooseSources())...)
}

func removeLooseSources() error {
	sources, err := netfilter.Sources()
	errs := []error{err}
	for _, s := range sources {
		link, err := linkOrNil(s.Link)
		if err != nil || link != nil {
			errs = append(errs, err)
			continue
		}
		elsewhere, err := carriedElsewhere(s.Address, 0)
		if err == nil {
			err = netfilter.Revoke(s, elsewhere)
		}
		errs = append(errs, err)
	}
	links, err := netfilter.Links()
	errs = append(errs, err)
	for _, name := range links {
		link, err := linkOrNil(name)
		if err == nil && link == nil {
			err = netfilter.Forget(name)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
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
