// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"fmt"
	"strings"
	"unicode"

	"go4.org/netipx"
)

// TableName is the name of the table of the family inet that a ruleset becomes in the kernel.
const TableName = "berth-policy"

// Comment returns the reason of a rule, for people who read the kernel's rules.
func (r *Rule) Comment() string {
	var text string
	switch {
	case r.Origin != nil:
		text = r.Origin.String()
	case r.Established:
		text = "connections that may go on"
	case r.NeighborDiscovery:
		text = "neighbour discovery"
	case r.MulticastListener:
		text = "multicast listeners"
	case r.SourceOut != "", r.Pair != "":
		text = "a pod that calls itself"
	case r.SourceMap != "":
		text = "egress rules of the source"
	case r.DestinationMap != "":
		text = "ingress rules of the destination"
	case r.LocalSource:
		text = "packets of the node itself"
	case r.Loopback:
		text = "packets of the pod to itself"
	default:
		text = r.Verdict.String()
		if r.Target != "" {
			text += " " + r.Target
		}
	}
	return text
}

// RuleText returns a rule of a chain in the syntax of nft.
func RuleText(rs *Ruleset, c *Chain, r *Rule) string {
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
		words = append(words, fmt.Sprintf("%s %s", r.Verdict, r.Target))
	case r.Verdict != Continue || len(words) == 0:
		words = append(words, fmt.Sprint(r.Verdict))
	}
	if r.Origin != nil {
		words = append(words, fmt.Sprintf("# %s", r.Origin))
	}
	return strings.Join(words, " ")
}

func ipWord(r *Rule) string {
	if r.Family == IPv6 {
		return "ip6"
	}
	return "ip"
}

// conditionWords returns the conditions of a rule in the syntax of nft.
func conditionWords(c *Chain, r *Rule) []string {
	var words []string
	add := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	ip := ipWord(r)
	if r.Established {
		add("ct state established,related")
	}
	if r.InInterface != "" {
		add("iifname @%s", r.InInterface)
	}
	if r.OutInterface != "" {
		add("oifname @%s", r.OutInterface)
	}
	if r.Loopback && c.Hook == Output {
		add("oifname %q", Loopback)
	} else if r.Loopback {
		add("iifname %q", Loopback)
	}
	if r.LocalSource {
		add("fib saddr type local")
	}
	if r.SourceOut != "" {
		add("%s saddr . oifname @%s", ip, r.SourceOut)
	}
	if r.SourceIn != "" {
		add("%s saddr . iifname @%s", ip, r.SourceIn)
	}
	if r.Pair != "" {
		add("%s saddr . %s daddr @%s", ip, ip, r.Pair)
	}
	if r.Source != "" {
		add("%s saddr @%s", ip, r.Source)
	}
	if r.Destination != "" {
		add("%s daddr @%s", ip, r.Destination)
	}
	if r.Endpoint != "" {
		add("%s daddr . meta l4proto . th dport @%s", ip, r.Endpoint)
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

// String returns the name that nft has for it.
func (f Family) String() string {
	switch f {
	case IPv4:
		return "ipv4"
	case IPv6:
		return "ipv6"
	}
	return "inet"
}

// String returns the name of a protocol of policies, and the number of another.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return fmt.Sprint(uint8(p))
}

// String returns the name that nft has for it.
func (h Hook) String() string {
	switch h {
	case Forward:
		return "forward"
	case Input:
		return "input"
	case Output:
		return "output"
	}
	return "none"
}

// String returns the name that nft has for it.
func (v Verdict) String() string {
	switch v {
	case Accept:
		return "accept"
	case Drop:
		return "drop"
	case Return:
		return "return"
	case Jump:
		return "jump"
	case Goto:
		return "goto"
	}
	return "continue"
}

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
	var b strings.Builder
	if o.Kind == "" {
		b.WriteString("default deny of NetworkPolicies")
		if o.Direction != "" {
			fmt.Fprintf(&b, ", %s", o.Direction)
		}
		return b.String()
	}
	b.WriteString(o.Policy())
	fmt.Fprintf(&b, ", %s rule %d", o.Direction, o.Rule)
	if o.RuleName != "" {
		fmt.Fprintf(&b, " (%s)", strings.Map(plain, o.RuleName))
	}
	return b.String()
}

// plain replaces a character of a user's text that could end a line or a quoted text. Rules are
// written, listed and read by lines, and nft does not escape its listings.
func plain(r rune) rune {
	if !unicode.IsPrint(r) || strings.ContainsRune("\"'\\", r) {
		return '?'
	}
	return r
}
