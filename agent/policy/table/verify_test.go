// SPDX-License-Identifier: Apache-2.0

package table

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/ruleset/rulesettest"
	"github.com/berth-dev/berth/ipam/seedtest"
)

// verify fails the test where the kernel's table is not exactly the applied one.
func verify(t *testing.T, table *Table) {
	t.Helper()
	table.verified = 0
	if err := table.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// neverRefused returns a context that fails the test where Apply replaces all, because the kernel
// refused a difference.
func neverRefused(t *testing.T) context.Context {
	return klog.NewContext(t.Context(), funcr.New(func(_, text string) { t.Error(text) }, funcr.Options{}))
}

// However the kernel came to a ruleset, it has that ruleset and nothing else, and counters stay as
// long as rules name them.
func TestDifferences(t *testing.T) {
	t.Parallel()
	netnstest.Need(t)
	node := netnstest.New(t)
	table := New(node.Path())
	base := seedtest.Seed(t)
	for i := range uint64(4) {
		r := &rulesettest.Random{Rand: rand.New(rand.NewPCG(base+i, 0)), Ruleset: rulesettest.Of()}
		for step := range 60 {
			rs := r.Next()
			if err := rulesettest.Check(rs); err != nil {
				t.Fatalf("ruleset %d, step %d: the test makes a wrong ruleset: %v", i, step, err)
			}
			if before := table.applied; before != nil {
				if _, _, ok := transition(before, rs); !ok {
					t.Fatalf("ruleset %d, step %d: no difference", i, step)
				}
			}
			if err := table.Apply(neverRefused(t), rs); err != nil {
				t.Fatalf("ruleset %d, step %d: %v", i, step, err)
			}
			verify(t, table)
			counters, err := table.Counters(t.Context())
			if err != nil || len(counters) != len(table.applied.counters) {
				t.Fatalf("ruleset %d, step %d: %d counters, want %d, error %v", i, step, len(counters), len(table.applied.counters), err)
			}
			if r.IntN(10) == 0 {
				// The agent begins anew.
				table = New(node.Path())
			}
		}
	}
}

// Verify notices another program's changes of the table, and the next Apply repairs them.
func TestVerify(t *testing.T) {
	t.Parallel()
	netnstest.Need(t)
	node := netnstest.New(t)
	rs := rulesettest.With(rulesettest.Isolated(),
		&ruleset.Set{Name: "blocks", Family: ruleset.IPv4, Kind: ruleset.Ranges, Ranges: []ruleset.AddressRange{{First: netip.MustParseAddr("10.1.0.0"), Last: netip.MustParseAddr("10.1.0.9")}}},
		rulesettest.Chain("p-more", ruleset.NoHook,
			ruleset.Rule{Family: ruleset.IPv4, Source: "blocks", Protocol: ruleset.TCP, Ports: []ruleset.PortRange{{First: 1, Last: 2}, {First: 9, Last: 9}}, Verdict: ruleset.Accept},
			ruleset.Rule{Family: ruleset.IPv6, NeighborDiscovery: true, Verdict: ruleset.Accept}))
	for _, tc := range []struct{ name, command, found string }{
		{"everything flushed", "flush ruleset", "is missing"},
		{"table deleted", "delete table inet berth-policy", "is missing"},
		{"rules of a chain flushed", "flush chain inet berth-policy p-web", "chain p-web has other rules"},
		{"rule added", "add rule inet berth-policy i-server accept", "chain i-server has other rules"},
		{"rule inserted", "insert rule inet berth-policy ingress accept", "chain ingress has other rules"},
		{"rules replaced by others with their comments", "flush chain inet berth-policy p-web; FORGED", "chain p-web has other rules"},
		{"switched off", "add table inet berth-policy { flags dormant; }", "it is switched off"},
		{"chain added", "add chain inet berth-policy more", "chain more is new"},
		{"set added", "add set inet berth-policy more { type ipv4_addr; }", "set more is new"},
		{"element deleted", "delete element inet berth-policy peers4 { 10.0.1.2 }", "set peers4 lacks elements"},
		{"element added", "add element inet berth-policy peers6 { fd00::66 }", "set peers6 has other elements"},
		{"interval added", "add element inet berth-policy blocks { 10.2.0.0/24 }", "set blocks has other elements"},
		{"interval deleted", "delete element inet berth-policy blocks { 10.1.0.0-10.1.0.9 }", "set blocks lacks elements"},
		{"map flushed", "flush map inet berth-policy ingress4", "set ingress4 lacks elements"},
		{"map leads elsewhere", "delete element inet berth-policy ingress4 { 10.0.2.2 }; add element inet berth-policy ingress4 { 10.0.2.2 : goto p-web }", "set ingress4 has other elements"},
		{"map has another verdict", "delete element inet berth-policy ingress4 { 10.0.2.2 }; add element inet berth-policy ingress4 { 10.0.2.2 : jump i-server }", "set ingress4 has other elements"},
		{"map accepts", "delete element inet berth-policy ingress4 { 10.0.2.2 }; add element inet berth-policy ingress4 { 10.0.2.2 : accept }", "set ingress4 has other elements"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			table := New(node.Path())
			for _, known := range []bool{false, true} {
				// All names are as in the ruleset.
				if err := table.Remove(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := table.Apply(t.Context(), rs); err != nil {
					t.Fatal(err)
				}
				if !known {
					table.verified = 0
				} else if table.verified == 0 {
					t.Error("after Apply it is not known that nobody else changed anything")
				}
				if err := table.Verify(t.Context()); err != nil {
					t.Fatal(err)
				}
				command := strings.Replace(tc.command, "FORGED", forged(t, node, "p-web"), 1)
				if out, err := node.Command("nft", command); err != nil {
					t.Fatal(err, out)
				}
				err := table.Verify(t.Context())
				if !errors.Is(err, ruleset.ErrChanged) || !strings.Contains(err.Error(), tc.found) {
					t.Errorf("Verify() = %v, want %q", err, tc.found)
				}
			}
			if err := table.Apply(t.Context(), rs); err != nil {
				t.Fatal(err)
			}
			verify(t, table)
		})
	}
}

// forged returns commands for rules that accept everything, with the comments of a chain's rules.
func forged(t *testing.T, node *netnstest.Host, chain string) string {
	t.Helper()
	listed, err := node.Command("nft", "list", "chain", "inet", ruleset.TableName, chain)
	if err != nil {
		t.Fatal(err, listed)
	}
	var commands []string
	for line := range strings.Lines(listed) {
		if _, comment, ok := strings.Cut(strings.TrimSpace(line), " comment "); ok {
			commands = append(commands, "add rule inet "+ruleset.TableName+" "+chain+" accept comment "+comment)
		}
	}
	return strings.Join(commands, "; ")
}

// Changes of other tables are no changes of this one.
func TestVerifyOthers(t *testing.T) {
	netnstest.Need(t)
	node := netnstest.New(t)
	table := New(node.Path())
	if err := table.Verify(t.Context()); !errors.Is(err, ruleset.ErrChanged) {
		t.Errorf("before Apply: %v", err)
	}
	for i := range 3 {
		if err := table.Apply(t.Context(), rulesettest.With(rulesettest.Isolated(), rulesettest.Addresses("peers4", ruleset.IPv4, rulesettest.Both[0].Server.Next()))); err != nil {
			t.Fatal(err)
		}
		if out, err := node.Command("nft", fmt.Sprintf("add table ip other%d", i)); err != nil {
			t.Fatal(err, out)
		}
		if err := table.Verify(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// An Apply that the kernel refuses changes nothing, says which object it was, and the next one
// is whole.
func TestRefused(t *testing.T) {
	t.Parallel()
	netnstest.Need(t)
	node := netnstest.New(t)
	table := New(node.Path())
	if err := table.Apply(t.Context(), rulesettest.Isolated()); err != nil {
		t.Fatal(err)
	}
	// A loop of chains, which only the kernel knows to refuse in all ways.
	wrong := rulesettest.With(rulesettest.Isolated(), rulesettest.Chain("p-web", ruleset.NoHook, ruleset.Rule{Verdict: ruleset.Jump, Target: "i-server"}))
	for range 2 {
		if err := table.Apply(t.Context(), wrong); err == nil || !strings.Contains(err.Error(), "chain ") {
			t.Errorf("Apply() = %v, want an error that names the chain", err)
		}
		missing := rulesettest.With(rulesettest.Isolated(), rulesettest.Chain("p-web", ruleset.NoHook, ruleset.Rule{Family: ruleset.IPv4, Source: "nowhere", Verdict: ruleset.Accept}))
		if err := table.Apply(t.Context(), missing); err == nil || !strings.Contains(err.Error(), "a rule of chain p-web") {
			t.Errorf("Apply() = %v, want an error that names the chain", err)
		}
		table.applied = newApplied(rulesettest.Isolated(), "")
		verify(t, table)
		table.applied = nil
	}
	if err := table.Apply(t.Context(), rulesettest.Closed()); err != nil {
		t.Fatal(err)
	}
	verify(t, table)
}

// Apply replaces a table of our name that another program left.
func TestReplaceAnything(t *testing.T) {
	t.Parallel()
	netnstest.Need(t)
	for _, tc := range []struct{ name, commands string }{
		{"another hook", "add table inet berth-policy; add chain inet berth-policy ingress { type filter hook input priority 5; policy drop; }"},
		{"no base chain", "add table inet berth-policy; add chain inet berth-policy ingress; add chain inet berth-policy x; add rule inet berth-policy x jump ingress"},
		{"sets of other types", "add table inet berth-policy; add set inet berth-policy peers4 { type ipv6_addr; }; add set inet berth-policy cut4 { type ipv4_addr; }; add chain inet berth-policy x; add rule inet berth-policy x ip saddr @cut4 drop"},
		{"other objects", "add table inet berth-policy; add quota inet berth-policy web { 10 mbytes; }; add map inet berth-policy m { type ipv4_addr : quota; }"},
		{"dormant", "add table inet berth-policy { flags dormant; }"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			node := netnstest.New(t)
			if out, err := node.Command("nft", tc.commands); err != nil {
				t.Fatal(err, out)
			}
			table := New(node.Path())
			if err := table.Apply(t.Context(), rulesettest.Isolated()); err != nil {
				t.Fatal(err)
			}
			verify(t, table)
		})
	}
}

// A ruleset with sets far beyond the size of one message, and with more than the usual buffers
// have room for.
func TestBig(t *testing.T) {
	t.Parallel()
	netnstest.Need(t)
	node := netnstest.New(t)
	table := New(node.Path())
	size := 300_000
	if testing.Short() {
		size = 50_000 // which is beyond messages and usual buffers, too
	}
	big := rulesettest.Addresses("peers6", ruleset.IPv6)
	addr := netip.MustParseAddr("fd00:1::2")
	for range size {
		big.Addresses = append(big.Addresses, addr)
		addr = addr.Next()
	}
	ranges := &ruleset.Set{Name: "blocks", Family: ruleset.IPv4, Kind: ruleset.Ranges}
	for four := netip.MustParseAddr("11.0.0.0"); len(ranges.Ranges) < 5000; four = four.Next().Next().Next() {
		ranges.Ranges = append(ranges.Ranges, ruleset.AddressRange{First: four, Last: four.Next()})
	}
	rs := rulesettest.With(rulesettest.Isolated(), big, ranges)
	for _, step := range []struct {
		name string
		rs   *ruleset.Ruleset
	}{
		{"all", rs},
		{"half", rulesettest.With(rs, rulesettest.Addresses("peers6", ruleset.IPv6, big.Addresses[size/2:]...), &ruleset.Set{Name: "blocks", Family: ruleset.IPv4, Kind: ruleset.Ranges, Ranges: ranges.Ranges[7:]})},
		{"all again", rs},
		{"none", rulesettest.Closed()},
	} {
		if err := table.Apply(t.Context(), step.rs); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		verify(t, table)
	}
}
