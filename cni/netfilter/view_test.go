// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/nftables"

	"github.com/berth-dev/berth/agent/netnstest"
	berthtables "github.com/berth-dev/berth/cni/nftables"
)

var somePod = Source{Link: "bthv1", Address: netip.MustParseAddr("10.0.70.1"), Uplink: "eth0"}

func allowed(t *testing.T, node *netnstest.Host, sources ...Source) {
	t.Helper()
	node.Run(func() error {
		return Allow(func() ([]Source, error) { return nil, nil }, sources...)
	})
}

// A Check may use the view of an earlier one, and must see each change since, by any process.
func TestCheckSeesChanges(t *testing.T) {
	drop := nftables.ChainPolicyDrop
	for name, change := range map[string]func(conn *nftables.Conn){
		"element": func(*nftables.Conn) {
			if err := removeAll([]element{{inetTable, sourcesSet + "4", sourceKey(somePod.Link, somePod.Address)}}); err != nil {
				t.Error(err)
			}
		},
		"rules": func(conn *nftables.Conn) {
			conn.FlushTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: TableName})
		},
		"table": func(conn *nftables.Conn) {
			conn.DelTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: TableName})
		},
		"firewall": func(conn *nftables.Conn) {
			table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "firewall"})
			conn.AddChain(&nftables.Chain{Table: table, Name: "forward", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &drop})
		},
	} {
		t.Run(name, func(t *testing.T) {
			node := netnstest.New(t)
			allowed(t, node, somePod)
			node.Run(func() error {
				for range 2 {
					if err := Check(somePod); err != nil {
						return fmt.Errorf("before the change: %w", err)
					}
				}
				conn, err := nftables.New()
				if err != nil {
					return err
				}
				change(conn)
				if err := conn.Flush(); err != nil {
					return err
				}
				for range 2 {
					if err := Check(somePod); !errors.Is(err, ErrMissing) {
						t.Errorf("after the change: %v, want %v", err, ErrMissing)
					}
				}
				if err := Allow(func() ([]Source, error) { return []Source{somePod}, nil }, somePod); err != nil {
					return err
				}
				return Check(somePod)
			})
		})
	}
}

// foreign is a transaction of another program.
func foreign(change func(conn *nftables.Conn)) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	change(conn)
	return conn.Flush()
}

// An Allow may use the view of an earlier one, and must see each change since.
func TestAllowSeesChanges(t *testing.T) {
	second, third := somePod, somePod
	second.Address = somePod.Address.Next()
	third.Address = second.Address.Next()
	none := func() ([]Source, error) { return nil, nil }
	for name, change := range map[string]func(conn *nftables.Conn){
		"rules": func(conn *nftables.Conn) {
			conn.FlushTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: TableName})
		},
		"table": func(conn *nftables.Conn) {
			conn.DelTable(&nftables.Table{Family: nftables.TableFamilyARP, Name: TableName})
		},
	} {
		t.Run(name, func(t *testing.T) {
			node := netnstest.New(t)
			node.Run(func() error {
				for _, pod := range []Source{somePod, second} {
					if err := Allow(none, pod); err != nil {
						return err
					}
				}
				if now, known := berthtables.Now(); known && (last == nil || last.at != now) {
					t.Error("the next call reads all again, though nothing changed")
				}
				if err := foreign(change); err != nil {
					return err
				}
				if err := Allow(func() ([]Source, error) { return []Source{somePod, second}, nil }, third); err != nil {
					return err
				}
				return Check(somePod, second, third)
			})
		})
	}
}

// The tables of two namespaces may have seen equally many transactions.
func TestCheckOfTwoNamespaces(t *testing.T) {
	one, other := netnstest.New(t), netnstest.New(t)
	another := somePod
	another.Address = another.Address.Next()
	allowed(t, one, somePod)
	allowed(t, other, another)
	one.Run(func() error { return Check(somePod) })
	other.Run(func() error {
		if err := Check(somePod); !errors.Is(err, ErrMissing) {
			t.Errorf("the other namespace: %v, want %v", err, ErrMissing)
		}
		return Check(another)
	})
}

// sourcesOf returns the sources of a node's pods, with an address each.
func sourcesOf(pods int) []Source {
	var all []Source
	addr := somePod.Address
	for i := range pods {
		all = append(all, Source{Link: fmt.Sprintf("bthv%d", i), Address: addr, Uplink: "eth0"})
		addr = addr.Next()
	}
	return all
}

// BenchmarkCheck looks at one pod after another of a node with many.
func BenchmarkCheck(b *testing.B) {
	for _, pods := range []int{20, 200} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			node := netnstest.New(b)
			all := sourcesOf(pods)
			node.Run(func() error {
				if err := Allow(func() ([]Source, error) { return all, nil }, all...); err != nil {
					return err
				}
				for i := 0; b.Loop(); i++ {
					if err := Check(all[i%pods]); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

// BenchmarkAllow gives a node with many pods one more.
func BenchmarkAllow(b *testing.B) {
	for _, pods := range []int{20, 200} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			node := netnstest.New(b)
			all := sourcesOf(pods)
			addr := all[pods-1].Address
			node.Run(func() error {
				none := func() ([]Source, error) { return nil, nil }
				if err := Allow(none, all...); err != nil {
					return err
				}
				for b.Loop() {
					addr = addr.Next()
					if err := Allow(none, Source{Link: "bthv", Address: addr, Uplink: "eth0"}); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}
