// SPDX-License-Identifier: Apache-2.0

package rulesettest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// Ends are the addresses of the two pods in one family.
type Ends struct {
	ruleset.Family
	Client, Server netip.Addr
}

// Both has the two pods in each family.
var Both = []Ends{
	{ruleset.IPv4, netip.MustParseAddr("10.0.1.2"), netip.MustParseAddr("10.0.2.2")},
	{ruleset.IPv6, netip.MustParseAddr("fd00:1::2"), netip.MustParseAddr("fd00:2::2")},
}

// The ports of the server in Isolated: peers reach OpenPort, nobody reaches OtherPort.
const (
	OpenPort  = 80
	OtherPort = 81
)

// Of makes a ruleset of chains.
func Of(chains ...*ruleset.Chain) *ruleset.Ruleset {
	rs := &ruleset.Ruleset{Sets: map[string]*ruleset.Set{}, Maps: map[string]*ruleset.Map{}, Chains: map[string]*ruleset.Chain{}}
	for _, c := range chains {
		rs.Chains[c.Name] = c
	}
	return rs
}

// Chain makes a chain.
func Chain(name string, hook ruleset.Hook, rules ...ruleset.Rule) *ruleset.Chain {
	return &ruleset.Chain{Name: name, Hook: hook, Rules: rules}
}

// With returns a ruleset that shares all objects of another ruleset except the given changes.
func With(rs *ruleset.Ruleset, changes ...any) *ruleset.Ruleset {
	next := &ruleset.Ruleset{Sets: map[string]*ruleset.Set{}, Maps: map[string]*ruleset.Map{}, Chains: map[string]*ruleset.Chain{}}
	maps.Copy(next.Sets, rs.Sets)
	maps.Copy(next.Maps, rs.Maps)
	maps.Copy(next.Chains, rs.Chains)
	for _, change := range changes {
		switch c := change.(type) {
		case *ruleset.Set:
			next.Sets[c.Name] = c
		case *ruleset.Map:
			next.Maps[c.Name] = c
		case *ruleset.Chain:
			next.Chains[c.Name] = c
		}
	}
	return next
}

// Addresses makes a set.
func Addresses(name string, family ruleset.Family, all ...netip.Addr) *ruleset.Set {
	return &ruleset.Set{Name: name, Family: family, Kind: ruleset.Addresses, Addresses: slices.Clone(all)}
}

// Isolated lets only peers reach the server's port, and denies all else to it; other packets
// pass.
func Isolated() *ruleset.Ruleset {
	rs := Of(
		Chain("ingress", ruleset.Forward,
			ruleset.Rule{Established: true, Verdict: ruleset.Accept},
			ruleset.Rule{Family: ruleset.IPv4, DestinationMap: "ingress4"},
			ruleset.Rule{Family: ruleset.IPv6, DestinationMap: "ingress6"}),
		Chain("i-server", ruleset.NoHook,
			ruleset.Rule{Verdict: ruleset.Jump, Target: "p-web"},
			ruleset.Rule{Counter: "denied", Verdict: ruleset.Drop}),
	)
	web := Chain("p-web", ruleset.NoHook)
	for _, e := range Both {
		suffix := map[ruleset.Family]string{ruleset.IPv4: "4", ruleset.IPv6: "6"}[e.Family]
		rs.Maps["ingress"+suffix] = &ruleset.Map{Name: "ingress" + suffix, Family: e.Family, Chains: map[netip.Addr]string{e.Server: "i-server"}}
		rs.Sets["peers"+suffix] = Addresses("peers"+suffix, e.Family, e.Client)
		for _, p := range []ruleset.Protocol{ruleset.TCP, ruleset.UDP, ruleset.SCTP} {
			web.Rules = append(web.Rules, ruleset.Rule{
				Family: e.Family, Source: "peers" + suffix, Protocol: p, Ports: []ruleset.PortRange{{First: OpenPort, Last: OpenPort}},
				Counter: "web", Verdict: ruleset.Accept,
			})
		}
	}
	rs.Chains[web.Name] = web
	return rs
}

