// SPDX-License-Identifier: Apache-2.0

package table

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/policy/connections"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/cni/nftables"
)

func familyOf(f ruleset.Family) *nftables.IP {
	if f == ruleset.IPv4 {
		return nftables.V4
	}
	return nftables.V6
}

// names is the suffix of a ruleset's objects in the kernel; each replacement changes it. Base
// chains and counters, which outlive replacements, have no suffix.
type names string

func (n names) of(name string) string {
	if name == "" {
		return ""
	}
	return name + string(n)
}

// chain is the name of a chain.
func (n names) chain(c *ruleset.Chain) string {
	if c.Hook != ruleset.NoHook {
		return c.Name
	}
	return n.of(c.Name)
}

// next returns a suffix that no object in the kernel has.
func next(have *nftables.Contents) names {
	used := map[names]bool{}
	use := func(name string) {
		// Names of rulesets have no dot; in names of constants a longer part follows the dot.
		at := strings.LastIndexByte(name, '.')
		if at < 0 || len(name)-at > len(".999999") || strings.Trim(name[at+1:], "0123456789") != "" {
			at = len(name)
		}
		used[names(name[at:])] = true
	}
	for _, s := range have.Sets {
		use(s.Name)
	}
	for _, c := range have.Chains {
		if c.Base == nil {
			use(c.Name)
		}
	}
	suffix := names("")
	for i := 1; used[suffix]; i++ {
		suffix = names(fmt.Sprintf(".%d", i))
	}
	return suffix
}

// setOf returns a set as the kernel has it.
func (n names) setOf(s *ruleset.Set) *nftables.Set {
	set := &nftables.Set{Name: n.of(s.Name), Interval: s.Kind == ruleset.Ranges, Elements: elementsOf(s)}
	f := familyOf(s.Family)
	switch s.Kind {
	case ruleset.Addresses, ruleset.Ranges:
		set.Key = []nftables.Type{f.Addr}
	case ruleset.Endpoints:
		set.Key = []nftables.Type{f.Addr, nftables.InetProto, nftables.InetService}
	case ruleset.Pairs:
		set.Key = []nftables.Type{f.Addr, f.Addr}
	case ruleset.Links:
		set.Key = []nftables.Type{f.Addr, nftables.IfName}
	case ruleset.Interfaces:
		set.Key = []nftables.Type{nftables.IfName}
	}
	return set
}

func (n names) mapOf(m *ruleset.Map) *nftables.Set {
	return &nftables.Set{Name: n.of(m.Name), Key: []nftables.Type{familyOf(m.Family).Addr}, Verdicts: true, Elements: n.elementsOfMap(m.Chains)}
}

// elementsOf yields the elements of a set as the kernel has them.
func elementsOf(s *ruleset.Set) iter.Seq[nftables.Element] {
	return func(yield func(nftables.Element) bool) {
		key := make([]byte, 0, 64)
		put := func(k []byte, end bool) bool {
			key = k
			return yield(nftables.Element{Key: key, End: end})
		}
		_ = each(s.Addresses, func(a netip.Addr) bool { return put(nftables.AppendAddr(key[:0], a), false) }) &&
			each(s.Ranges, func(r ruleset.AddressRange) bool {
				end := r.Last.Next()
				return put(nftables.AppendAddr(key[:0], r.First), false) && (!end.IsValid() || put(nftables.AppendAddr(key[:0], end), true))
			}) &&
			each(s.Endpoints, func(e ruleset.Endpoint) bool {
				return put(nftables.AppendPort(nftables.AppendProto(nftables.AppendAddr(key[:0], e.Address), byte(e.Protocol)), e.Port), false)
			}) &&
			each(s.Pairs, func(p ruleset.Pair) bool {
				return put(nftables.AppendAddr(nftables.AppendAddr(key[:0], p.Source), p.Destination), false)
			}) &&
			each(s.Links, func(l ruleset.Link) bool {
				return put(nftables.AppendName(nftables.AppendAddr(key[:0], l.Address), l.Interface), false)
			}) &&
			each(s.Interfaces, func(name string) bool { return put(nftables.AppendName(key[:0], name), false) })
	}
}

