// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
)

// choose finds the node's iptables by the rules that the two programs wrote.
func TestChoose(t *testing.T) {
	for _, program := range []backend{nft, legacy} {
		if _, err := os.Stat(string(program)); err != nil {
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
		want     backend
	}{
		"nothing":                         {nil, nft},
		"legacy tables without rules":     {[][]string{append([]string{"iptables-legacy", "-t", "mangle"}, "-S")}, nft},
		"a legacy rule":                   {[][]string{append([]string{"iptables-legacy"}, rule...)}, legacy},
		"a legacy rule of IPv6":           {[][]string{append([]string{"ip6tables-legacy"}, rule...)}, legacy},
		"a legacy chain":                  {[][]string{append([]string{"iptables-legacy"}, canary...)}, legacy},
		"kubelet's chain":                 {[][]string{append([]string{"iptables-nft"}, canary...)}, nft},
		"rules of both":                   {[][]string{append([]string{"iptables-nft"}, rule...), append([]string{"iptables-legacy"}, rule...)}, legacy},
		"a legacy rule, kubelet's chain":  {[][]string{append([]string{"iptables-legacy"}, rule...), append([]string{"iptables-nft"}, canary...)}, nft},
		"a legacy rule, kubelet's IPv6":   {[][]string{append([]string{"iptables-legacy"}, rule...), append([]string{"ip6tables-nft"}, canary...)}, nft},
		"a legacy rule, kubelet's hint":   {[][]string{append([]string{"iptables-legacy"}, rule...), {"iptables-nft", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT"}}, nft},
		"a legacy chain, other nft rules": {[][]string{append([]string{"iptables-legacy"}, canary...), append([]string{"iptables-nft"}, rule...)}, legacy},
	} {
		t.Run(name, func(t *testing.T) {
			host := netnstest.New(t)
			for _, command := range test.commands {
				if out, err := host.Command(command[0], command[1:]...); err != nil {
					t.Fatal(err, out)
				}
			}
			host.Run(func() error {
				if got := choose(); got != test.want {
					t.Errorf("%s, want %s", got, test.want)
				}
				return nil
			})
		})
	}
}

// It becomes the program that it is called as.
func TestProgram(t *testing.T) {
	if _, err := os.Stat(string(nft)); err != nil {
		t.Skip("the package iptables is not installed:", err)
	}
	netnstest.Need(t)
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", dir+"/berth-iptables", ".").CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	host := netnstest.New(t)
	for _, name := range []string{"iptables", "ip6tables"} {
		if err := os.Symlink("berth-iptables", dir+"/"+name); err != nil {
			t.Fatal(err)
		}
		if out, err := host.Command(dir+"/"+name, "-A", "FORWARD", "-j", "ACCEPT"); err != nil {
			t.Fatal(err, out)
		}
		if out, err := host.Command(name+"-nft", "-C", "FORWARD", "-j", "ACCEPT"); err != nil {
			t.Error(err, out)
		}
	}
}