// Closed is Isolated without peers.
func Closed() *ruleset.Ruleset {
	return With(Isolated(), Addresses("peers4", ruleset.IPv4), Addresses("peers6", ruleset.IPv6))
}

// Variants are rulesets with different sets, chains and maps that let the client reach only the
// open port of the server.
func Variants() []*ruleset.Ruleset {
	rs := Isolated()
	more := func(set string, e Ends) *ruleset.Set {
		return Addresses(set, e.Family, e.Client, e.Client.Next())
	}
	renamed := With(rs, Addresses("others4", ruleset.IPv4, Both[0].Client), Addresses("others6", ruleset.IPv6, Both[1].Client),
		Chain("i-other", ruleset.NoHook,
			ruleset.Rule{Family: ruleset.IPv4, Source: "others4", Protocol: ruleset.UDP, Ports: []ruleset.PortRange{{First: 70, Last: OpenPort}, {First: 90, Last: 99}}, Verdict: ruleset.Accept},
			ruleset.Rule{Family: ruleset.IPv6, Source: "others6", Protocol: ruleset.UDP, Ports: []ruleset.PortRange{{First: 70, Last: OpenPort}, {First: 90, Last: 99}}, Verdict: ruleset.Accept},
			ruleset.Rule{Counter: "other", Verdict: ruleset.Drop}),
		&ruleset.Map{Name: "ingress4", Family: ruleset.IPv4, Chains: map[netip.Addr]string{Both[0].Server: "i-other"}},
		&ruleset.Map{Name: "ingress6", Family: ruleset.IPv6, Chains: map[netip.Addr]string{Both[1].Server: "i-other"}})
	for _, name := range []string{"peers4", "peers6"} {
		delete(renamed.Sets, name)
	}
	for _, name := range []string{"p-web", "i-server"} {
		delete(renamed.Chains, name)
	}
	return []*ruleset.Ruleset{
		rs,
		With(rs, more("peers4", Both[0]), more("peers6", Both[1])),
		With(rs, Chain("i-server", ruleset.NoHook, ruleset.Rule{Verdict: ruleset.Jump, Target: "p-web"}, ruleset.Rule{Counter: "other", Verdict: ruleset.Drop})),
		renamed,
	}
}

// Random makes rulesets with each kind of object, each from the ruleset before.
type Random struct {
	*rand.Rand
	Ruleset *ruleset.Ruleset
}

func (r *Random) addr(f ruleset.Family) netip.Addr {
	if f == ruleset.IPv4 {
		return netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(2)), byte(r.IntN(40))})
	}
	return netip.AddrFrom16([16]byte{0xfd, 15: byte(r.IntN(40))})
}

func sortedSet[E any](n int, next func() E, compare func(a, b E) int) []E {
	var all []E
	for range n {
		all = append(all, next())
	}
	slices.SortFunc(all, compare)
	return slices.CompactFunc(all, func(a, b E) bool { return compare(a, b) == 0 })
}

