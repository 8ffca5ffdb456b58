// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"net/netip"

	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
)

// RemoveLoose removes kernel state with our marks that belongs to no link: rules and
// routes that no address needs, and proxy entries for addresses without a route of ours.
func (w *Wirer) RemoveLoose() error {
	w.routing.Lock()
	defer w.routing.Unlock()
	var errs []error
	present := map[netip.Addr]bool{}
	for _, family := range rtnl.Families {
		k, err := readRouting(family)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, k.sweep())
		for _, r := range k.routes {
			if addr, ok := r.toPod(); ok {
				present[addr] = true
			}
		}
		errs = append(errs, removeLooseProxies(family, present))
	}
	return errors.Join(append(errs, removeLooseSources(present), netfilter.Sweep())...)
}

func removeLooseSources(present map[netip.Addr]bool) error {
	sources, err := netfilter.Sources()
	errs := []error{err}
	for _, s := range sources {
		link, err := rtnl.LinkOrNil(s.Link)
		if err != nil || link != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, netfilter.Revoke(s, present[s.Address]))
	}
	links, err := netfilter.Links()
	errs = append(errs, err)
	for _, name := range links {
		link, err := rtnl.LinkOrNil(name)
		if err == nil && link == nil {
			err = netfilter.Forget(name)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func removeLooseProxies(family int, present map[netip.Addr]bool) error {
	proxies, err := listProxies(family)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range proxies {
		if !present[p.addr] {
			errs = append(errs, p.del())
		}
	}
	return errors.Join(errs...)
}
