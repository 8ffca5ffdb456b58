// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/nftables"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/netfilter"
	own "github.com/berth-dev/berth/cni/nftables"
)

// A pod sends from its own addresses and from no others, also where the node filters
// nothing itself.
func TestSpoofing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ own, neighbour, nobody, client string }{
		"IPv4": {"10.0.70.5", "10.0.70.6", "10.0.70.7", "10.0.70.50"},
		"IPv6": {"2001:db8:70::5", "2001:db8:70::6", "2001:db8:70::7", "2001:db8:70::50"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTopology(t)
			a, b := w.pod("a", c.own), w.pod("b", c.neighbour)
			setup(w.nodeA, a)
			setup(w.nodeA, b)
			for _, key := range []string{"all", "default", "eth0", a.spec.HostLink(), b.spec.HostLink()} {
				sysctl(t, w.nodeA, "net/ipv4/conf/"+key+"/rp_filter", "0")
			}
			for _, addr := range []string{c.neighbour, c.nobody} {
				a.IP("addr", "add", netip.PrefixFrom(netip.MustParseAddr(addr), netip.MustParseAddr(addr).BitLen()).String(), "dev", "eth0", "nodad")
			}
			for source, want := range map[string]netip.Addr{c.own: netip.MustParseAddr(c.own), c.neighbour: {}, c.nobody: {}} {
				if got := netnstest.Seen(t, a.Host, source, w.client, c.client); got != want {
					t.Errorf("sent from %s, the client saw %v, want %v", source, got, want)
				}
			}
			if c.own == "2001:db8:70::5" {
				// Policies know the pod by its addresses; no packet of this source leaves the node.
				a.IP("addr", "add", "fe80::77/64", "dev", "eth0", "nodad")
				for source, want := range map[string]string{"fe80::77%eth0": "invalid IP", c.own: c.own} {
					if got := netnstest.Seen(t, a.Host, source, w.nodeA, "2001:db8:60::11"); got.String() != want {
						t.Errorf("sent from %s, the node saw %v, want %s", source, got, want)
					}
				}
			}
			// The neighbour itself may, until it loses the address.
			if got := netnstest.Seen(t, b.Host, c.neighbour, w.client, c.client); got.String() != c.neighbour {
				t.Errorf("the neighbour is seen as %v", got)
			}
			w.nodeA.Run(func() error { return New("").Withdraw(b.spec) })
			w.nodeA.IP("link", "set", b.spec.HostLink(), "up")
			if got := netnstest.Seen(t, b.Host, c.neighbour, w.client, c.client); got.IsValid() {
				t.Errorf("after the withdrawal the neighbour is seen as %v", got)
			}
		})
	}
}

// A server sees the pod's own address, even if other programs masquerade on the node.
func TestSourceIsKept(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ own, node, client string }{
		"IPv4": {"10.0.70.5", "10.0.60.11", "10.0.70.50"},
		"IPv6": {"2001:db8:70::5", "2001:db8:60::11", "2001:db8:70::50"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTopology(t)
			p := w.pod("a", c.own)
			setup(w.nodeA, p)
			w.nodeA.Run(netnstest.Masquerade)
			if got := netnstest.Seen(t, p.Host, c.own, w.client, c.client); got.String() != c.own {
				t.Errorf("the client sees %v, want %s", got, c.own)
			}
			// Others are masqueraded as before.
			w.nodeA.Run(func() error {
				return netfilter.Revoke(netfilter.Source{Link: "none", Address: netip.MustParseAddr(c.own)}, false)
			})
			if got := netnstest.Seen(t, p.Host, c.own, w.client, c.client); got == netip.MustParseAddr(c.own) || !got.IsValid() {
				t.Errorf("without a rule of ours the client sees %v: nothing masquerades in this test", got)
			}
		})
	}
}

