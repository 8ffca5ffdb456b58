// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"

	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// TableName is the table of the chains; doc.go has the reasons.
const TableName = "security"

// Prefixes of the names in the kernel.
const (
	ChainPrefix = "BERTH-"
	SetPrefix   = "berth-"
)

// maxChainName is the longest name of a chain (XT_EXTENSION_MAXNAMELEN of
// linux/netfilter/x_tables.h without the final zero byte).
const maxChainName = 28

// hashed is the length of the hashes in names: 95 bits.
const hashed = 19

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:hashed]
}

// chainName returns the name of a ruleset's chain in the kernel.
func chainName(name string) string {
	if long := ChainPrefix + name; len(long) <= maxChainName {
		return long
	}
	return ChainPrefix + kindOf(name) + "-" + hash(name)
}

// restName returns the name of the chain for the rules after a jump to a chain that may return.
func restName(name string) string {
	return ChainPrefix + "r" + kindOf(name)[1:] + "-" + hash("rest "+name)
}

// kindOf returns the two letters at the end of the part before the hash: i4 of i4-abc and of
// pi4-abc.
func kindOf(name string) string {
	before, _, _ := strings.Cut(name, "-")
	if len(before) < 2 {
		return before + "0"
	}
	return before[len(before)-2:]
}

// names makes the names of sets in the kernel. The names end in the generation of the process.
type names string

// set returns the name of a ruleset's set, at most ruleset.MaxName bytes.
func (n names) set(name string) string {
	short := strings.Replace(name, "/", "-", 1)
	if len(name) > hashed {
		short = kindOf(name) + hash(name)[:hashed-2]
	}
	return SetPrefix + short + string(n)
}

// manyChains is the number of chains from which on a map uses groups.
const manyChains = 16

// groupOf returns the group of a chain, one of 16. It does not depend on other chains.
func groupOf(chain string) string { return fmt.Sprint("group ", hash(chain)[0]%16) }

// groupChain returns the name of the chain that leads from a group to the group's chains, in the
// dispatch of a base chain.
func groupChain(base string, m *ruleset.Map, group string) string {
	return ChainPrefix + "g" + m.Name[len(m.Name)-1:] + "-" + hash(base+" "+m.Name+" "+group)
}

// members returns the name of the set with the addresses that a map leads to a chain, or to the
// chains of a group.
func (n names) members(m *ruleset.Map, chain string) string {
	return SetPrefix + m.Name[:1] + m.Name[len(m.Name)-1:] + hash(m.Name + " " + chain)[:hashed-2] + string(n)
}
