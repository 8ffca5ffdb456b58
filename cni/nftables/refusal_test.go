// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
)

// A chain refuses a passage only where no packet of it can pass: rules with conditions that are
// not known decide nothing, and may accept.
func TestRefuses(t *testing.T) {
	netnstest.Need(t)
	for name, tc := range map[string]struct {
		// rules are of the base chain; those of the chain inner follow after a line "inner:".
		rules string
		drops bool
		// unnamed takes addresses for ones that no rule names.
		unnamed bool
		// want is the chain that refuses, empty where none does.
		want string
	}{
		"nothing":                          {rules: ""},
		"policy":                           {drops: true, want: "forward"},
		"policy and an open door":          {rules: "tcp dport 80 accept", drops: true},
		"policy and a door for answers":    {rules: "ct state established,related accept; ct status dnat accept; ct state invalid drop", drops: true, want: "forward"},
		"policy and a door for new":        {rules: "ct state new accept", drops: true},
		"policy and a door for others":     {rules: `iifname "lo" accept; oifname "br*" accept; oifname != "bth*" accept; meta l4proto { icmp, ipv6-icmp } accept`, drops: true, want: "forward"},
		"policy and a door for the links":  {rules: `iifname "eth0" oifname "bth*" accept`, drops: true},
		"policy and a door for set links":  {rules: `iifname { "eth0", "eth1" } accept`, drops: true},
		"policy and a door for more links": {rules: `iifname { "eth*", "wlan0" } accept`, drops: true},
		"policy and a door by a map":       {rules: `iifname vmap { "eth0" : accept }`, drops: true},
		"policy and no door":               {rules: `iifname != { "eth0", "eth1" } accept`, drops: true, want: "forward"},
		"policy and a door by address":     {rules: "ip saddr 10.0.0.0/8 accept", drops: true},
		"policy and doors by other addresses": {
			rules: "ip saddr 10.0.0.0/8 accept; ip saddr 10.0.0.0/9 ip daddr 10.0.0.1 accept; ip saddr { 10.1.0.0/16, 192.168.0.0/16 } accept; ip6 saddr fd00::/64 accept; ip6 saddr fd00::1 accept; ip6 daddr fd00::/61 accept; ip daddr { 10.0.0.1, 10.0.0.2 } accept",
			drops: true, unnamed: true, want: "forward",
		},
		"policy and a door for all but an address": {rules: "ip saddr != 10.0.0.0/8 accept", drops: true, unnamed: true},
		"policy and a door for all but a set":      {rules: "ip saddr != { 10.0.0.1, 10.0.0.2 } accept", drops: true, unnamed: true},
		"policy and a door for short ways":         {rules: "ip ttl 255 accept", drops: true, unnamed: true},
		"last rule":                                {rules: "counter log reject", want: "forward"},
		"some packets":                             {rules: "tcp dport 25 reject; ip6 daddr 2002::/16 reject; meta nfproto ipv6 drop; ct mark 7 drop"},
		"inner rule":                               {rules: "ct state established accept; jump inner\ninner: iifname \"eth0\" reject", want: "inner"},
		"inner rule for other links":               {rules: "jump inner\ninner: iifname \"eth1\" reject"},
		"inner rule of some packets":               {rules: "tcp dport 25 jump inner\ninner: drop"},
		"inner door":                               {rules: "jump inner; drop\ninner: tcp dport 80 accept"},
		"inner door of some packets":               {rules: "tcp dport 80 jump inner; drop\ninner: accept"},
		"inner door for other links":               {rules: "jump inner; drop\ninner: oifname \"eth1\" accept", want: "forward"},
		"inner return of some packets":             {rules: "jump inner\ninner: tcp dport 80 return; drop"},
		"inner return, then a last rule":           {rules: "jump inner; drop\ninner: tcp dport 80 return; drop", want: "forward"},
		"inner return of all":                      {rules: "jump inner\ninner: return; drop"},
		"goto ends the chain":                      {rules: "goto inner; drop\ninner: tcp dport 80 drop"},
		"goto of some packets":                     {rules: "tcp dport 80 goto inner; drop\ninner: tcp dport 80 drop"},
		"goto and policy":                          {rules: "goto inner; accept\ninner: tcp dport 80 drop", drops: true, want: "forward"},
	} {
		t.Run(name, func(t *testing.T) {
			node := netnstest.New(t)
			base, inner, _ := strings.Cut(tc.rules, "inner:")
			policy := "accept"
			if tc.drops {
				policy = "drop"
			}
			text := "table inet other { chain inner { " + inner + "\n }; chain forward { type filter hook forward priority 10; policy " + policy + "; " + base + "\n } ; }"
			if out, err := node.Command("nft", text); err != nil {
				t.Fatal(err, out)
			}
			node.Run(func() error {
				chains, err := BaseChains(Forward)
				if err != nil {
					return err
				}
				if len(chains) != 1 {
					t.Fatalf("%d base chains, want 1", len(chains))
				}
				refusal, err := chains[0].Refuses(Passage{In: "eth0", Out: "bth0", Unnamed: func(string) bool { return tc.unnamed }})
				have := ""
				if refusal != nil {
					have = refusal.Chain
					if refusal.Base != (have == "forward") || refusal.Table.Name != "other" {
						t.Errorf("Refuses() = %+v", refusal)
					}
				}
				if have != tc.want {
					t.Errorf("chain %q refuses, want %q", have, tc.want)
				}
				return err
			})
		})
	}
}
