// SPDX-License-Identifier: Apache-2.0

// Package rulesettest finds errors in a ruleset, and writes it as text. Tests of the policy
// compiler use Check to prove that its rulesets have no errors, and compare texts.
package rulesettest

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// maxDepth is how many chains may lead to one another (NFT_JUMP_STACK_SIZE of
// linux/netfilter/nf_tables.h).
const maxDepth = 16

// maxInterface is the longest name of an interface (IFNAMSIZ without its end).
const maxInterface = 15

// maxCounter is the longest name of a counter (NFT_OBJ_MAXNAMELEN without its end).
const maxCounter = 255

// Check returns all errors of a ruleset: values that the kernel would refuse, or that Walk, Text
// and the kernel would interpret differently.
func Check(rs *ruleset.Ruleset) error {
	c := checker{rs: rs}
	for _, name := range slices.Sorted(maps.Keys(rs.Sets)) {
		c.at = "set " + name
		c.set(name, rs.Sets[name])
	}
	for _, name := range slices.Sorted(maps.Keys(rs.Maps)) {
		c.at = "map " + name
		c.addressMap(name, rs.Maps[name])
	}
	for _, name := range slices.Sorted(maps.Keys(rs.Chains)) {
		c.at = "chain " + name
		c.chain(name, rs.Chains[name])
	}
	if len(c.errs) == 0 {
		c.depths()
	}
	return errors.Join(c.errs...)
}

type checker struct {
	rs   *ruleset.Ruleset
	at   string
	errs []error
}

func (c *checker) fail(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf("%s: %s", c.at, fmt.Sprintf(format, args...)))
}

func (c *checker) name(key, name string) {
	if key != name {
		c.fail("its name is %q", name)
	}
	if len(name) > ruleset.MaxName {
		c.fail("the name has %d bytes, and may have %d", len(name), ruleset.MaxName)
	}
	if !isName(name) {
		c.fail("the name %q is not of a letter and of letters, digits, '-', '_'", name)
	}
}

// isName reports whether nft accepts a name.
func isName(name string) bool {
	for i := range len(name) {
		b := name[i]
		letter := b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
		if !letter && (i == 0 || !(b >= '0' && b <= '9' || b == '-' || b == '_')) {
			return false
		}
	}
	return name != ""
}

func (c *checker) set(key string, s *ruleset.Set) {
	c.name(key, s.Name)
	if c.rs.Maps[key] != nil {
		c.fail("a map has the same name")
	}
	if (s.Family == ruleset.AnyFamily) != (s.Kind == ruleset.Interfaces) || s.Family > ruleset.IPv6 {
		c.fail("kind %d with family %d", s.Kind, s.Family)
	}
	for kind, n := range map[ruleset.Kind]int{ruleset.Addresses: len(s.Addresses), ruleset.Ranges: len(s.Ranges), ruleset.Endpoints: len(s.Endpoints), ruleset.Pairs: len(s.Pairs), ruleset.Links: len(s.Links), ruleset.Interfaces: len(s.Interfaces)} {
		if kind != s.Kind && n > 0 {
			c.fail("kind %d has elements of kind %d", s.Kind, kind)
		}
	}
	switch s.Kind {
	case ruleset.Addresses:
		sorted(c, s.Addresses, netip.Addr.Compare)
		for _, a := range s.Addresses {
			c.address(s.Family, a)
		}
	case ruleset.Ranges:
		c.ranges(s)
	case ruleset.Endpoints:
		sorted(c, s.Endpoints, ruleset.Endpoint.Compare)
		for _, e := range s.Endpoints {
			c.address(s.Family, e.Address)
			if e.Protocol == ruleset.AnyProtocol {
				c.fail("endpoint %v has no protocol", e)
			}
		}
	case ruleset.Pairs:
		sorted(c, s.Pairs, ruleset.Pair.Compare)
		for _, p := range s.Pairs {
			c.address(s.Family, p.Source)
			c.address(s.Family, p.Destination)
		}
	case ruleset.Links:
		sorted(c, s.Links, ruleset.Link.Compare)
		for _, l := range s.Links {
			c.address(s.Family, l.Address)
			c.linkName(l.Interface)
		}
	case ruleset.Interfaces:
		sorted(c, s.Interfaces, strings.Compare)
		for _, name := range s.Interfaces {
			c.linkName(name)
		}
	default:
		c.fail("kind %d is none", s.Kind)
	}
}

