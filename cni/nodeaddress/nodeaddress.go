// SPDX-License-Identifier: Apache-2.0

package nodeaddress

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/fault"
	"github.com/berth-dev/berth/cni/leftover"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
)

// Marks of our state in the kernel. They must never change: by them a new version finds the state
// of an old version. The rules come after the rules of package wire, and before rules of the host
// without a priority.
const (
	table           = 0x65000000
	prioritySubnets = 32310
	priorityMark    = 32311
)

// Address is an address of a pool for the node itself.
type Address struct {
	Address netip.Addr
	// Subnet is the subnet of the pool.
	Subnet netip.Prefix
}

func (a Address) String() string { return netip.PrefixFrom(a.Address, a.Subnet.Bits()).String() }

func (a Address) family() int { return rtnl.FamilyOf(a.Address) }

// mark returns the rule that marks the address as Berth's.
func (a Address) mark() netlink.Rule {
	rule := rtnl.NewRule(a.family(), priorityMark, table)
	rule.Src, rule.Dst = rtnl.IPNet(rtnl.SinglePrefix(a.Address)), rtnl.IPNet(a.Subnet)
	return rule
}

// subnetsRule leads all packets to the table except packets from pods and replies to pods.
func subnetsRule(family int) netlink.Rule {
	mask := uint32(netfilter.MarkMask)
	rule := rtnl.NewRule(family, prioritySubnets, table)
	rule.Mask = &mask
	return rule
}

// List returns the addresses with Berth's mark, in ascending order. The node has them, is about to
// get them, or is about to lose them.
func List() ([]Address, error) {
	var all []Address
	for _, family := range rtnl.Families {
		rules, err := rtnl.Rules(family)
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			if r.Priority == priorityMark && r.Src != nil && r.Dst != nil {
				all = append(all, Address{rtnl.PrefixOf(r.Src).Addr(), rtnl.PrefixOf(r.Dst)})
			}
		}
	}
	slices.SortFunc(all, func(x, y Address) int { return x.Address.Compare(y.Address) })
	return all, nil
}

func Carried() ([]netip.Addr, error) {
	marked, err := List()
	var all []netip.Addr
	for _, a := range marked {
		all = append(all, a.Address)
	}
	return all, err
}

// Mark notes that the node may have the address from now on. It is idempotent.
func Mark(a Address) error {
	err := rtnl.AddRule(a.mark())
	fault.Point("nodeaddress/mark")
	return err
}

func find(a Address) (links []int, err error) {
	all, err := rtnl.Addresses(nil, a.family())
	for _, have := range all {
		if rtnl.PrefixOf(have.IPNet) == netip.PrefixFrom(a.Address, a.Subnet.Bits()) {
			links = append(links, have.LinkIndex)
		}
	}
	return links, err
}

// Has reports whether the link has the address. It does not look at marks.
func Has(a Address, link int) (bool, error) {
	links, err := find(a)
	return slices.Contains(links, link), err
}

// Put adds a marked address to the link, with its routes and rules, and removes it from other
// links. It is idempotent.
func Put(a Address, link int) error {
	links, err := find(a)
	if err != nil {
		return err
	}
	for _, other := range links {
		if other != link {
			if err := remove(a, other); err != nil {
				return err
			}
		}
	}
	if !slices.Contains(links, link) {
		on, err := netlink.LinkByIndex(link)
		if err != nil {
			return fmt.Errorf("find link %d: %w", link, err)
		}
		if err := netlink.AddrReplace(on, a.toAdd()); err != nil {
			return fmt.Errorf("add address %s to link %s: %w", a, on.Attrs().Name, err)
		}
		fault.Point("nodeaddress/address")
	}
	return a.route(link)
}

func (a Address) toAdd() *netlink.Addr {
	addr := &netlink.Addr{IPNet: rtnl.IPNet(netip.PrefixFrom(a.Address, a.Subnet.Bits())), Flags: unix.IFA_F_NOPREFIXROUTE}
	if a.Address.Is6() {
		// The address was probed before.
		addr.Flags |= unix.IFA_F_NODAD
		// The address is deprecated for ever.
		addr.PreferedLft, addr.ValidLft = 0, math.MaxUint32
	}
	return addr
}

// route makes the node reach the subnet by the link, unless the node has its own routes there.
func (a Address) route(link int) error {
	have, err := routesOf(a.family())
	if err != nil {
		return err
	}
	if have.hasOwn(a.Subnet) {
		return a.unroute(have)
	}
	if !have.leads(a.Subnet, link) {
		r := netlink.Route{
			LinkIndex: link, Dst: rtnl.IPNet(a.Subnet), Src: a.Address.AsSlice(), Scope: rtnl.LinkScope(a.family()),
			Protocol: rtnl.Protocol, Table: table, Family: a.family(),
		}
		if err := netlink.RouteReplace(&r); err != nil {
			return fmt.Errorf("add route %s on link %d to table %d: %w", a.Subnet, link, table, err)
		}
		fault.Point("nodeaddress/route")
	}
	return rtnl.AddRule(subnetsRule(a.family()))
}

