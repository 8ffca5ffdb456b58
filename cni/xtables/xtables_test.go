// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"os"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
)

// Choose finds the node's iptables by the rules that the two programs wrote.
func TestChoose(t *testing.T) {
	for _, program := range Variants {
		if _, err := os.Stat(program.Program()); err != nil {
			t.Skip("the package iptables is not installed:", err)
		}
	}
	netnstest.Need(t)
	probe := netnstest.New(t)
	if out, err := probe.Command("iptables-legacy", "-t", "mangle", "-S"); err != nil {
		t.Skipf("the kernel has no legacy iptables: %v: %s", err, out)
	}
	canary := []string{"-t", "mangle", "-N", "KUBE-KUBELET-CANARY"}
	rule := []string{"-A", "FORWARD", "-j", "ACCEPT"}
	for name, test := range map[string]struct {
		commands [][]string
		want     Variant
	}{
		"nothing":                         {nil, NFT},
		"legacy tables without rules":     {[][]string{append([]string{"iptables-legacy", "-t", "mangle"}, "-S")}, NFT},
		"a legacy rule":                   {[][]string{append([]string{"iptables-legacy"}, rule...)}, Legacy},
		"a legacy rule of IPv6":           {[][]string{append([]string{"ip6tables-legacy"}, rule...)}, Legacy},
		"a legacy chain":                  {[][]string{append([]string{"iptables-legacy"}, canary...)}, Legacy},
		"kubelet's chain":                 {[][]string{append([]string{"iptables-nft"}, canary...)}, NFT},
		"rules of both":                   {[][]string{append([]string{"iptables-nft"}, rule...), append([]string{"iptables-legacy"}, rule...)}, Legacy},
		"a legacy rule, kubelet's chain":  {[][]string{append([]string{"iptables-legacy"}, rule...), append([]string{"iptables-nft"}, canary...)}, NFT},
		"a legacy rule, kubelet's IPv6":   {[][]string{append([]string{"iptables-legacy"}, rule...), append([]string{"ip6tables-nft"}, canary...)}, NFT},
		"a legacy rule, kubelet's hint":   {[][]string{append([]string{"iptables-legacy"}, rule...), {"iptables-nft", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT"}}, NFT},
		"a legacy chain, other nft rules": {[][]string{append([]string{"iptables-legacy"}, canary...), append([]string{"iptables-nft"}, rule...)}, Legacy},
	} {
		t.Run(name, func(t *testing.T) {
			host := netnstest.New(t)
			for _, command := range test.commands {
				if out, err := host.Command(command[0], command[1:]...); err != nil {
					t.Fatal(err, out)
				}
			}
			host.Run(func() error {
				if got := Choose(); got != test.want {
					t.Errorf("%s, want %s", got, test.want)
				}
				return nil
			})
		})
	}
}
