// SPDX-License-Identifier: Apache-2.0

package rulesettest

import (
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// Text returns a ruleset in the syntax of nft, as "nft -f" reads it and "nft list table" shows it,
// except the comments with the origins of rules. Equal rulesets have equal texts.
func Text(rs *ruleset.Ruleset) string {
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s {\n", ruleset.TableName)
	for _, name := range counters(rs) {
		fmt.Fprintf(&b, "\tcounter %s {\n\t}\n\n", name)
	}
	for _, name := range slices.Sorted(maps.Keys(rs.Sets)) {
		writeSet(&b, rs.Sets[name])
	}
	for _, name := range slices.Sorted(maps.Keys(rs.Maps)) {
		writeMap(&b, rs.Maps[name])
	}
	// nft accepts chains in any order, so base chains can come first.
	chains := slices.SortedFunc(maps.Values(rs.Chains), func(a, b *ruleset.Chain) int {
		if (a.Hook == ruleset.NoHook) != (b.Hook == ruleset.NoHook) {
			if a.Hook == ruleset.NoHook {
				return 1
			}
			return -1
		}
		return strings.Compare(a.Name, b.Name)
	})
	inHook := map[ruleset.Hook]int{}
	for i, c := range chains {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "\tchain %s {\n", c.Name)
		if c.Hook != ruleset.NoHook {
			priority := "filter"
			if n := inHook[c.Hook]; n > 0 {
				priority = fmt.Sprintf("filter + %d", n)
			}
			inHook[c.Hook]++
			fmt.Fprintf(&b, "\t\ttype filter hook %s priority %s; policy accept;\n", c.Hook, priority)
		}
		for i := range c.Rules {
			fmt.Fprintf(&b, "\t\t%s\n", ruleset.RuleText(c, &c.Rules[i]))
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// counters returns the names of all counters, sorted.
func counters(rs *ruleset.Ruleset) []string {
	all := map[string]bool{}
	for _, c := range rs.Chains {
		for i := range c.Rules {
			if name := c.Rules[i].Counter; name != "" {
				all[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(all))
}

func writeSet(b *strings.Builder, s *ruleset.Set) {
	fmt.Fprintf(b, "\tset %s {\n\t\ttype %s\n", s.Name, setType(s))
	if s.Kind == ruleset.Ranges {
		b.WriteString("\t\tflags interval\n")
	}
	writeElements(b, elementsOf(s))
	b.WriteString("\t}\n\n")
}

func writeMap(b *strings.Builder, m *ruleset.Map) {
	fmt.Fprintf(b, "\tmap %s {\n\t\ttype %s : verdict\n", m.Name, addressType(m.Family))
	var elements []string
	for _, a := range slices.SortedFunc(maps.Keys(m.Chains), netip.Addr.Compare) {
		elements = append(elements, fmt.Sprintf("%s : goto %s", a, m.Chains[a]))
	}
	writeElements(b, elements)
	b.WriteString("\t}\n\n")
}

// writeElements writes one element a line, so that a difference of two texts shows single elements.
func writeElements(b io.Writer, elements []string) {
	if len(elements) == 0 {
		return
	}
	fmt.Fprintf(b, "\t\telements = { %s }\n", strings.Join(elements, ",\n\t\t\t     "))
}

func setType(s *ruleset.Set) string {
	switch s.Kind {
	case ruleset.Endpoints:
		return addressType(s.Family) + " . inet_proto . inet_service"
	case ruleset.Pairs:
		return addressType(s.Family) + " . " + addressType(s.Family)
	case ruleset.Links:
		return addressType(s.Family) + " . ifname"
	case ruleset.Interfaces:
		return "ifname"
	}
	return addressType(s.Family)
}

func elementsOf(s *ruleset.Set) []string {
	var all []string
	for _, a := range s.Addresses {
		all = append(all, a.String())
	}
	for _, r := range s.Ranges {
		all = append(all, r.String())
	}
	for _, e := range s.Endpoints {
		all = append(all, fmt.Sprintf("%s . %s . %d", e.Address, e.Protocol, e.Port))
	}
	for _, p := range s.Pairs {
		all = append(all, fmt.Sprintf("%s . %s", p.Source, p.Destination))
	}
	for _, l := range s.Links {
		all = append(all, fmt.Sprintf("%s . %q", l.Address, l.Interface))
	}
	for _, name := range s.Interfaces {
		all = append(all, fmt.Sprintf("%q", name))
	}
	return all
}

func addressType(f ruleset.Family) string {
	if f == ruleset.IPv6 {
		return "ipv6_addr"
	}
	return "ipv4_addr"
}
