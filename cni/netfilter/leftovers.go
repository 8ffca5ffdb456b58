// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/leftover"
)

// TablePrefix begins the name of every nftables table of Berth, of all families. It may
// never change.
const TablePrefix = "berth"

// Leftovers lists the nftables tables of Berth, also those of other packages, and Berth's
// rules in tables of others.
func Leftovers() ([]leftover.Item, error) {
	conn, err := Open()
	if err != nil {
		return nil, err
	}
	tables, err := conn.ListTables()
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		// A kernel without nf_tables.
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list nftables tables: %w", err)
	}
	var items []leftover.Item
	for _, t := range tables {
		if !strings.HasPrefix(t.Name, TablePrefix) {
			continue
		}
		items = append(items, leftover.Item{Name: "nftables table " + familyName(t.Family) + " " + t.Name, Remove: func() error {
			conn.DelTable(t)
			if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
			return nil
		}})
	}
	chains, err := forwardChains(conn)
	if err != nil {
		return nil, err
	}
	return append(items, forwardLeftovers(conn, chains)...), nil
}

func forwardLeftovers(conn *nftables.Conn, chains []forwardChain) []leftover.Item {
	var items []leftover.Item
	for _, f := range chains {
		if len(f.ours)+len(f.misplaced) > 0 {
			name := fmt.Sprintf("Berth's rules in nftables chain %s of table %s %s", f.chain.Name, familyName(f.chain.Table.Family), f.chain.Table.Name)
			items = append(items, leftover.Item{Name: name, Remove: func() error { return f.remove(conn) }})
		}
	}
	return items
}

func familyName(f nftables.TableFamily) string {
	switch f {
	case nftables.TableFamilyINet:
		return "inet"
	case nftables.TableFamilyIPv4:
		return "ip"
	case nftables.TableFamilyIPv6:
		return "ip6"
	case nftables.TableFamilyARP:
		return "arp"
	case nftables.TableFamilyBridge:
		return "bridge"
	case nftables.TableFamilyNetdev:
		return "netdev"
	default:
		return fmt.Sprintf("family %d", f)
	}
}
