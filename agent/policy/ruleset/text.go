// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"cmp"
	"fmt"
	"strings"
	"unicode"

	"go4.org/netipx"
)

// TableName is the name of the table of the family inet that a ruleset becomes in the kernel.
const TableName = "berth-policy"

// Comment returns the reason of a rule, for people who read the kernel's rules.
func (r *Rule) Comment() string {
	switch {
	case r.Origin != nil:
		return r.Origin.String()
	case r.Established:
		return "connections that may go on"
	case r.NeighborDiscovery:
		return "neighbour discovery"
	case r.MulticastListener:
		return "multicast listeners"
	case r.SourceOut != "", r.Pair != "":
		return "a pod that calls itself"
	case r.SourceMap != "":
		return "egress rules of the source"
	case r.DestinationMap != "":
		return "ingress rules of the destination"
	case r.LocalSource:
		return "packets of the node itself"
	case r.Loopback:
		return "packets of the pod to itself"
	}
	return strings.TrimSpace(r.Verdict.String() + " " + r.Target)
}

// RuleText returns a rule of a chain in the syntax of nft.
func RuleText(c *Chain, r *Rule) string {
	words := conditionWords(c, r)
	if r.Counter != "" {
		words = append(words, fmt.Sprintf("counter name %q", r.Counter))
	}
	switch {
	case r.SourceMap != "":
		words = append(words, ipWord(r)+" saddr vmap @"+r.SourceMap)
	case r.DestinationMap != "":
		words = append(words, ipWord(r)+" daddr vmap @"+r.DestinationMap)
	case r.Target != "":
		words = append(words, r.Verdict.String()+" "+r.Target)
	case r.Verdict != Continue || len(words) == 0:
		words = append(words, r.Verdict.String())
	}
	if r.Origin != nil {
		words = append(words, "# "+r.Origin.String())
	}
	return strings.Join(words, " ")
}

func ipWord(r *Rule) string {
	if r.Family == IPv6 {
		return "ip6"
	}
	return "ip"
}

func conditionWords(c *Chain, r *Rule) []string {
	var words []string
	add := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	if r.Established {
		add("ct state established,related")
	}
	if r.Loopback && c.Hook == Output {
		add("oifname %q", Loopback)
	} else if r.Loopback {
		add("iifname %q", Loopback)
	}
	if r.LocalSource {
		add("fib saddr type local")
	}
	for _, l := range lookups {
		if set := l.set(r); set != "" {
			add("%s @%s", strings.ReplaceAll(l.fields, "ip ", ipWord(r)+" "), set)
		}
	}
	if r.Family != AnyFamily && r.Source+r.Destination+r.Endpoint+r.Pair+r.SourceIn+r.SourceOut+r.SourceMap+r.DestinationMap == "" {
		add("meta nfproto %s", r.Family)
	}
	switch {
	case len(r.Ports) > 0:
		add("%s dport %s", r.Protocol, portsText(r.Ports))
	case r.Protocol != AnyProtocol:
		add("meta l4proto %s", r.Protocol)
	}
	if r.NeighborDiscovery {
		add("ip6 hoplimit 255 icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert, nd-redirect }")
	}
	if r.MulticastListener {
		add("ip6 hoplimit 1 icmpv6 type { mld-listener-query, mld-listener-report, mld-listener-done, mld2-listener-report }")
	}
	return words
}

func portsText(ports []PortRange) string {
	var all []string
	for _, p := range ports {
		if p.First == p.Last {
			all = append(all, fmt.Sprint(p.First))
		} else {
			all = append(all, fmt.Sprintf("%d-%d", p.First, p.Last))
		}
	}
	if len(all) == 1 {
		return all[0]
	}
	return "{ " + strings.Join(all, ", ") + " }"
}

// The names that nft has.
var (
	familyNames   = [...]string{"inet", "ipv4", "ipv6"}
	protocolNames = map[Protocol]string{TCP: "tcp", UDP: "udp", SCTP: "sctp"}
	hookNames     = [...]string{"none", "forward", "input", "output"}
	verdictNames  = [...]string{"continue", "accept", "drop", "return", "jump", "goto"}
)

func (f Family) String() string { return familyNames[f] }

// String returns the name of a protocol of policies, and the number of another.
func (p Protocol) String() string { return cmp.Or(protocolNames[p], fmt.Sprint(uint8(p))) }

func (h Hook) String() string { return hookNames[h] }

func (v Verdict) String() string { return verdictNames[v] }

// String returns the range in the form of nft: as a prefix if possible.
func (r AddressRange) String() string {
	if r.First == r.Last {
		return r.First.String()
	}
	if p, ok := netipx.IPRangeFrom(r.First, r.Last).Prefix(); ok {
		return p.String()
	}
	return r.First.String() + "-" + r.Last.String()
}

// Policy returns the kind and the name of the policy.
func (o *Origin) Policy() string {
	if o.Tier != "" {
		return fmt.Sprintf("%s %s, tier %s", o.Kind, o.Name, o.Tier)
	}
	return fmt.Sprintf("%s %s", o.Kind, o.NamespacedName)
}

// String names the policy and the part of it.
func (o *Origin) String() string {
	switch {
	case o.Kind == "" && o.Direction == "":
		return "default deny of NetworkPolicies"
	case o.Kind == "":
		return fmt.Sprintf("default deny of NetworkPolicies, %s", o.Direction)
	}
	text := fmt.Sprintf("%s, %s rule %d", o.Policy(), o.Direction, o.Rule)
	if o.RuleName != "" {
		text += " (" + strings.Map(plain, o.RuleName) + ")"
	}
	return text
}

// plain replaces a character of a user's text that could end a line or a quoted text. Rules are
// written, listed and read by lines, and nft does not escape its listings.
func plain(r rune) rune {
	if !unicode.IsPrint(r) || strings.ContainsRune("\"'\\", r) {
		return '?'
	}
	return r
}