// Another program takes the table away, or a rule of it: Check says so, and Setup makes it
// again with the sources of every pod on the node.
func TestRulesTakenAway(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(conn *nftables.Conn) error{
		"everything": func(conn *nftables.Conn) error { conn.FlushRuleset(); return conn.Flush() },
		"a chain": func(conn *nftables.Conn) error {
			conn.DelChain(&nftables.Chain{Table: &nftables.Table{Family: nftables.TableFamilyINet, Name: netfilter.TableName}, Name: "sources"})
			return conn.Flush()
		},
		"a rule": func(conn *nftables.Conn) error {
			table := &nftables.Table{Family: nftables.TableFamilyINet, Name: netfilter.TableName}
			rules, err := conn.GetRules(table, &nftables.Chain{Table: table, Name: "sources"})
			if err != nil {
				return err
			}
			return errors.Join(conn.DelRule(rules[len(rules)-1]), conn.Flush())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTopology(t)
			a, b := w.pod("a", "10.0.70.5"), w.pod("b", "10.0.70.6", "2001:db8:70::6")
			setup(w.nodeA, a)
			setup(w.nodeA, b)
			w.nodeA.Run(func() error {
				conn, err := nftables.New()
				if err != nil {
					return err
				}
				return take(conn)
			})
			w.nodeA.Run(func() error {
				if err := New("").Check(b.spec); !errors.Is(err, netfilter.ErrMissing) {
					return fmt.Errorf("Check() = %w, want ErrMissing", err)
				}
				if _, err := New("").Setup(a.spec); err != nil {
					return err
				}
				return errors.Join(New("").Check(a.spec), New("").Check(b.spec))
			})
			b.Host.Ping("10.0.70.50")
			// The pods' links end without a teardown; nothing of them stays.
			w.nodeA.IP("link", "del", a.spec.HostLink())
			w.nodeA.IP("link", "del", b.spec.HostLink())
			w.nodeA.Run(func() error {
				if err := New("").RemoveLoose(); err != nil {
					return err
				}
				sources, err := netfilter.Sources()
				links, more := netfilter.Links()
				if len(sources) > 0 || len(links) > 0 {
					err = fmt.Errorf("left: %v, %v", sources, links)
				}
				return errors.Join(err, more)
			})
		})
	}
}

// The rules come back for the addresses that the node carries to pods, and for no others: nobody is
// asked whose they are.
func TestFilterComesBack(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	a, b, gone := w.pod("a", "10.0.70.5"), w.pod("b", "10.0.70.6", "2001:db8:70::6"), w.pod("gone", "10.0.70.7")
	for _, p := range []*pod{a, b, gone} {
		setup(w.nodeA, p)
	}
	w.nodeA.Run(func() error { return New("").Withdraw(gone.spec) })
	lose := map[string]func(conn *nftables.Conn) error{
		"all": func(conn *nftables.Conn) error { conn.FlushRuleset(); return conn.Flush() },
		"elements": func(conn *nftables.Conn) error {
			set, err := conn.GetSetByName(&nftables.Table{Family: nftables.TableFamilyINet, Name: netfilter.TableName}, "sources4")
			if err != nil {
				return err
			}
			conn.FlushSet(set)
			return conn.Flush()
		},
	}
	for name, lose := range lose {
		t.Run(name, func(t *testing.T) {
			w.nodeA.Run(func() error {
				conn, err := nftables.New()
				if err != nil {
					return err
				}
				if err := lose(conn); err != nil {
					return err
				}
				if err := New("").CheckNode(a.spec); !errors.Is(err, netfilter.ErrMissing) {
					return fmt.Errorf("CheckNode() = %w, want ErrMissing", err)
				}
				if err := New("").Filter(); err != nil {
					return err
				}
				if sources, err := netfilter.Sources(); err != nil || slices.ContainsFunc(sources, func(s netfilter.Source) bool { return s.Link == gone.spec.HostLink() }) {
					t.Errorf("sources after a withdrawal: %v, %v", sources, err)
				}
				return errors.Join(New("").Check(a.spec), New("").Check(b.spec))
			})
			b.Host.Ping("10.0.70.50")
		})
	}
	w.nodeA.Run(func() error {
		before, err := own.Generation()
		if err != nil {
			return err
		}
		if err := New("").Filter(); err != nil {
			return err
		}
		after, err := own.Generation()
		if after != before {
			t.Error("Filter writes where nothing is missing")
		}
		return err
	})
}
