// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Protocol is on every route, rule and proxy neighbour of Berth on a node. It may never
// change: by it a new version finds the state of an old one.
const Protocol = 98

// NewRule returns a rule with our mark for all packets.
func NewRule(family, priority, table int) netlink.Rule {
	rule := *netlink.NewRule()
	rule.Family, rule.Priority, rule.Table, rule.Protocol = family, priority, table, Protocol
	return rule
}

// AddRule adds a rule that may be there: the kernel has no replace for rules.
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
