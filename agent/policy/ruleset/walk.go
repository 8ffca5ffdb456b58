// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// Loopback is the interface by which a pod reaches itself.
const Loopback = "lo"

// Packet has the properties of a packet that rules match.
type Packet struct {
	// Source and Destination are of one family, not IPv4-mapped and without a zone.
	Source, Destination netip.Addr
	Protocol            Protocol
	// Port is the destination's, 0 if the protocol has none.
	Port uint16
	// InInterface is empty in Output, OutInterface in Input.
	InInterface, OutInterface string
	// Established says that conntrack knows the packet's connection, or a related connection.
	Established bool
	// NeighborDiscovery and MulticastListener say that the packet meets the condition of this name in
	// Rule.
	NeighborDiscovery, MulticastListener bool
	// LocalSource says that the source is an address of the network namespace.
	LocalSource bool
}

// Decision is the verdict on a packet at one hook, with the rules that led to it.
type Decision struct {
	// Verdict is Accept or Drop.
	Verdict Verdict
	// Path is every rule that matched, in order, of all base chains.
	Path []Step
	// Rule is the rule that decided in the last base chain, the last of Path; nil if the packet
	// reached the end of this base chain, which accepts.
	Rule *Rule
}

// Step is a rule that matched, at its place.
type Step struct {
	// Base is the base chain from which the packet came.
	Base  string
	Chain string
	// Index counts the rules of the chain, from 0.
	Index int
	Rule  *Rule
	// Next is the chain where the packet continued after Jump, Goto or a map.
	Next string
}

// Origin returns the origin of the deciding rule, nil if no policy decided.
func (d Decision) Origin() *Origin {
	if d.Rule == nil {
		return nil
	}
	return d.Rule.Origin
}

// Walk returns the kernel's decision on a packet at a hook. Check must accept the ruleset.
func Walk(rs *Ruleset, hook Hook, p Packet) Decision {
	return NewWalker(rs, hook).Walk(p)
}

// Walker walks many packets through the same hook of a ruleset.
type Walker struct {
	rs   *Ruleset
	hook Hook
	base []*Chain
}

// NewWalker returns a walker, which may be used by many goroutines.
func NewWalker(rs *Ruleset, hook Hook) *Walker {
	return &Walker{rs, hook, rs.Bases(hook)}
}