// each calls f for the elements until f returns false, and reports whether f never did.
func each[E any](all []E, f func(E) bool) bool {
	for _, e := range all {
		if !f(e) {
			return false
		}
	}
	return true
}

// elementsOfMap yields the elements of a map as the kernel has them.
func (n names) elementsOfMap(chains map[netip.Addr]string) iter.Seq[nftables.Element] {
	return func(yield func(nftables.Element) bool) {
		key := make([]byte, 0, 16)
		for a, chain := range chains {
			key = nftables.AppendAddr(key[:0], a)
			if !yield(nftables.Element{Key: key, Goto: n.of(chain)}) {
				return
			}
		}
	}
}

// constant is a set that follows from rules: it exists as long as a rule names it, and never
// changes.
type constant struct {
	name string
	kind nftables.Type
	// ranges are of 1 byte or 2, as the kind says.
	ranges []ruleset.PortRange
}

func (n names) constant(c constant) *nftables.Set {
	return &nftables.Set{Name: n.of(c.name), Key: []nftables.Type{c.kind}, Interval: true, Constant: true, Elements: c.elements()}
}

func (c constant) elements() iter.Seq[nftables.Element] {
	key := func(n uint16) []byte {
		if c.kind.Size() == 1 {
			return []byte{byte(n)}
		}
		return binary.BigEndian.AppendUint16(nil, n)
	}
	last := uint16(1<<(8*c.kind.Size()) - 1)
	return func(yield func(nftables.Element) bool) {
		for _, r := range c.ranges {
			if !yield(nftables.Element{Key: key(r.First)}) || r.Last < last && !yield(nftables.Element{Key: key(r.Last + 1), End: true}) {
				return
			}
		}
	}
}

// ports returns the set of several ports. Its name has a dot, which names of rulesets never have,
// and a hash of the content: another content makes another set.
func ports(all []ruleset.PortRange) constant {
	hash := fnv.New128a()
	for _, p := range all {
		_, _ = hash.Write(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, p.First), p.Last))
	}
	return constant{"ports." + hex.EncodeToString(hash.Sum(nil)[:10]), nftables.InetService, all}
}

// neighborDiscovery and multicastListener have the types of their ICMPv6 messages.
var (
	neighborDiscovery = constant{"icmpv6.nd", nftables.ICMPv6Type, []ruleset.PortRange{{First: 133, Last: 137}}}
	multicastListener = constant{"icmpv6.mld", nftables.ICMPv6Type, []ruleset.PortRange{{First: 130, Last: 132}, {First: 143, Last: 143}}}
)

// hopLimitOffset is where an IPv6 header has its hop limit (RFC 8200 §3).
const hopLimitOffset = 7

var hooks = map[ruleset.Hook]nftables.Hook{ruleset.Forward: nftables.Forward, ruleset.Input: nftables.Input, ruleset.Output: nftables.Output}

