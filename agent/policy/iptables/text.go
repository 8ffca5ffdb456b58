// SPDX-License-Identifier: Apache-2.0

package iptables

import "github.com/berth-dev/berth/agent/policy/ruleset"

// Text is the input with which the programs make a ruleset from nothing.
type Text struct {
	// Sets is for ipset restore, and Rules for iptables-restore and ip6tables-restore.
	Sets  string
	Rules [2]string
}

// TextOf returns the text of a ruleset. It does no I/O.
func TextOf(rs *ruleset.Ruleset) (Text, error) {
	n := names(".1")
	text := Text{Sets: changeOf(nil, n.setsOf(rs, nil, nil)).before.String()}
	for i, f := range ruleset.Families {
		rendered, err := n.renderChains(rs, f, nil)
		if err != nil {
			return Text{}, err
		}
		text.Rules[i] = string(restoreText(&chains{}, chainsOf(rs, rendered)))
	}
	return text, nil
}
