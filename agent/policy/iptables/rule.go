// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"strings"

	"github.com/berth-dev/berth/agent/policy/connections"
	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// maxPorts is the limit of iptables' multiport: the number of ports in a rule, where a range counts
// twice.
const maxPorts = 15

// line is a rule of a chain in the kernel, as iptables-save prints it.
type line struct {
	// text comes after the name of the chain.
	text string
	// counter is the name of the rule's counter in the ruleset, empty if it has none.
	counter string
}

// Targets of iptables.
const (
	accepted = "-j RETURN"
	dropped  = "-j DROP"
)

var ended = fmt.Sprintf("-m connmark --mark %#x/%#x", connections.EndedMark, connections.EndedMark)

func join(words ...string) string {
	var some []string
	for _, w := range words {
		if w != "" {
			some = append(some, w)
		}
	}
	return strings.Join(some, " ")
}

// conditions returns the conditions of a rule, one text for each necessary rule of iptables.
func (w *writer) conditions(r *ruleset.Rule) []string {
	all := []string{""}
	and := func(words ...string) { all = product(all, words) }
	if r.Pair != "" {
		and(pairs(w.rs.Sets[r.Pair])...)
	}
	if r.InInterface != "" {
		and(each("-i ", w.rs.Sets[r.InInterface].Interfaces)...)
	}
	if r.OutInterface != "" {
		and(each("-o ", w.rs.Sets[r.OutInterface].Interfaces)...)
	}
	switch {
	case r.Loopback && w.hook == ruleset.Output:
		and("-o " + ruleset.Loopback)
	case r.Loopback:
		and("-i " + ruleset.Loopback)
	}
	switch {
	case (r.NeighborDiscovery || r.MulticastListener) && w.family == ruleset.IPv4:
		return nil
	case r.NeighborDiscovery:
		and(neighborDiscovery...)
	case r.MulticastListener:
		and(multicastListener...)
	case r.Protocol != ruleset.AnyProtocol:
		and("-p " + r.Protocol.String())
	}
	if r.Established {
		and("-m conntrack --ctstate RELATED,ESTABLISHED " + strings.Replace(ended, "connmark ", "connmark ! ", 1))
	}
	if r.LocalSource {
		and("-m addrtype --src-type LOCAL")
	}
	for _, match := range []struct{ set, fields string }{{r.SourceOut, "src,dst"}, {r.SourceIn, "src,src"}, {r.Source, "src"}, {r.Destination, "dst"}, {r.Endpoint, "dst,dst"}} {
		if match.set != "" {
			and(fmt.Sprintf("-m set --match-set %s %s", w.set(match.set), match.fields))
		}
	}
	if len(r.Ports) > 0 {
		and(ports(r.Protocol, r.Ports)...)
	}
	return all
}

func product(texts, words []string) []string {
	var all []string
	for _, t := range texts {
		for _, w := range words {
			all = append(all, join(t, w))
		}
	}
	return all
}

// pairs returns the conditions of a set of pairs, because not every kernel has such sets.
func pairs(s *ruleset.Set) []string {
	var all []string
	for _, p := range s.Pairs {
		all = append(all, fmt.Sprintf("-s %s/%d -d %s/%d", p.Source, p.Source.BitLen(), p.Destination, p.Destination.BitLen()))
	}
	return all
}

func each(before string, words []string) []string {
	var all []string
	for _, w := range words {
		all = append(all, before+w)
	}
	return all
}

// neighborDiscovery and multicastListener match the messages of the conditions of these names.
var neighborDiscovery, multicastListener = icmpv6(255, 133, 134, 135, 136, 137), icmpv6(1, 130, 131, 132, 143)

func icmpv6(hops int, types ...int) []string {
	var all []string
	for _, kind := range types {
		all = append(all, fmt.Sprintf("-p ipv6-icmp -m icmp6 --icmpv6-type %d -m hl --hl-eq %d", kind, hops))
	}
	return all
}

func ports(p ruleset.Protocol, all []ruleset.PortRange) []string {
	if len(all) == 1 {
		return []string{fmt.Sprintf("-m %s --dport %s", p, portText(all[0]))}
	}
	var texts, some []string
	count := 0
	for _, r := range all {
		size := 1
		if r.First != r.Last {
			size = 2
		}
		if count+size > maxPorts {
			texts, some, count = append(texts, "-m multiport --dports "+strings.Join(some, ",")), nil, 0
		}
		some, count = append(some, portText(r)), count+size
	}
	return append(texts, "-m multiport --dports "+strings.Join(some, ","))
}

func portText(r ruleset.PortRange) string {
	if r.First == r.Last {
		return fmt.Sprint(r.First)
	}
	return fmt.Sprintf("%d:%d", r.First, r.Last)
}

// maxComment is the longest comment of iptables (XT_MAX_COMMENT_LEN without its end).
const maxComment = 255

func comment(text string) string {
	if len(text) > maxComment {
		text = strings.ToValidUTF8(text[:maxComment], "")
	}
	return "-m comment --comment " + quote(text)
}

// quote writes a text as iptables-save does.
func quote(text string) string {
	plain := func(r rune) bool {
		return r == '_' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	}
	if text != "" && strings.IndexFunc(text, func(r rune) bool { return !plain(r) }) < 0 {
		return text
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `'`, `\'`).Replace(text) + `"`
}
