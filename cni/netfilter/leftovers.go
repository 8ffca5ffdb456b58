// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/leftover"
)

// TablePrefix begins the name of every nftables table of Berth, of all families. It may
// never change.
const TablePrefix = "berth"

// Leftovers lists the nftables tables of Berth, also those of other packages.
func Leftovers() ([]leftover.Item, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
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
	return items, nil
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
