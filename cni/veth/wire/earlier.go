// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
)

// Earlier versions gave each address of a link a table and a rule of its own:
//
//	rule 32300: lookup main suppress_prefixlength 0
//	rule 32301: from 10.0.70.5 lookup T
//	T: 10.0.70.0/24 dev uplink scope link; default via 10.0.70.1 dev uplink onlink
//
// Set-up takes over an address from them without an interruption: it makes the new pieces
// first. The new rules for pods come after the old ones, so that the addresses that are
// not taken over yet keep their way. Withdrawal removes both.
const (
	earlierPriorityMain    = 32300
	earlierPriorityAddress = 32301
	// The first four addresses of a link have earlierTables + 4·ifindex + position; the
	// next four have the same in the next block.
	earlierTables   = 0x62000000
	earlierInBlock  = 4
	earlierBlocks   = 2
	earlierBlockLen = 24
)

func isEarlierTable(table int) bool {
	block := (table&tableMask - earlierTables) >> earlierBlockLen
	return block >= 0 && block < earlierBlocks
}

// earlierLink returns the index of the link that a table of an earlier version is for.
func earlierLink(table int) int { return (table &^ tableMask) / earlierInBlock }

func isEarlierMainRule(r netlink.Rule) bool {
	return r.Priority == earlierPriorityMain && r.Table == unix.RT_TABLE_MAIN && r.SuppressPrefixlen == 0
}

// earlierAddress returns the address that a rule of an earlier version is for.
func earlierAddress(r netlink.Rule) (netip.Addr, bool) {
	if r.Priority != earlierPriorityAddress || !isEarlierTable(r.Table) {
		return netip.Addr{}, false
	}
	src := sourceOf(r)
	return src.Addr(), src.IsSingleIP()
}

// Versions before the mask had the marks 0x1000/0x1000 and 0x40/0x40. A rule for one new mark is
// made from each of them before the nftables table gives packets the new marks, so that
// packets find their way at every moment; the sweep after it removes the old ones.
const earlierArrivalMark = 0x40

// withMask returns the rule of today in place of one with an earlier mark; ok is false for
// other rules.
func withMask(r netlink.Rule) (now netlink.Rule, ok bool) {
	if r.Protocol != rtnl.Protocol || maskOf(r) != r.Mark {
		return r, false
	}
	switch r.Mark {
	case netfilter.Mark:
		return marked(r, netfilter.Mark), true
	case earlierArrivalMark:
		return marked(r, netfilter.ArrivalMark), true
	}
	return r, false
}

// adoptMarks makes the rules for the marks of a new nftables table where there are only rules
// for earlier ones. It only adds, and so needs no lock.
func adoptMarks() error {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, err := netlinksafe.RuleList(family)
		if err != nil {
			return fmt.Errorf("list rules: %w", err)
		}
		for _, r := range rules {
			r.Family = family
			now, ok := withMask(r)
			if !ok {
				continue
			}
			if err := netlink.RuleAdd(&now); err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("add rule %q: %w", now.String(), err)
			}
		}
	}
	return nil
}