// table returns the table that the kernel must have.
func (a *applied) table() *nftables.Table {
	n, rs := a.names, a.rs
	t := &nftables.Table{Family: nftables.INet, Name: ruleset.TableName, Counters: slices.Sorted(maps.Keys(a.counters))}
	for _, name := range slices.Sorted(maps.Keys(a.constants)) {
		t.Sets = append(t.Sets, n.constant(a.constants[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(rs.Sets)) {
		t.Sets = append(t.Sets, n.setOf(rs.Sets[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(rs.Maps)) {
		t.Sets = append(t.Sets, n.mapOf(rs.Maps[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(rs.Chains)) {
		if c := rs.Chains[name]; c.Hook == ruleset.NoHook {
			t.Chains = append(t.Chains, n.chainOf(c))
		}
	}
	inHook := map[ruleset.Hook]int32{}
	for _, c := range rs.Bases() {
		base := n.chainOf(c)
		base.Base = nftables.Filter(hooks[c.Hook], nftables.PriorityFilter+inHook[c.Hook])
		inHook[c.Hook]++
		t.Chains = append(t.Chains, base)
	}
	return t
}

// chainOf returns a chain with its rules, without its hook.
func (n names) chainOf(c *ruleset.Chain) *nftables.Chain {
	return &nftables.Chain{Name: n.chain(c), Rules: n.rulesOf(c)}
}

// rulesOf yields the rules of a chain as the kernel has them.
func (n names) rulesOf(c *ruleset.Chain) iter.Seq[nftables.Rule] {
	return func(yield func(nftables.Rule) bool) {
		for i := range c.Rules {
			r := &c.Rules[i]
			if !yield(nftables.NewRule(r.Comment(), append(n.conditions(c.Hook, r), n.action(r)...)...)) {
				return
			}
			if r.Established && !yield(nftables.NewRule("connections that were ended", nftables.HasConnectionMark(connections.EndedMark), nftables.Drop)) {
				return
			}
		}
	}
}

// conditions match the packets of a rule.
func (n names) conditions(hook ruleset.Hook, r *ruleset.Rule) (all []nftables.Statement) {
	add := func(some ...nftables.Statement) { all = append(all, some...) }
	in := func(set string, fields ...nftables.Field) {
		if set != "" {
			add(nftables.In(n.of(set), fields...))
		}
	}
	f := familyOf(r.Family)
	if r.Family != ruleset.AnyFamily {
		add(f.Is)
	}
	if r.Established {
		add(nftables.Established, nftables.LacksConnectionMark(connections.EndedMark))
	}
	in(r.InInterface, nftables.IIFName)
	in(r.OutInterface, nftables.OIFName)
	if r.Loopback {
		link := nftables.IIFName
		if hook == ruleset.Output {
			link = nftables.OIFName
		}
		add(link.IsLink(ruleset.Loopback))
	}
	if r.LocalSource {
		add(nftables.FromNode)
	}
	in(r.SourceOut, f.SAddr, nftables.OIFName)
	in(r.SourceIn, f.SAddr, nftables.IIFName)
	in(r.Pair, f.Addresses)
	in(r.Source, f.SAddr)
	in(r.Destination, f.DAddr)
	in(r.Endpoint, f.DAddr, nftables.L4Proto, nftables.DPort)
	if r.Protocol != ruleset.AnyProtocol {
		add(nftables.L4Proto.Is(byte(r.Protocol)))
	}
	if len(r.Ports) == 1 {
		first, last := binary.BigEndian.AppendUint16(nil, r.Ports[0].First), binary.BigEndian.AppendUint16(nil, r.Ports[0].Last)
		if r.Ports[0].First == r.Ports[0].Last {
			add(nftables.DPort.Is(first...))
		} else {
			add(nftables.DPort.Between(first, last))
		}
	} else if len(r.Ports) > 1 {
		in(ports(r.Ports).name, nftables.DPort)
	}
	linkMessage := func(hopLimit byte, types constant) {
		add(nftables.L4Proto.Is(unix.IPPROTO_ICMPV6), nftables.Network(hopLimitOffset, 1).Is(hopLimit))
		in(types.name, nftables.MessageType)
	}
	if r.NeighborDiscovery {
		linkMessage(255, neighborDiscovery)
	}
	if r.MulticastListener {
		linkMessage(1, multicastListener)
	}
	return all
}

// action returns the statements for a packet that meets the conditions.
func (n names) action(r *ruleset.Rule) (all []nftables.Statement) {
	if r.Counter != "" {
		all = append(all, nftables.CounterNamed(r.Counter))
	}
	f := familyOf(r.Family)
	switch {
	case r.SourceMap != "":
		return append(all, nftables.Vmap(n.of(r.SourceMap), f.SAddr))
	case r.DestinationMap != "":
		return append(all, nftables.Vmap(n.of(r.DestinationMap), f.DAddr))
	}
	switch r.Verdict {
	case ruleset.Accept:
		all = append(all, nftables.Accept)
	case ruleset.Drop:
		all = append(all, nftables.Drop)
	case ruleset.Return:
		all = append(all, nftables.Return)
	case ruleset.Jump:
		all = append(all, nftables.Jump(n.of(r.Target)))
	case ruleset.Goto:
		all = append(all, nftables.Goto(n.of(r.Target)))
	}
	return all
}
