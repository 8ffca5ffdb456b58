// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	mdlayher "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	own "github.com/berth-dev/berth/cni/nftables"
)

// What every table of Berth is written and read with, also those of other packages.

// Chain is a base chain and its rules.
type Chain struct {
	*nftables.Chain
	Rules []*nftables.Rule
}

// NewChain returns a chain that accepts what no rule decides, without rules.
func NewChain(table *nftables.Table, name string, kind nftables.ChainType, hook *nftables.ChainHook, priority nftables.ChainPriority) Chain {
	accept := nftables.ChainPolicyAccept
	return Chain{Chain: &nftables.Chain{Table: table, Name: name, Type: kind, Hooknum: hook, Priority: &priority, Policy: &accept}}
}

// Add adds a rule with a mark: a comment that says which version of the rules it is of and
// what it is for.
func (c *Chain) Add(version, comment string, exprs ...[]expr.Any) {
	c.Rules = append(c.Rules, &nftables.Rule{
		Table: c.Table, Chain: c.Chain, Exprs: slices.Concat(exprs...),
		UserData: userdata.AppendString(nil, userdata.TypeComment, fmt.Sprintf("berth %s: %s", version, comment)),
	})
}

// IsWhole returns whether the kernel has the chain with its rules, and only these, by their
// marks.
func (c *Chain) IsWhole() (bool, error) {
	marks, err := marksOf(c.Chain)
	return err == nil && slices.EqualFunc(marks, c.Rules, func(have []byte, want *nftables.Rule) bool { return bytes.Equal(have, want.UserData) }), err
}

// marksOf lists the user data of a chain's rules, none where there is no such chain. Package
// nftables cannot read rules that have ct expressions with a direction.
func marksOf(c *nftables.Chain) ([][]byte, error) {
	return (&own.Table{Family: own.Family(c.Table.Family), Name: c.Table.Name}).Marks(c.Name)
}

// Open returns a connection to the nftables of the calling thread's network namespace, for
// transactions of some ten thousand addresses.
func Open() (*nftables.Conn, error) {
	// A transaction is one message to the kernel, whose default, in bytes, is enough for some
	// hundred addresses.
	const socketBuffer = 16 << 20
	conn, err := nftables.New(nftables.WithSockOptions(func(conn *mdlayher.Conn) error {
		return errors.Join(conn.SetWriteBuffer(socketBuffer), conn.SetReadBuffer(socketBuffer))
	}))
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return conn, nil
}

// Exists returns whether the kernel has the table.
func Exists(conn *nftables.Conn, table *nftables.Table) (bool, error) {
	tables, err := conn.ListTablesOfFamily(table.Family)
	if err != nil {
		return false, fmt.Errorf("list nftables tables: %w", err)
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == table.Name }), nil
}

// Replace replaces tables by ones with empty sets and with chains, in the transaction that
// conn flushes.
func Replace(conn *nftables.Conn, tables []*nftables.Table, sets []*nftables.Set, chains []Chain) error {
	for _, table := range tables {
		Delete(conn, table)
		conn.AddTable(table)
	}
	for _, set := range sets {
		if err := conn.AddSet(set, nil); err != nil {
			return fmt.Errorf("make nftables set %s: %w", set.Name, err)
		}
	}
	for _, chain := range chains {
		conn.AddChain(chain.Chain)
		for _, rule := range chain.Rules {
			conn.AddRule(rule)
		}
	}
	return nil
}

// Delete deletes a table, which may be missing, in the transaction that conn flushes.
func Delete(conn *nftables.Conn, table *nftables.Table) {
	// A table can only be deleted if it exists.
	conn.AddTable(table)
	conn.DelTable(table)
}

// perMessage is how many elements one message has: its size is limited, and a transaction of
// a message for each would not fit into the socket's buffers. It is even, so that the two
// ends of an interval are in one message.
const perMessage = 200

// AddElements adds elements, of which none may be there with another value, in the
// transaction that conn flushes.
func AddElements(conn *nftables.Conn, set *nftables.Set, elements []nftables.SetElement) error {
	return inMessages(set, elements, conn.SetAddElements)
}

// DeleteElements deletes elements, which must be there, in the transaction that conn flushes.
func DeleteElements(conn *nftables.Conn, set *nftables.Set, elements []nftables.SetElement) error {
	return inMessages(set, elements, conn.SetDeleteElements)
}

func inMessages(set *nftables.Set, elements []nftables.SetElement, change func(*nftables.Set, []nftables.SetElement) error) error {
	for some := range slices.Chunk(elements, perMessage) {
		if err := change(set, some); err != nil {
			return fmt.Errorf("change %d elements of nftables set %s: %w", len(some), set.Name, err)
		}
	}
	return nil
}

// NotFound returns whether the kernel said that there is no such set or chain. Package
// nftables wraps some errors as text only.
func NotFound(err error) bool {
	return errors.Is(err, unix.ENOENT) || err != nil && strings.HasSuffix(err.Error(), unix.ENOENT.Error())
}
