// SPDX-License-Identifier: Apache-2.0

// Berth-iptables is iptables, ip6tables and their -save and -restore in the agent's image, for plugins of other
// projects: Berth's own rules need no program. There are two iptables, which write to different tables of the
// kernel, and a node's programs see the rules of one. It finds out which one the node has and becomes that.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// backend is one of the two programs. Each acts as the command that its first argument names.
type backend string

// These are Debian's programs of the package iptables.
const (
	nft    backend = "/usr/sbin/xtables-nft-multi"
	legacy backend = "/usr/sbin/xtables-legacy-multi"
)

// hints are chains that kubelet makes in the table mangle, with the iptables that it has.
var hints = []string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"}

func main() {
	program := choose()
	err := unix.Exec(string(program), os.Args, os.Environ())
	fmt.Fprintf(os.Stderr, "berth-iptables: start %s: %v\n", program, err)
	os.Exit(1)
}

// choose returns the program whose rules the network namespace has: kubelet's chains decide.
// Without them it is legacy where legacy has rules, since only an iptables command makes them.
func choose() backend {
	if !hinted() && hasLegacyRules() {
		return legacy
	}
	return nft
}

// hinted says whether kubelet's chains are nftables'. The program that runs next reports errors.
func hinted() bool {
	conn, err := nftables.New()
	if err != nil {
		return false
	}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		for _, hint := range hints {
			if _, err := conn.ListChain(&nftables.Table{Name: "mangle", Family: family}, hint); err == nil {
				return true
			}
		}
	}
	return false
}

// hasLegacyRules says whether there is a rule or a chain that somebody made. To list a table makes it, so only
// tables that there are already are looked at.
func hasLegacyRules() bool {
	for save, tables := range map[string]string{"iptables-save": "/proc/thread-self/net/ip_tables_names", "ip6tables-save": "/proc/thread-self/net/ip6_tables_names"} {
		if text, err := os.ReadFile(tables); err != nil || len(text) == 0 {
			continue
		}
		command := exec.Cmd{Path: string(legacy), Args: []string{save}, Env: os.Environ()}
		if out, err := command.Output(); err == nil && hasRules(out) {
			return true
		}
	}
	return false
}

// hasRules reads the output of iptables-save: the policy "-" marks a chain that the kernel did not
// make.
func hasRules(saved []byte) bool {
	for lines := bufio.NewScanner(bytes.NewReader(saved)); lines.Scan(); {
		if line := lines.Text(); strings.HasPrefix(line, "-A ") || strings.HasPrefix(line, ":") && strings.Contains(line, " - ") {
			return true
		}
	}
	return false
}
