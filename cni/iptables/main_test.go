// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/xtables"
)

// It becomes the program that it is called as.
func TestProgram(t *testing.T) {
	if _, err := os.Stat(xtables.NFT.Program()); err != nil {
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