func (r *Random) set(name string) *ruleset.Set {
	// The name says kind and family, so that most changes are of elements.
	kind, f := ruleset.Kind(name[1]-'0'), ruleset.Family(name[2]-'0')
	s := &ruleset.Set{Name: name, Kind: kind, Family: f}
	n := r.IntN(20)
	switch kind {
	case ruleset.Addresses:
		s.Addresses = sortedSet(n, func() netip.Addr { return r.addr(f) }, netip.Addr.Compare)
	case ruleset.Ranges:
		bounds := sortedSet(2*n, func() netip.Addr { return r.addr(f) }, netip.Addr.Compare)
		for i := 0; i+1 < len(bounds); i += 2 {
			last := len(s.Ranges) - 1
			if last >= 0 && s.Ranges[last].Last.Next() == bounds[i] {
				s.Ranges[last].Last = bounds[i+1]
				continue
			}
			s.Ranges = append(s.Ranges, ruleset.AddressRange{First: bounds[i], Last: bounds[i+1]})
		}
		if r.IntN(4) == 0 {
			all := ruleset.AddressRange{First: netip.IPv4Unspecified(), Last: netip.AddrFrom4([4]byte{255, 255, 255, 255})}
			if f == ruleset.IPv6 {
				all = ruleset.AddressRange{First: netip.IPv6Unspecified(), Last: netip.MustParseAddr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")}
			}
			s.Ranges = []ruleset.AddressRange{all}
		}
	case ruleset.Endpoints:
		s.Endpoints = sortedSet(n, func() ruleset.Endpoint {
			return ruleset.Endpoint{Address: r.addr(f), Protocol: []ruleset.Protocol{ruleset.TCP, ruleset.UDP, ruleset.SCTP}[r.IntN(3)], Port: uint16(1 + r.IntN(3))}
		}, ruleset.Endpoint.Compare)
	case ruleset.Pairs:
		s.Pairs = sortedSet(n, func() ruleset.Pair { return ruleset.Pair{Source: r.addr(f), Destination: r.addr(f)} }, ruleset.Pair.Compare)
	case ruleset.Links:
		s.Links = sortedSet(n, func() ruleset.Link {
			return ruleset.Link{Address: r.addr(f), Interface: fmt.Sprintf("eth%d", r.IntN(3))}
		}, ruleset.Link.Compare)
	case ruleset.Interfaces:
		s.Interfaces = sortedSet(n, func() string { return fmt.Sprintf("eth%d", r.IntN(30)) }, strings.Compare)
	}
	return s
}

func (r *Random) rule() ruleset.Rule {
	f := ruleset.Family(1 + r.IntN(2))
	rule := ruleset.Rule{Family: f, Verdict: []ruleset.Verdict{ruleset.Accept, ruleset.Drop, ruleset.Return, ruleset.Continue}[r.IntN(4)]}
	for _, name := range slices.Sorted(maps.Keys(r.Ruleset.Sets)) {
		s := r.Ruleset.Sets[name]
		if s.Family != f && s.Kind != ruleset.Interfaces || r.IntN(3) > 0 {
			continue
		}
		switch s.Kind {
		case ruleset.Addresses, ruleset.Ranges:
			if r.IntN(2) == 0 {
				rule.Source = name
			} else {
				rule.Destination = name
			}
		case ruleset.Endpoints:
			rule.Endpoint = name
		case ruleset.Pairs:
			rule.Pair = name
		case ruleset.Links:
			if rule.SourceOut = name; r.IntN(2) == 0 {
				rule.SourceIn = name
			}
		case ruleset.Interfaces:
			rule.InInterface = name
		}
	}
	if r.IntN(2) == 0 {
		rule.Protocol = ruleset.SCTP
		p := uint16(1)
		for range r.IntN(5) {
			p += uint16(2 + r.IntN(3))
			rule.Ports = append(rule.Ports, ruleset.PortRange{First: p, Last: p + uint16(r.IntN(2))})
			p = rule.Ports[len(rule.Ports)-1].Last
		}
	} else if f == ruleset.IPv6 && r.IntN(4) == 0 {
		rule.NeighborDiscovery = r.IntN(2) == 0
		rule.MulticastListener = !rule.NeighborDiscovery
	}
	if r.IntN(2) == 0 {
		rule.Counter = fmt.Sprintf("counter%d", r.IntN(10))
	}
	if r.IntN(2) == 0 {
		rule.Origin = &ruleset.Origin{Kind: "ClusterNetworkPolicy", NamespacedName: types.NamespacedName{Name: "p"}, Direction: ruleset.Ingress, Tier: "Admin", RuleName: r.name()}
	}
	return rule
}

// name returns the name of a policy's rule, which may have any characters, especially characters
// with a meaning in the programs' input.
func (r *Random) name() string {
	if r.IntN(2) == 0 {
		return "x\" ACCEPT\n-I FORWARD -j ACCEPT\n-A FORWARD -m comment --comment \"y"
	}
	var b strings.Builder
	for range r.IntN(100) {
		if r.IntN(4) == 0 {
			b.WriteRune(rune(r.IntN(unicode.MaxRune)))
		} else {
			b.WriteByte(byte(r.IntN(256)))
		}
	}
	return b.String()
}

// leaves are chains that lead nowhere else.
func (r *Random) leaves() []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(r.Ruleset.Chains)) {
		if strings.HasPrefix(name, "leaf") {
			all = append(all, name)
		}
	}
	return all
}

