// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/fault"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
)

// Close makes the node stop answering for the container's addresses on its uplinks, until Repair.
// Routes and rules stay. The node still answers for an address that another link of this node
// carries.
func (w *Wirer) Close(spec Spec) error {
	if spec.Routed {
		return nil
	}
	host := 0
	link, err := rtnl.LinkOrNil(spec.HostLink())
	if err != nil {
		return err
	}
	if link != nil {
		host = link.Attrs().Index
	}
	return w.eachFamily(spec.Addresses, false, func(k *routing, addrs []netip.Addr, proxies []proxy) error {
		var errs []error
		for _, addr := range addrs {
			errs = append(errs, k.stopAnswering(addr, host, proxies))
		}
		return errors.Join(errs...)
	})
}

// eachFamily calls do for each family of the addresses, or for both, with our routing and the
// entries by which the node answers.
func (w *Wirer) eachFamily(addrs []api.Address, both bool, do func(k *routing, addrs []netip.Addr, proxies []proxy) error) error {
	w.routing.Lock()
	defer w.routing.Unlock()
	var errs []error
	for _, family := range rtnl.Families {
		var of []netip.Addr
		for _, a := range addrs {
			if rtnl.FamilyOf(a.Address) == family {
				of = append(of, a.Address)
			}
		}
		if len(of) == 0 && !both {
			continue
		}
		k, err := readRouting(family)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		proxies, err := listProxies(family)
		errs = append(errs, err, do(k, of, proxies))
	}
	return errors.Join(errs...)
}

// stopAnswering removes the proxy entries of an address, unless another link than host also carries
// it.
func (k *routing) stopAnswering(addr netip.Addr, host int, proxies []proxy) error {
	if slices.ContainsFunc(k.links(addr), func(other int) bool { return other != host }) {
		return nil
	}
	var errs []error
	for _, p := range proxies {
		if p.addr == addr {
			errs = append(errs, p.del())
		}
	}
	return errors.Join(errs...)
}

// Withdraw stops the node from advertising and answering for the container's addresses, and removes
// their routes and rules. The pair stays, but is down. For an address that another link of this
// node carries, the node still answers, and the other link's routes and rules stay.
func (w *Wirer) Withdraw(spec Spec) error {
	host, err := rtnl.LinkOrNil(spec.HostLink())
	if err != nil {
		return err
	}
	if host == nil {
		// The kernel has removed the routes with the link.
		return w.withdrawAddresses(spec.Addresses, spec.HostLink(), 0)
	}
	return errors.Join(w.withdrawAddresses(spec.Addresses, spec.HostLink(), host.Attrs().Index), rtnl.SetDown(host))
}

// withdrawAddresses withdraws the given addresses and all addresses that the host link carries,
// because a caller that lost its records gives none. host is the link's index, 0 if the link no
// longer exists.
func (w *Wirer) withdrawAddresses(given []api.Address, link string, host int) error {
	return w.eachFamily(given, host != 0, func(k *routing, addrs []netip.Addr, proxies []proxy) error {
		if host != 0 {
			addrs = append(addrs, addressesByLink(k.routes)[host]...)
			slices.SortFunc(addrs, netip.Addr.Compare)
			addrs = slices.Compact(addrs)
		}
		var errs []error
		for _, addr := range addrs {
			errs = append(errs, k.withdraw(addr, link, host, proxies))
		}
		return errors.Join(append(errs, k.sweep())...)
	})
}

// withdraw removes the advertisement, proxy entries, routes and rules of an address on the host
// link, and of links that no longer exist. host is 0 if the host link no longer exists.
func (k *routing) withdraw(addr netip.Addr, link string, host int, proxies []proxy) error {
	elsewhere := slices.ContainsFunc(k.links(addr), func(other int) bool { return other != host })
	if err := k.unadvertise(addr, host, elsewhere); err != nil {
		return err
	}
	if !elsewhere {
		if err := k.stopAnswering(addr, host, proxies); err != nil {
			return err
		}
		fault.Point("veth/proxy-deleted")
	}
	if err := k.deleteRoutes(func(r route) bool { return r.link == host && r.dst == rtnl.SinglePrefix(addr) }); err != nil {
		return err
	}
	if err := netfilter.Revoke(netfilter.Source{Link: link, Address: addr}, elsewhere); err != nil {
		return err
	}
	fault.Point("veth/source-deleted")
	return nil
}
