// SPDX-License-Identifier: Apache-2.0

package shaping

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/berth-dev/berth/cni/nftables"
)

// TableName is the name of the nftables table, in the family inet, that sets DSCPs. It has a
// set of addresses and a rule for each DSCP and family in use.
const TableName = "berth-profiles"

var marksTable = &nftables.Table{Family: nftables.INet, Name: TableName}

// applyMarks makes the table of marks in one transaction, or removes it if there are no marks.
// Without prune, addresses that belong to none of pods keep their DSCP.
func applyMarks(marks map[netip.Addr]uint8, pods []Pod, prune bool) error {
	wanted := maps.Clone(marks)
	if !prune {
		others, err := readMarks()
		if err != nil {
			return err
		}
		for _, pod := range pods {
			for _, addr := range pod.Addresses {
				delete(others, addr.Unmap())
			}
		}
		maps.Copy(others, marks)
		wanted = others
	}
	if len(wanted) == 0 {
		return nftables.RemoveTable(marksTable)
	}
	if _, err := tableOfMarks(wanted).Sync(); err != nil {
		return fmt.Errorf("%w (does the kernel have nf_tables and nft_set_hash?)", err)
	}
	return nil
}

func tableOfMarks(marks map[netip.Addr]uint8) *nftables.Table {
	type group struct {
		dscp uint8
		ip   *nftables.IP
	}
	elements := map[group][]nftables.Element{}
	for addr, dscp := range marks {
		g := group{dscp, nftables.IPOf(addr)}
		elements[g] = append(elements[g], nftables.Element{Key: addr.AsSlice()})
	}
	order := slices.SortedFunc(maps.Keys(elements), func(a, b group) int {
		return cmp.Or(cmp.Compare(a.dscp, b.dscp), cmp.Compare(a.ip.Suffix, b.ip.Suffix))
	})
	t := *marksTable
	var rules []nftables.Rule
	for _, g := range order {
		name := fmt.Sprintf("dscp%d_v%s", g.dscp, g.ip.Suffix)
		t.Sets = append(t.Sets, &nftables.Set{Name: name, Key: []nftables.Type{g.ip.Addr}, Elements: nftables.Elements(elements[g]...)})
		rules = append(rules, nftables.NewRule(name, g.ip.Is, nftables.In(name, g.ip.SAddr), g.ip.SetDSCP(g.dscp)))
	}
	t.Chains = []*nftables.Chain{{Name: "mark", Base: nftables.Filter(nftables.Prerouting, nftables.PriorityMangle), Rules: nftables.Rules(rules...)}}
	return &t
}

func readMarks() (map[netip.Addr]uint8, error) {
	have, err := marksTable.Contents()
	if err != nil {
		return nil, err
	}
	marks := map[netip.Addr]uint8{}
	for _, set := range have.Sets {
		var dscp uint8
		if _, err := fmt.Sscanf(set.Name, "dscp%d_", &dscp); err != nil {
			continue
		}
		err := marksTable.Elements(set.Name, func(e nftables.Element) {
			if addr, ok := netip.AddrFromSlice(e.Key); ok {
				marks[addr] = dscp
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return marks, nil
}
