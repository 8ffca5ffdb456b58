// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/fault"
	"github.com/berth-dev/berth/cni/rtnl"
)

// Marks of our state in the kernel. They may never change: by them a new version finds the state of
// an old one. The rules come after the ones of package wire for packets to pods, and before the
// ones for packets from pods; the ones of addresses whose answers the node leads to others come
// before all.
const (
	tables          = 0x65000000 // the number of the Way is added
	priorityArrive  = 32288
	priorityReverse = 32289
	priorityOwn     = 32295
	priorityNowhere = 32296
	priorityLeaving = 32297
)

// unreachableMetric is more than the metric of any route of a table.
const unreachableMetric = 1 << 30

// routing has the rules and routes of one family: the wanted ones, and ours in the kernel.
type routing struct {
	family             int
	rules, haveRules   []netlink.Rule
	routes, haveRoutes []netlink.Route
}

func newRouting(family int, all []Way) (*routing, error) {
	k := &routing{family: family}
	for number := range Ways {
		// One without a number asks the routes with the first mark, too.
		is := func(w Way) bool { return max(w.Number, 1) == number+1 && rtnl.FamilyOf(w.Subnet.Addr()) == family }
		// All lead the same way, of which one may be open.
		i := slices.IndexFunc(all, func(w Way) bool { return is(w) && w.IsOpen() })
		if i < 0 {
			i = slices.IndexFunc(all, is)
		}
		if i >= 0 {
			way := all[i]
			if way.Number == 0 {
				way = Way{Number: 1, Subnet: way.Subnet}
			}
			k.rules = append(k.rules, way.rules(family)...)
			k.routes = append(k.routes, way.routes(family)...)
		}
	}
	rules, err := rtnl.Rules(family)
	if err != nil {
		return nil, err
	}
	k.haveRules = slices.DeleteFunc(rules, func(r netlink.Rule) bool { return r.Priority < priorityOwn || r.Priority > priorityLeaving })
	for n := range Ways {
		routes, err := netlinksafe.RouteListFiltered(family, &netlink.Route{Table: tables + n + 1}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, fmt.Errorf("list the routes of table %d: %w", tables+n+1, err)
		}
		for _, r := range routes {
			r.Family = family
			k.haveRoutes = append(k.haveRoutes, r)
		}
	}
	return k, nil
}

func (w *Way) rules(family int) []netlink.Rule {
	mask := uint32(markMask)
	marked := func(priority, table int, mark uint32) netlink.Rule {
		rule := rtnl.NewRule(family, priority, table)
		rule.Mark, rule.Mask = mark, &mask
		return rule
	}
	own, ownAnswer := marked(priorityOwn, unix.RT_TABLE_MAIN, leaving(w.Number)), marked(priorityOwn, unix.RT_TABLE_MAIN, answer(w.Number))
	own.SuppressPrefixlen, ownAnswer.SuppressPrefixlen = 0, 0
	nowhere := marked(priorityNowhere, unix.RT_TABLE_UNSPEC, leaving(w.Number))
	nowhere.Type, nowhere.IifName = unix.RTN_UNREACHABLE, "lo"
	return []netlink.Rule{own, ownAnswer, nowhere, marked(priorityLeaving, tables+w.Number, leaving(w.Number)), marked(priorityLeaving, tables+w.Number, answer(w.Number))}
}

// routes returns the routes of the Way's table, the unreachable one first.
func (w *Way) routes(family int) []netlink.Route {
	route := func(to netip.Prefix) netlink.Route {
		return netlink.Route{Dst: rtnl.IPNet(to), Table: tables + w.Number, Protocol: rtnl.Protocol, Family: family}
	}
	anywhere := rtnl.AnyPrefix(w.Subnet.Addr())
	nowhere := route(anywhere)
	nowhere.Type, nowhere.Priority = unix.RTN_UNREACHABLE, unreachableMetric
	if !w.IsOpen() {
		return []netlink.Route{nowhere}
	}
	subnet, gateway := route(w.Subnet), route(anywhere)
	subnet.LinkIndex, subnet.Scope = w.Link, rtnl.LinkScope(family)
	gateway.LinkIndex, gateway.Gw, gateway.Flags = w.Link, w.Gateway.AsSlice(), int(netlink.FLAG_ONLINK)
	return []netlink.Route{nowhere, subnet, gateway}
}

func isNowhere(r netlink.Route) bool { return r.Type == unix.RTN_UNREACHABLE }

// same compares a wanted route with one of the kernel, which adds defaults.
func same(want, have netlink.Route) bool {
	return want.Table == have.Table && rtnl.PrefixOf(want.Dst) == rtnl.PrefixOf(have.Dst) && isNowhere(want) == isNowhere(have) &&
		(isNowhere(want) || want.LinkIndex == have.LinkIndex && want.Gw.Equal(have.Gw))
}

// prepare makes all tables unreachable that differ, and the rules that lead there.
func (k *routing) prepare() error {
	for _, want := range k.routes {
		if isNowhere(want) && !slices.ContainsFunc(k.haveRoutes, func(have netlink.Route) bool { return same(want, have) }) {
			if err := netlink.RouteReplace(&want); err != nil {
				return fmt.Errorf("make table %d unreachable: %w", want.Table, err)
			}
		}
	}
	var errs []error
	k.haveRoutes = slices.DeleteFunc(k.haveRoutes, func(have netlink.Route) bool {
		if isNowhere(have) || slices.ContainsFunc(k.routes, func(want netlink.Route) bool { return same(want, have) }) {
			return false
		}
		errs = append(errs, rtnl.DeleteRoute(have))
		return true
	})
	fault.Point("egress/closed")
	for _, want := range k.rules {
		if !slices.ContainsFunc(k.haveRules, func(have netlink.Rule) bool { return rtnl.SameRule(want, have) }) {
			errs = append(errs, rtnl.AddRule(want))
		}
	}
	fault.Point("egress/rules")
	return errors.Join(errs...)
}

// finish opens the tables, and removes the rules and routes that no Way needs any more.
func (k *routing) finish() error {
	fault.Point("egress/table")
	var errs []error
	for _, want := range k.routes {
		if !isNowhere(want) && !slices.ContainsFunc(k.haveRoutes, func(have netlink.Route) bool { return same(want, have) }) {
			if err := netlink.RouteReplace(&want); err != nil {
				errs = append(errs, fmt.Errorf("add route %s on link %d to table %d: %w", want.Dst, want.LinkIndex, want.Table, err))
			}
		}
	}
	for _, have := range k.haveRules {
		if !slices.ContainsFunc(k.rules, func(want netlink.Rule) bool { return rtnl.SameRule(want, have) }) {
			errs = append(errs, rtnl.DeleteRule(have))
		}
	}
	for _, have := range k.haveRoutes {
		if isNowhere(have) && !slices.ContainsFunc(k.routes, func(want netlink.Route) bool { return same(want, have) }) {
			errs = append(errs, rtnl.DeleteRoute(have))
		}
	}
	return errors.Join(errs...)
}
