// SPDX-License-Identifier: Apache-2.0

package iptables_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy/iptables"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/ruleset/rulesettest"
	"github.com/berth-dev/berth/cni/xtables"
	"github.com/berth-dev/berth/ipam/seedtest"
)

var variants = xtables.Variants

// neverRefused returns a context that fails the test where Apply replaces all, because the kernel
// refused a change.
func neverRefused(t *testing.T) context.Context {
	return klog.NewContext(t.Context(), funcr.New(func(_, text string) {
		if strings.Contains(text, "Replaces") {
			t.Error(text)
		}
	}, funcr.Options{Verbosity: 9}))
}

// However the kernel came to a ruleset, it has that ruleset and nothing else, and removal leaves
// nothing.
func TestDifferences(t *testing.T) {
	t.Parallel()
	netnstest.Need(t)
	seed, steps := seedtest.Seed(t), seedtest.Draws(t, 10, 40)
	for _, v := range variants {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			node := netnstest.New(t)
			empty := saved(t, node, v)
			table := iptables.New(node.Path(), v)
			r := &rulesettest.Random{Rand: rand.New(rand.NewPCG(seed, 0)), Ruleset: rulesettest.Of()}
			for step := range steps {
				if err := table.Apply(neverRefused(t), r.Next()); err != nil {
					t.Fatalf("step %d: %v", step, err)
				}
				if err := table.Verify(t.Context()); err != nil {
					t.Fatalf("step %d: %v", step, err)
				}
				if r.IntN(10) == 0 {
					// The agent begins anew.
					table = iptables.New(node.Path(), v)
				}
			}
			netnstest.Eventually(t, func() error {
				if err := table.Remove(t.Context()); err != nil {
					return err
				}
				if now := saved(t, node, v); now != empty {
					return errors.New("left: " + now)
				}
				return nil
			})
		})
	}
}

// saved returns our rules and the names of sets.
func saved(t *testing.T, h *netnstest.Host, v xtables.Variant) string {
	t.Helper()
	var all []string
	for _, args := range [][]string{{"iptables-" + string(v) + "-save", "-t", "security"}, {"ip6tables-" + string(v) + "-save", "-t", "security"}, {"ipset", "list", "-name"}} {
		out, err := h.Command(args[0], args[1:]...)
		if err != nil {
			t.Fatal(err, out)
		}
		for row := range strings.Lines(out) {
			if strings.Contains(row, "BERTH") || strings.Contains(row, "berth") {
				all = append(all, row)
			}
		}
	}
	return strings.Join(all, "")
}

// Verify notices changes by other programs, and Apply puts the rules back.
func TestVerify(t *testing.T) {
	t.Parallel()
	netnstest.Need(t)
	for _, v := range variants {
		iptablesOf, restore := "iptables-"+string(v), "ip6tables-"+string(v)
		for name, tc := range map[string]struct {
			change string
			found  string
		}{
			"flush":             {iptablesOf + " -t security -F", "lacks in chain BERTH-"},
			"flush of IPv6":     {restore + " -t security -F", "lacks in chain BERTH-"},
			"entry":             {iptablesOf + " -t security -D FORWARD 1", "lacks in chain FORWARD: -m comment"},
			"rule before":       {iptablesOf + " -t security -I FORWARD -j ACCEPT", "has in chain FORWARD: a rule before the rules of Berth"},
			"rule in a chain":   {iptablesOf + " -t security -I BERTH-i-server -j RETURN", "has in chain BERTH-i-server: -j RETURN"},
			"chain more":        {iptablesOf + " -t security -N BERTH-more", "has chain BERTH-more"},
			"element more":      {"ipset add $(ipset list -name | grep peers4) 10.9.9.9", "1 elements that are not of the ruleset"},
			"element less":      {"ipset flush $(ipset list -name | grep peers4)", "lacks 10.0.1.2"},
			"policy of a chain": {iptablesOf + " -t security -P FORWARD ACCEPT", ""},
			"rule behind":       {iptablesOf + " -t security -A FORWARD -j ACCEPT", ""},
		} {
			t.Run(string(v)+" "+name, func(t *testing.T) {
				node := netnstest.New(t)
				table := iptables.New(node.Path(), v)
				if err := table.Apply(t.Context(), rulesettest.Isolated()); err != nil {
					t.Fatal(err)
				}
				if err := table.Verify(t.Context()); err != nil {
					t.Fatal(err)
				}
				if out, err := node.Command("sh", "-c", tc.change); err != nil {
					t.Fatal(err, out)
				}
				err := table.Verify(t.Context())
				if tc.found == "" {
					if err != nil {
						t.Error(err)
					}
					return
				}
				if !errors.Is(err, ruleset.ErrChanged) || !strings.Contains(err.Error(), tc.found) {
					t.Errorf("Verify() = %v, want %q", err, tc.found)
				}
				if err := errors.Join(table.Apply(t.Context(), rulesettest.Isolated()), table.Verify(t.Context())); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A try works where the variant works, has the rules of each family, and leaves nothing in the
// namespace of the caller.
func TestTry(t *testing.T) {
	netnstest.Need(t)
	for _, v := range variants {
		t.Run(string(v), func(t *testing.T) {
			node := netnstest.New(t)
			before := saved(t, node, v)
			node.Run(func() error { return iptables.Try(t.Context(), v) })
			if after := saved(t, node, v); after != before {
				t.Errorf("left: %s", after)
			}
			table := iptables.New(node.Path(), v)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := iptables.Try(ctx, v); err == nil {
				t.Error("a try that cannot run its programs succeeds")
			}
			if exists, err := table.Exists(t.Context()); exists || err != nil {
				t.Errorf("Exists() = %t, %v", exists, err)
			}
		})
	}
}
