// SPDX-License-Identifier: Apache-2.0

// Package xtables finds out which of the two programs that are called iptables a network namespace
// has. They write to different tables of the kernel, and a node's programs see the rules of one.
package xtables

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/google/nftables"
)

// Variant is one of the two programs.
type Variant string

// The variants, as Debian names their programs: iptables-nft, iptables-legacy.
const (
	NFT    Variant = "nft"
	Legacy Variant = "legacy"
)

// Variants are both.
var Variants = []Variant{NFT, Legacy}

// Program is the path of Debian's program, which acts as the command that its first argument names.
func (v Variant) Program() string { return "/usr/sbin/xtables-" + string(v) + "-multi" }

// hints are chains that kubelet makes in the table mangle, with the iptables that it has.
var hints = []string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"}

// Choose returns the variant whose rules the network namespace of the process has: kubelet's chains
// decide. Without them it is Legacy where Legacy has rules, since only an iptables command makes
// them.
func Choose() Variant {
	if !hasHint() && anyLegacy(hasRules) {
		return Legacy
	}
	return NFT
}

// OfKubernetes returns the variant in which kubelet or kube-proxy has chains, false where neither
// has any.
func OfKubernetes() (Variant, bool) {
	if hasHint() {
		return NFT, true
	}
	return Legacy, anyLegacy(func(saved []byte) bool { return bytes.Contains(saved, []byte("\n:KUBE-")) })
}

// hasHint says whether kubelet's chains are nftables'. The program that runs next reports errors.
func hasHint() bool {
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

// legacyNames are the files that name the tables of Legacy in the network namespace of the thread,
// by the command that saves them.
var legacyNames = map[string]string{"iptables-save": "/proc/thread-self/net/ip_tables_names", "ip6tables-save": "/proc/thread-self/net/ip6_tables_names"}

// anyLegacy returns whether the rules of Legacy of a family have a property. To list a table makes
// it, so only tables that there are already are looked at.
func anyLegacy(has func(saved []byte) bool) bool {
	for save, tables := range legacyNames {
		if text, err := os.ReadFile(tables); err != nil || len(text) == 0 {
			continue
		}
		command := exec.Cmd{Path: Legacy.Program(), Args: []string{save}, Env: os.Environ()}
		if out, err := command.Output(); err == nil && has(out) {
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

// HasTable returns whether the network namespace of the thread has a table of a variant, without
// making it.
func (v Variant) HasTable(name string) bool {
	if v == Legacy {
		for _, file := range legacyNames {
			if text, err := os.ReadFile(file); err == nil && slices.Contains(strings.Fields(string(text)), name) {
				return true
			}
		}
		return false
	}
	conn, err := nftables.New()
	if err != nil {
		return false
	}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		if _, err := conn.ListTableOfFamily(name, family); err == nil {
			return true
		}
	}
	return false
}
