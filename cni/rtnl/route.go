// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Protocol is on every route, rule and proxy neighbour of Berth on a node. It must never change: by
// it a new version finds the state of an old version.
const Protocol = 98

// NewRule returns a rule with our mark for all packets.
func NewRule(family, priority, table int) netlink.Rule {
	rule := *netlink.NewRule()
	rule.Family, rule.Priority, rule.Table, rule.Protocol = family, priority, table, Protocol
	return rule
}

// Rules lists the rules of a family with our mark, in the kernel's order.
func Rules(family int) ([]netlink.Rule, error) {
	all, err := netlinksafe.RuleList(family)
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	all = slices.DeleteFunc(all, func(r netlink.Rule) bool { return r.Protocol != Protocol })
	for i := range all {
		all[i].Family = family
	}
	return all, nil
}

// SameRule compares a rule with a rule of the kernel.
func SameRule(a, b netlink.Rule) bool {
	maskOf := func(r netlink.Rule) uint32 {
		if r.Mask == nil {
			return 0
		}
		return *r.Mask
	}
	return a.Priority == b.Priority && a.Table == b.Table && a.Protocol == b.Protocol && a.IifName == b.IifName && a.OifName == b.OifName && a.Invert == b.Invert &&
		a.SuppressPrefixlen == b.SuppressPrefixlen && a.Mark == b.Mark && maskOf(a) == maskOf(b) && PrefixOf(a.Src) == PrefixOf(b.Src) && PrefixOf(a.Dst) == PrefixOf(b.Dst)
}

// AddRule adds a rule that may exist already: the kernel cannot replace rules.
func AddRule(rule netlink.Rule) error {
	if err := netlink.RuleAdd(&rule); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add rule %q: %w", rule.String(), err)
	}
	return nil
}

// DeleteRule deletes a rule that may be gone.
func DeleteRule(rule netlink.Rule) error {
	if err := netlink.RuleDel(&rule); err != nil && !IsGone(err) {
		return fmt.Errorf("delete rule %q: %w", rule.String(), err)
	}
	return nil
}

// DeleteRoute deletes a route that may be gone.
func DeleteRoute(route netlink.Route) error {
	if err := netlink.RouteDel(&route); err != nil && !IsGone(err) {
		return fmt.Errorf("delete route %s of table %d: %w", route.Dst, route.Table, err)
	}
	return nil
}