func (c *checker) linkName(name string) {
	if name == "" || len(name) > maxInterface {
		c.fail("%q cannot be an interface's name", name)
	}
}

func (c *checker) ranges(s *ruleset.Set) {
	for i, r := range s.Ranges {
		c.address(s.Family, r.First)
		c.address(s.Family, r.Last)
		if r.Last.Less(r.First) {
			c.fail("range %v-%v ends before it begins", r.First, r.Last)
		}
		// The highest address has no next address; Next then returns the zero Addr, which is less than
		// all.
		if i > 0 && !(s.Ranges[i-1].Last.Next().IsValid() && s.Ranges[i-1].Last.Next().Less(r.First)) {
			c.fail("range %v-%v is not after its predecessor and apart from it", r.First, r.Last)
		}
	}
}

func sorted[E any](c *checker, all []E, compare func(a, b E) int) {
	for i := 1; i < len(all); i++ {
		if compare(all[i-1], all[i]) >= 0 {
			c.fail("%v stands before %v", all[i-1], all[i])
		}
	}
}

func (c *checker) address(family ruleset.Family, a netip.Addr) {
	switch {
	case !a.IsValid() || a.Is4In6() || a.Zone() != "":
		c.fail("%v is no plain address", a)
	case ruleset.FamilyOf(a) != family:
		c.fail("%v is of the other family", a)
	}
}

func (c *checker) addressMap(key string, m *ruleset.Map) {
	c.name(key, m.Name)
	if m.Family != ruleset.IPv4 && m.Family != ruleset.IPv6 {
		c.fail("family %d", m.Family)
	}
	for _, a := range slices.SortedFunc(maps.Keys(m.Chains), netip.Addr.Compare) {
		c.address(m.Family, a)
		c.target(m.Chains[a])
	}
}

func (c *checker) target(name string) {
	if chain := c.rs.Chains[name]; chain == nil {
		c.fail("leads to chain %q, which does not exist", name)
	} else if chain.Hook != ruleset.NoHook {
		c.fail("leads to base chain %q", name)
	}
}

func (c *checker) chain(key string, chain *ruleset.Chain) {
	c.name(key, chain.Name)
	if chain.Hook > ruleset.Output {
		c.fail("hook %d is none", chain.Hook)
	}
	for i := range chain.Rules {
		c.at = fmt.Sprintf("chain %s, rule %d", key, i)
		c.rule(chain, &chain.Rules[i])
	}
}

func (c *checker) rule(chain *ruleset.Chain, r *ruleset.Rule) {
	if r.Family > ruleset.IPv6 {
		c.fail("family %d", r.Family)
	}
	if r.SourceMap != "" || r.DestinationMap != "" {
		c.mapRule(r)
		return
	}
	c.condition(r, r.InInterface, ruleset.Interfaces)
	c.condition(r, r.OutInterface, ruleset.Interfaces)
	c.condition(r, r.Source, ruleset.Addresses, ruleset.Ranges)
	c.condition(r, r.Destination, ruleset.Addresses, ruleset.Ranges)
	c.condition(r, r.Endpoint, ruleset.Endpoints)
	c.condition(r, r.Pair, ruleset.Pairs)
	c.condition(r, r.SourceIn, ruleset.Links)
	c.condition(r, r.SourceOut, ruleset.Links)
	if r.Loopback && chain.Hook != ruleset.Input && chain.Hook != ruleset.Output {
		c.fail("loopback means nothing but in base chains of Input and Output")
	}
	if r.LocalSource && chain.Hook != ruleset.Output {
		c.fail("the source is local in packets of Output only")
	}
	if r.InInterface+r.SourceIn != "" && chain.Hook == ruleset.Output || r.OutInterface+r.SourceOut != "" && chain.Hook == ruleset.Input {
		c.fail("the hook has no such interface")
	}
	if (r.NeighborDiscovery || r.MulticastListener) && (r.Family == ruleset.IPv4 || r.Protocol != ruleset.AnyProtocol) {
		c.fail("neighbour discovery and messages of multicast listeners are ICMPv6")
	}
	if len(r.Ports) > 0 && r.Protocol != ruleset.TCP && r.Protocol != ruleset.UDP && r.Protocol != ruleset.SCTP {
		c.fail("ports of protocol %d", r.Protocol)
	}
	for i, ports := range r.Ports {
		if ports.First > ports.Last {
			c.fail("ports %d-%d end before they begin", ports.First, ports.Last)
		}
		if i > 0 && int(r.Ports[i-1].Last)+1 >= int(ports.First) {
			c.fail("ports %d-%d are not after their predecessors and apart from them", ports.First, ports.Last)
		}
	}
	switch r.Verdict {
	case ruleset.Jump, ruleset.Goto:
		c.target(r.Target)
	case ruleset.Continue, ruleset.Accept, ruleset.Drop, ruleset.Return:
		if r.Target != "" {
			c.fail("verdict %d with target %s", r.Verdict, r.Target)
		}
	default:
		c.fail("verdict %d is none", r.Verdict)
	}
	c.counter(r)
}

