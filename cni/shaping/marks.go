// SPDX-License-Identifier: Apache-2.0

package shaping

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/netfilter"
)

// TableName is the name of the nftables table, in the family inet, that sets DSCPs. It has a
// set of addresses and a rule for each DSCP and family in use.
const TableName = "berth-profiles"

// marksVersion is in the comment of every rule. Whoever changes a rule changes it.
const marksVersion = "1"

// mark is a DSCP for source addresses of one family.
type mark struct {
	dscp uint8
	v6   bool
}

func (m mark) set(table *nftables.Table) *nftables.Set {
	set := &nftables.Set{Table: table, Name: fmt.Sprintf("dscp%d_v4", m.dscp), KeyType: nftables.TypeIPAddr}
	if m.v6 {
		set.Name, set.KeyType = fmt.Sprintf("dscp%d_v6", m.dscp), nftables.TypeIP6Addr
	}
	return set
}

// addRule sets the DSCP and leaves the two bits of ECN.
func (m mark) addRule(chain *netfilter.Chain, set *nftables.Set) {
	family, saddr, length := byte(unix.NFPROTO_IPV4), uint32(12), uint32(4)
	// The first two bytes: version, header length and DSCP with ECN.
	keep, value := []byte{0xff, 0x03}, []byte{0x00, m.dscp << 2}
	write := expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: 1, Base: expr.PayloadBaseNetworkHeader, Len: 2, CsumType: expr.CsumTypeInet, CsumOffset: 10}
	if m.v6 {
		family, saddr, length = unix.NFPROTO_IPV6, 8, 16
		// Version, traffic class (DSCP with ECN) and the flow label's first bits.
		keep, value = []byte{0xf0, 0x3f}, []byte{m.dscp >> 2, m.dscp << 6}
		write.CsumType, write.CsumOffset = expr.CsumTypeNone, 0
	}
	chain.Add(marksVersion, set.Name, []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: saddr, Len: length},
		&expr.Lookup{SourceRegister: 1, SetName: set.Name},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Len: 2},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 2, Mask: keep, Xor: value},
		&write,
	})
}

// applyMarks makes the table that marks has, in one transaction, or removes it where there
// is nothing to mark. Without prune, addresses of others than pods keep their DSCP.
func applyMarks(marks map[netip.Addr]uint8, pods []Pod, prune bool) error {
	conn, err := netfilter.Open()
	if err != nil {
		return err
	}
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: TableName}
	exists, err := netfilter.Exists(conn, table)
	if err != nil {
		return err
	}
	have := map[netip.Addr]uint8{}
	if exists {
		if have, err = readMarks(conn, table); err != nil {
			return err
		}
	}
	wanted := maps.Clone(marks)
	if !prune {
		others := map[netip.Addr]uint8{}
		maps.Copy(others, have)
		for _, pod := range pods {
			for _, addr := range pod.Addresses {
				delete(others, addr.Unmap())
			}
		}
		maps.Copy(others, marks)
		wanted = others
	}
	groups := groupMarks(wanted)
	order := slices.SortedFunc(maps.Keys(groups), func(x, y mark) int {
		return cmp.Or(cmp.Compare(x.dscp, y.dscp), cmp.Compare(x.set(table).Name, y.set(table).Name))
	})
	chain := netfilter.NewChain(table, "mark", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, *nftables.ChainPriorityMangle)
	var sets []*nftables.Set
	for _, m := range order {
		set := m.set(table)
		sets = append(sets, set)
		m.addRule(&chain, set)
	}
	whole := !exists
	if len(wanted) > 0 {
		if whole, err = chain.IsWhole(); err != nil {
			return err
		}
	}
	if whole && maps.Equal(have, wanted) {
		return nil
	}
	if len(wanted) == 0 {
		netfilter.Delete(conn, table)
	} else if err := netfilter.Replace(conn, []*nftables.Table{table}, sets, []netfilter.Chain{chain}); err != nil {
		return err
	}
	for i, m := range order {
		if err := netfilter.AddElements(conn, sets[i], groups[m]); err != nil {
			return err
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("write nftables table %s (does the kernel have nf_tables and nft_set_hash?): %w", TableName, err)
	}
	return nil
}

func groupMarks(marks map[netip.Addr]uint8) map[mark][]nftables.SetElement {
	groups := map[mark][]nftables.SetElement{}
	for addr, dscp := range marks {
		m := mark{dscp, addr.Is6()}
		groups[m] = append(groups[m], nftables.SetElement{Key: addr.AsSlice()})
	}
	return groups
}

// readMarks returns the marks of a table that the kernel has.
func readMarks(conn *nftables.Conn, table *nftables.Table) (map[netip.Addr]uint8, error) {
	sets, err := conn.GetSets(table)
	if err != nil && !netfilter.NotFound(err) {
		return nil, fmt.Errorf("list nftables sets: %w", err)
	}
	marks := map[netip.Addr]uint8{}
	for _, set := range sets {
		var dscp uint8
		if _, err := fmt.Sscanf(set.Name, "dscp%d_", &dscp); err != nil {
			continue
		}
		elements, err := conn.GetSetElements(set)
		if err != nil && !netfilter.NotFound(err) {
			return nil, fmt.Errorf("list nftables set %s: %w", set.Name, err)
		}
		for _, e := range elements {
			if addr, ok := netip.AddrFromSlice(e.Key); ok {
				marks[addr] = dscp
			}
		}
	}
	return marks, nil
}
