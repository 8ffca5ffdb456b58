// SPDX-License-Identifier: Apache-2.0

// Package xtables finds the variant of iptables that a network namespace uses. The two variants
// write to different tables of the kernel, and the programs of a node see only one of them.
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

// Variant is a variant of iptables.
type Variant string

// The variants, as Debian names their programs: iptables-nft, iptables-legacy.
const (
	NFT    Variant = "nft"
	Legacy Variant = "legacy"
)

var Variants = []Variant{NFT, Legacy}

// Program returns the path of Debian's program, whose first argument is the command.
func (v Variant) Program() string { return "/usr/sbin/xtables-" + string(v) + "-multi" }

// hints are chains that kubelet makes in the table mangle, with its variant of iptables.
var hints = []string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"}

// Choose returns the variant of the network namespace of the process: kubelet's chains decide.
// Without them it is Legacy if Legacy has rules, because only an iptables command makes such rules.
func Choose() Variant {
	if !hasHint() && anyLegacy(hasRules) {
		return Legacy
	}
	return NFT
}

// OfKubernetes returns the variant in which kubelet or kube-proxy has chains, and false if neither
// has any.
func OfKubernetes() (Variant, bool) {
	if hasHint() {
		return NFT, true
	}
	return Legacy, anyLegacy(func(saved []byte) bool { return bytes.Contains(saved, []byte("\n:KUBE-")) })
}

// hasHint reports whether kubelet's chains are in nftables. It ignores errors, which the next
// program reports.
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

// anyLegacy reports whether the Legacy rules of any family have a property. It lists only existing
// tables, because listing a table creates it.
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

// HasTable reports whether the network namespace of the thread has a table of a variant, without
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
