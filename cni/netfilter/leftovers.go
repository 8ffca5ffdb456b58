// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"fmt"
	"strings"

	"github.com/berth-dev/berth/cni/leftover"
	"github.com/berth-dev/berth/cni/nftables"
)

// TablePrefix begins the name of every nftables table of Berth, of all families. It may
// never change.
const TablePrefix = "berth"

// Leftovers lists the nftables tables of Berth, also of other packages, and Berth's rules in tables
// of other programs.
func Leftovers() ([]leftover.Item, error) {
	tables, err := nftables.Tables(0)
	if err != nil {
		return nil, err
	}
	var items []leftover.Item
	for _, t := range tables {
		if !strings.HasPrefix(t.Name, TablePrefix) {
			continue
		}
		items = append(items, leftover.Item{Name: "nftables table " + t.Family.String() + " " + t.Name, Remove: func() error { return nftables.RemoveTable(&t.Table) }})
	}
	chains, err := forwardChains()
	if err != nil {
		return nil, err
	}
	return append(items, forwardLeftovers(chains)...), nil
}

func forwardLeftovers(chains []forwardChain) []leftover.Item {
	var items []leftover.Item
	for _, f := range chains {
		if len(f.ours)+len(f.misplaced) > 0 {
			name := fmt.Sprintf("Berth's rules in nftables chain %s of table %s %s", f.chain.Name, f.chain.Table.Family, f.chain.Table.Name)
			items = append(items, leftover.Item{Name: name, Remove: func() error { return f.replace() }})
		}
	}
	return items
}