// Bases returns the base chains of some hooks, or of all hooks, in the order of their names.
func (rs *Ruleset) Bases(of ...Hook) []*Chain {
	var all []*Chain
	for _, c := range rs.Chains {
		if c.Hook != NoHook && (len(of) == 0 || slices.Contains(of, c.Hook)) {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b *Chain) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Walk is like the function Walk.
func (w *Walker) Walk(p Packet) Decision {
	d := Decision{Verdict: Accept}
	for _, base := range w.base {
		// After a base chain that accepts, the next base chain follows; Drop ends the packet.
		if d.Verdict, d.Rule = w.run(base, p, &d.Path); d.Verdict == Drop {
			break
		}
	}
	return d
}

type place struct {
	chain *Chain
	next  int
}

// run runs a base chain to its verdict and returns the rule that decided.
func (w *Walker) run(base *Chain, p Packet, path *[]Step) (Verdict, *Rule) {
	at := place{chain: base}
	// callers is where packets continue after Return or the end of a chain: after each Jump that led
	// here.
	var callers []place
	for {
		if at.next == len(at.chain.Rules) {
			if len(callers) == 0 {
				return Accept, nil
			}
			at, callers = callers[len(callers)-1], callers[:len(callers)-1]
			continue
		}
		index := at.next
		rule := &at.chain.Rules[index]
		at.next++
		verdict, target, matches := w.apply(rule, p)
		if !matches {
			continue
		}
		*path = append(*path, Step{Base: base.Name, Chain: at.chain.Name, Index: index, Rule: rule, Next: target})
		switch verdict {
		case Continue:
		case Accept, Drop:
			return verdict, rule
		case Return:
			if len(callers) == 0 {
				return Accept, rule
			}
			at, callers = callers[len(callers)-1], callers[:len(callers)-1]
		case Jump:
			callers = append(callers, at)
			at = place{chain: w.rs.Chains[target]}
		case Goto:
			at = place{chain: w.rs.Chains[target]}
		}
	}
}

func (w *Walker) apply(r *Rule, p Packet) (verdict Verdict, target string, matches bool) {
	if r.Family != AnyFamily && r.Family != FamilyOf(p.Source) {
		return 0, "", false
	}
	switch {
	case r.SourceMap != "":
		return w.lookup(r.SourceMap, p.Source)
	case r.DestinationMap != "":
		return w.lookup(r.DestinationMap, p.Destination)
	}
	if r.Established && !p.Established || r.NeighborDiscovery && !p.NeighborDiscovery || r.MulticastListener && !p.MulticastListener || r.LocalSource && !p.LocalSource {
		return 0, "", false
	}
	if r.Loopback && !(w.hook == Input && p.InInterface == Loopback || w.hook == Output && p.OutInterface == Loopback) {
		return 0, "", false
	}
	if r.Protocol != AnyProtocol && r.Protocol != p.Protocol {
		return 0, "", false
	}
	if len(r.Ports) > 0 && !slices.ContainsFunc(r.Ports, func(ports PortRange) bool { return ports.First <= p.Port && p.Port <= ports.Last }) {
		return 0, "", false
	}
	for i := range lookups {
		if set := lookups[i].set(r); set != "" && !lookups[i].has(w.rs.Sets[set], p) {
			return 0, "", false
		}
	}
	return r.Verdict, r.Target, true
}

// lookups are the conditions of rules by sets, each with the fields of a packet that the set has,
// in the syntax of nft.
var lookups = [...]struct {
	fields string
	set    func(*Rule) string
	has    func(*Set, Packet) bool
}{
	{"iifname", func(r *Rule) string { return r.InInterface }, func(s *Set, p Packet) bool { return isIn(p.InInterface, s.Interfaces, strings.Compare) }},
	{"oifname", func(r *Rule) string { return r.OutInterface }, func(s *Set, p Packet) bool { return isIn(p.OutInterface, s.Interfaces, strings.Compare) }},
	{"ip saddr . oifname", func(r *Rule) string { return r.SourceOut }, func(s *Set, p Packet) bool { return isIn(Link{p.Source, p.OutInterface}, s.Links, Link.Compare) }},
	{"ip saddr . iifname", func(r *Rule) string { return r.SourceIn }, func(s *Set, p Packet) bool { return isIn(Link{p.Source, p.InInterface}, s.Links, Link.Compare) }},
	{"ip saddr . ip daddr", func(r *Rule) string { return r.Pair }, func(s *Set, p Packet) bool { return isIn(Pair{p.Source, p.Destination}, s.Pairs, Pair.Compare) }},
	{"ip saddr", func(r *Rule) string { return r.Source }, func(s *Set, p Packet) bool { return s.has(p.Source) }},
	{"ip daddr", func(r *Rule) string { return r.Destination }, func(s *Set, p Packet) bool { return s.has(p.Destination) }},
	{"ip daddr . meta l4proto . th dport", func(r *Rule) string { return r.Endpoint }, func(s *Set, p Packet) bool {
		return isIn(Endpoint{p.Destination, p.Protocol, p.Port}, s.Endpoints, Endpoint.Compare)
	}},
}

// lookup returns where a map leads from an address.
func (w *Walker) lookup(name string, a netip.Addr) (Verdict, string, bool) {
	target, ok := w.rs.Maps[name].Chains[a]
	return Goto, target, ok
}

// has reports whether an address is in a set of Addresses or Ranges.
func (s *Set) has(a netip.Addr) bool {
	switch s.Kind {
	case Addresses:
		return isIn(a, s.Addresses, netip.Addr.Compare)
	case Ranges:
		i, found := slices.BinarySearchFunc(s.Ranges, a, func(r AddressRange, a netip.Addr) int { return r.First.Compare(a) })
		// Before i are the ranges that begin before the address.
		return found || i > 0 && FamilyOf(a) == s.Family && a.Compare(s.Ranges[i-1].Last) <= 0
	}
	return false
}

func isIn[E any](e E, all []E, compare func(a, b E) int) bool {
	_, found := slices.BinarySearchFunc(all, e, compare)
	return found
}

// shareLink reports whether two addresses have a link in common.
func (s *Set) shareLink(a, b netip.Addr) bool {
	first, _ := slices.BinarySearchFunc(s.Links, Link{Address: a}, Link.Compare)
	for _, l := range s.Links[first:] {
		if l.Address != a {
			break
		}
		if isIn(Link{b, l.Interface}, s.Links, Link.Compare) {
			return true
		}
	}
	return false
}

// Compare orders endpoints by address, protocol and port, as sets have them.
func (e Endpoint) Compare(f Endpoint) int {
	return cmp.Or(e.Address.Compare(f.Address), cmp.Compare(e.Protocol, f.Protocol), cmp.Compare(e.Port, f.Port))
}

// Compare orders pairs by source and destination, as sets have them.
func (p Pair) Compare(q Pair) int {
	return cmp.Or(p.Source.Compare(q.Source), p.Destination.Compare(q.Destination))
}

// Compare orders links by address and interface, as sets have them.
func (l Link) Compare(m Link) int {
	return cmp.Or(l.Address.Compare(m.Address), strings.Compare(l.Interface, m.Interface))
}