func (c *checker) mapRule(r *ruleset.Rule) {
	bare := ruleset.Rule{Family: r.Family, SourceMap: r.SourceMap, DestinationMap: r.DestinationMap, Counter: r.Counter, Origin: r.Origin}
	if r.SourceMap != "" && r.DestinationMap != "" || len(r.Ports) > 0 || !equalConditions(*r, bare) {
		c.fail("has a map, and other conditions or a verdict")
	}
	name := r.SourceMap + r.DestinationMap
	if m := c.rs.Maps[name]; m == nil {
		c.fail("map %s does not exist", name)
	} else if m.Family != r.Family {
		c.fail("map %s is of another family", name)
	}
	c.counter(r)
}

// equalConditions compares rules without Ports.
func equalConditions(a, b ruleset.Rule) bool {
	return a.Family == b.Family && a.Established == b.Established && a.NeighborDiscovery == b.NeighborDiscovery && a.MulticastListener == b.MulticastListener &&
		a.InInterface == b.InInterface && a.OutInterface == b.OutInterface && a.Loopback == b.Loopback && a.LocalSource == b.LocalSource &&
		a.Source == b.Source && a.Destination == b.Destination && a.Endpoint == b.Endpoint && a.Pair == b.Pair && a.SourceIn == b.SourceIn && a.SourceOut == b.SourceOut &&
		a.Protocol == b.Protocol && a.Verdict == b.Verdict && a.Target == b.Target
}

// condition checks a rule's set.
func (c *checker) condition(r *ruleset.Rule, name string, kinds ...ruleset.Kind) {
	if name == "" {
		return
	}
	s := c.rs.Sets[name]
	if s == nil {
		c.fail("set %s does not exist", name)
		return
	}
	if !slices.Contains(kinds, s.Kind) {
		c.fail("set %s is of kind %d", name, s.Kind)
	}
	if s.Kind != ruleset.Interfaces && s.Family != r.Family {
		c.fail("set %s is of another family", name)
	}
}

func (c *checker) counter(r *ruleset.Rule) {
	if r.Counter != "" && (len(r.Counter) > maxCounter || !isName(r.Counter)) {
		c.fail("%q cannot be a counter's name", r.Counter)
	}
}

// depths checks that no chain leads back to itself, and that no path is longer than the kernel
// follows.
func (c *checker) depths() {
	// depth is the length of the longest path from each chain; 0 while it is being computed.
	depth := map[string]int{}
	var follow func(name string) int
	follow = func(name string) int {
		if d, known := depth[name]; known {
			if d == 0 {
				c.at = "chain " + name
				c.fail("leads back to itself")
			}
			return d
		}
		depth[name] = 0
		deepest := 0
		for _, r := range c.rs.Chains[name].Rules {
			for _, target := range c.targets(r) {
				deepest = max(deepest, follow(target))
			}
		}
		depth[name] = deepest + 1
		return deepest + 1
	}
	for _, name := range slices.Sorted(maps.Keys(c.rs.Chains)) {
		if d := follow(name); d > maxDepth {
			c.at = "chain " + name
			c.fail("%d chains follow one another, and may be %d", d, maxDepth)
		}
	}
}

// targets returns the chains that a rule may lead to, each once.
func (c *checker) targets(r ruleset.Rule) []string {
	if name := r.SourceMap + r.DestinationMap; name != "" {
		return slices.Compact(slices.Sorted(maps.Values(c.rs.Maps[name].Chains)))
	}
	if r.Target != "" {
		return []string{r.Target}
	}
	return nil
}
