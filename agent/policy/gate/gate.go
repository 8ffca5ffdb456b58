// SPDX-License-Identifier: Apache-2.0

// Package gate keeps packets from a pod while its network is made: from before its first
// interface until the rules of its policies are in the kernel. Nothing runs in the pod then, but
// its kernel would answer. The gate is a table of its own in the pod's network namespace, beside
// that of package table.
package gate

import (
	"errors"
	"fmt"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/netfilter"
)

// TableName is the name of the table, in the family inet.
const TableName = netfilter.TableName + "-gate"

// Close lets nothing into the namespace but what it sends to itself, and the neighbour discovery without
// which plugins cannot make addresses. It blocks for the kernel and is idempotent.
func Close(netns string) error {
	err := inside(netns, func(conn *nftables.Conn, table *nftables.Table) error {
		netfilter.Delete(conn, table)
		conn.AddTable(table)
		// Before all others.
		chain := conn.AddChain(netfilter.NewChain(table, "input", nftables.ChainTypeFilter, nftables.ChainHookInput, *nftables.ChainPriorityRaw).Chain)
		rule := func(exprs ...expr.Any) {
			conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: exprs})
		}
		accept, drop := &expr.Verdict{Kind: expr.VerdictAccept}, &expr.Verdict{Kind: expr.VerdictDrop}
		name := make([]byte, unix.IFNAMSIZ)
		copy(name, "lo")
		rule(&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name}, accept)
		// Router solicitation to redirect (RFC 4861).
		const first, last = 133, 137
		rule(
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_ICMPV6}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
			&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: []byte{first}, ToData: []byte{last}}, accept,
		)
		rule(drop)
		return nil
	})
	if err != nil {
		return fmt.Errorf("close the network of the pod in %s until its policies are enforced: %w", netns, err)
	}
	return nil
}

// Open removes what Close made, if it is there. It blocks for the kernel.
func Open(netns string) error {
	err := inside(netns, func(conn *nftables.Conn, table *nftables.Table) error {
		netfilter.Delete(conn, table)
		return nil
	})
	var gone ns.NSPathNotExistErr
	if errors.As(err, &gone) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the network of the pod in %s: %w", netns, err)
	}
	return nil
}

func inside(netns string, add func(conn *nftables.Conn, table *nftables.Table) error) error {
	return ns.WithNetNSPath(netns, func(ns.NetNS) error {
		conn, err := netfilter.Open()
		if err != nil {
			return err
		}
		if err := add(conn, &nftables.Table{Family: nftables.TableFamilyINet, Name: TableName}); err != nil {
			return err
		}
		return conn.Flush()
	})
}
