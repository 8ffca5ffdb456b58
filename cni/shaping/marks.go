// SPDX-License-Identifier: Apache-2.0

package shaping

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// TableName is the name of the nftables table, in the family inet, that sets DSCPs. It has a
// set of addresses and a rule for each DSCP and family in use.
const TableName = "berth_profiles"

// marksVersion is in the comment of every rule. Whoever changes a rule changes it.
const marksVersion = 1

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

// rule sets the DSCP and leaves the two bits of ECN.
func (m mark) rule(chain *nftables.Chain, set *nftables.Set) *nftables.Rule {
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
	return &nftables.Rule{
		Table: chain.Table, Chain: chain, UserData: userdata.AppendString(nil, userdata.TypeComment, fmt.Sprintf("berth %d: %s", marksVersion, set.Name)),
		Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: saddr, Len: length},
			&expr.Lookup{SourceRegister: 1, SetName: set.Name},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Len: 2},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 2, Mask: keep, Xor: value},
			&write,
		},
	}
}

// applyMarks makes the table that marks has, in one transaction, or removes it where there
// is nothing to mark. Without prune, addresses of others than pods keep their DSCP.
func applyMarks(marks map[netip.Addr]uint8, pods []Pod, prune bool) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: TableName}
	accept := nftables.ChainPolicyAccept
	chain := &nftables.Chain{Table: table, Name: "mark", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle, Policy: &accept}
	have, rules, err := readMarks(conn, table, chain)
	if err != nil {
		return err
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
	var wantRules [][]byte
	for _, m := range order {
		wantRules = append(wantRules, m.rule(chain, m.set(table)).UserData)
	}
	whole := len(wanted) == 0 && rules == nil || len(wanted) > 0 && slices.EqualFunc(rules, wantRules, bytes.Equal)
	if whole && maps.Equal(have, wanted) {
		return nil
	}
	// A table can only be deleted if it exists.
	conn.AddTable(table)
	conn.DelTable(table)
	if len(wanted) > 0 {
		conn.AddTable(table)
		conn.AddChain(chain)
		for _, m := range order {
			set := m.set(table)
			if err := conn.AddSet(set, groups[m]); err != nil {
				return fmt.Errorf("make nftables set %s: %w", set.Name, err)
			}
			conn.AddRule(m.rule(chain, set))
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

// readMarks returns the marks and the comments of the rules that the kernel has; the
// comments are nil where there is no table.
func readMarks(conn *nftables.Conn, table *nftables.Table, chain *nftables.Chain) (map[netip.Addr]uint8, [][]byte, error) {
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, nil, fmt.Errorf("list nftables tables: %w", err)
	}
	if !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == TableName }) {
		return nil, nil, nil
	}
	rules, err := conn.GetRules(table, chain)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, nil, fmt.Errorf("list nftables chain %s: %w", chain.Name, err)
	}
	comments := [][]byte{}
	for _, r := range rules {
		comments = append(comments, r.UserData)
	}
	sets, err := conn.GetSets(table)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, nil, fmt.Errorf("list nftables sets: %w", err)
	}
	marks := map[netip.Addr]uint8{}
	for _, set := range sets {
		var dscp uint8
		if _, err := fmt.Sscanf(set.Name, "dscp%d_", &dscp); err != nil {
			continue
		}
		elements, err := conn.GetSetElements(set)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, nil, fmt.Errorf("list nftables set %s: %w", set.Name, err)
		}
		for _, e := range elements {
			if addr, ok := netip.AddrFromSlice(e.Key); ok {
				marks[addr] = dscp
			}
		}
	}
	return marks, comments, nil
}
