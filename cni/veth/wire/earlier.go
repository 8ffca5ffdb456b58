// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
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