func (r *Random) addressMap(name string) *ruleset.Map {
	m := &ruleset.Map{Name: name, Family: ruleset.Family(name[1] - '0'), Chains: map[netip.Addr]string{}}
	leaves := r.leaves()
	for range r.IntN(20) {
		m.Chains[r.addr(m.Family)] = leaves[r.IntN(len(leaves))]
	}
	return m
}

// Next changes a few objects and returns a ruleset that shares the others.
func (r *Random) Next() *ruleset.Ruleset {
	r.Ruleset = With(r.Ruleset)
	for range 1 + r.IntN(4) {
		name := fmt.Sprintf("s%d%d-%d", 1+r.IntN(5), 1+r.IntN(2), r.IntN(3))
		if r.IntN(6) == 0 {
			name = fmt.Sprintf("s60-%d", r.IntN(3))
		}
		r.Ruleset.Sets[name] = r.set(name)
		leaf := Chain(fmt.Sprintf("leaf%d", r.IntN(12)), ruleset.NoHook)
		for range r.IntN(5) {
			leaf.Rules = append(leaf.Rules, r.rule())
		}
		r.Ruleset.Chains[leaf.Name] = leaf
		m := fmt.Sprintf("m%d-%d", 1+r.IntN(2), r.IntN(3))
		r.Ruleset.Maps[m] = r.addressMap(m)
	}
	base := Chain("base", ruleset.Forward, ruleset.Rule{Established: true, Verdict: ruleset.Accept})
	for _, name := range slices.Sorted(maps.Keys(r.Ruleset.Maps)) {
		base.Rules = append(base.Rules, ruleset.Rule{Family: r.Ruleset.Maps[name].Family, SourceMap: name})
	}
	for _, leaf := range r.leaves() {
		if r.IntN(3) > 0 {
			base.Rules = append(base.Rules, ruleset.Rule{Verdict: ruleset.Jump, Target: leaf})
		}
	}
	r.Ruleset.Chains["base"] = base
	r.Ruleset.Chains["second"] = Chain("second", ruleset.Forward)
	r.Ruleset.Chains["output"] = Chain("output", ruleset.Output, ruleset.Rule{Loopback: true, Verdict: ruleset.Accept})
	r.sweep()
	return r.Ruleset
}

// sweep removes some of the objects that nothing needs.
func (r *Random) sweep() {
	used := map[string]bool{}
	for _, c := range r.Ruleset.Chains {
		for _, rule := range c.Rules {
			used[rule.SourceMap], used[rule.Target] = true, true
			for _, name := range rule.Sets() {
				used[name] = true
			}
		}
	}
	for _, m := range r.Ruleset.Maps {
		for _, name := range m.Chains {
			used[name] = true
		}
	}
	drop := func(name string) bool { return !used[name] && r.IntN(2) == 0 }
	maps.DeleteFunc(r.Ruleset.Sets, func(name string, _ *ruleset.Set) bool { return drop(name) })
	maps.DeleteFunc(r.Ruleset.Chains, func(name string, _ *ruleset.Chain) bool { return strings.HasPrefix(name, "leaf") && drop(name) })
}