// routes has the relevant routes: ours, and the node's in its main table.
type routes struct{ ours, main []netlink.Route }

func routesOf(family int) (*routes, error) {
	r := &routes{}
	var err error
	if r.ours, err = netlinksafe.RouteListFiltered(family, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE); err != nil {
		return nil, fmt.Errorf("list the routes of table %d: %w", table, err)
	}
	if r.main, err = netlinksafe.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE); err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return r, nil
}

// hasOwn reports whether the node has a route of its own to the subnet or to a part of it. Routes
// to pods do not count, because they are Berth's.
func (r *routes) hasOwn(subnet netip.Prefix) bool {
	return slices.ContainsFunc(r.main, func(have netlink.Route) bool {
		to := rtnl.PrefixOf(have.Dst)
		return have.Protocol != rtnl.Protocol && to.IsValid() && to.Bits() >= subnet.Bits() && subnet.Contains(to.Addr())
	})
}

// leads reports whether a route of ours with a source leads to the subnet by the link. When the
// address goes, the source of an IPv6 route is lost, and an IPv4 route is lost completely.
func (r *routes) leads(subnet netip.Prefix, link int) bool {
	return slices.ContainsFunc(r.ours, func(have netlink.Route) bool {
		return rtnl.PrefixOf(have.Dst) == subnet && have.LinkIndex == link && have.Src != nil
	})
}

// unroute removes our routes to the subnet, and the rule to our table if no other route is left
// there.
func (a Address) unroute(have *routes) error {
	var errs []error
	left := 0
	for _, r := range have.ours {
		if rtnl.PrefixOf(r.Dst) != a.Subnet {
			left++
			continue
		}
		errs = append(errs, rtnl.DeleteRoute(r))
		fault.Point("nodeaddress/route-deleted")
	}
	if left == 0 {
		errs = append(errs, rtnl.DeleteRule(subnetsRule(a.family())))
	}
	return errors.Join(errs...)
}

// Remove removes a marked address from the node, with its routes and rules, and last its mark. It
// is idempotent. Another marked address of the subnet may lack its route afterwards, until it is
// Put again.
func Remove(a Address) error {
	links, err := find(a)
	if err != nil {
		return err
	}
	for _, link := range links {
		if err := remove(a, link); err != nil {
			return err
		}
	}
	have, err := routesOf(a.family())
	if err != nil {
		return err
	}
	if err := a.unroute(have); err != nil {
		return err
	}
	return Unmark(a)
}

// Unmark ends the mark of an address that the node does not have.
func Unmark(a Address) error {
	err := rtnl.DeleteRule(a.mark())
	fault.Point("nodeaddress/unmarked")
	return err
}

// remove removes the address from a link. With the first IPv4 address of a subnet the kernel also
// removes the others, unless the link promotes them (promote_secondaries): remove restores other
// addresses that are not ours.
func remove(a Address, link int) error {
	before, err := rtnl.Addresses(nil, a.family())
	if err != nil {
		return err
	}
	on, err := netlink.LinkByIndex(link)
	if rtnl.LinkNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find link %d: %w", link, err)
	}
	addr := &netlink.Addr{IPNet: rtnl.IPNet(netip.PrefixFrom(a.Address, a.Subnet.Bits()))}
	if err := netlink.AddrDel(on, addr); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !rtnl.IsGone(err) {
		return fmt.Errorf("delete address %s of link %s: %w", a, on.Attrs().Name, err)
	}
	fault.Point("nodeaddress/address-deleted")
	if a.Address.Is6() {
		return nil
	}
	after, err := rtnl.Addresses(nil, a.family())
	if err != nil {
		return err
	}
	for _, was := range before {
		prefix := rtnl.PrefixOf(was.IPNet)
		same := func(now netlink.Addr) bool { return now.LinkIndex == link && rtnl.PrefixOf(now.IPNet) == prefix }
		if was.LinkIndex != link || prefix.Addr() == a.Address || slices.ContainsFunc(after, same) {
			continue
		}
		was.Flags &^= unix.IFA_F_SECONDARY
		if err := netlink.AddrReplace(on, &was); err != nil {
			return fmt.Errorf("put back address %s of link %s, which went with %s: %w", prefix, on.Attrs().Name, a, err)
		}
	}
	return nil
}

// Leftovers lists the addresses with Berth's mark. Package wire lists further rules and routes
// after a crash.
func Leftovers() ([]leftover.Item, error) {
	marked, err := List()
	var items []leftover.Item
	for _, a := range marked {
		items = append(items, leftover.Item{Name: "the node's address " + a.String(), Remove: func() error { return Remove(a) }})
	}
	return items, err
}
