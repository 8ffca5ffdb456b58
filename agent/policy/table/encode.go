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

// elementsOfRanges yields ranges of numbers of 1 byte or 2.
func elementsOfRanges(size int, ranges []ruleset.PortRange) iter.Seq[nftables.Element] {
	key := func(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n)[2-size:] }
	last := uint16(1<<(8*size) - 1)
	return func(yield func(nftables.Element) bool) {
		for _, r := range ranges {
			if !yield(nftables.Element{Key: key(r.First)}) || r.Last < last && !yield(nftables.Element{Key: key(r.Last + 1), End: true}) {
				return
			}
		}
	}
}

// portsSet is the name of the set of several ports. It has a dot, which names of rulesets never
// have, and a hash of the content: another content makes another set.
func portsSet(all []ruleset.PortRange) string {
	hash := fnv.New128a()
	for _, p := range all {
		_, _ = hash.Write(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, p.First), p.Last))
	}
	return "ports." + hex.EncodeToString(hash.Sum(nil)[:10])
}

// The sets of the types of ICMPv6 messages.
const neighborDiscovery, multicastListener = "icmpv6.nd", "icmpv6.mld"

// hopLimitOffset is where an IPv6 header has its hop limit (RFC 8200 §3).
const hopLimitOffset = 7

var hooks = map[ruleset.Hook]nftables.Hook{ruleset.Forward: nftables.Forward, ruleset.Input: nftables.Input, ruleset.Output: nftables.Output}

func (a *applied) table() *nftables.Table {
	n, rs := a.names, a.rs
	t := &nftables.Table{Family: nftables.INet, Name: ruleset.TableName, Counters: slices.Sorted(maps.Keys(a.counters))}
	for _, name := range slices.Sorted(maps.Keys(a.constants)) {
		t.Sets = append(t.Sets, a.constants[name])
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

func (n names) chainOf(c *ruleset.Chain) *nftables.Chain {
	return &nftables.Chain{Name: n.chain(c), Rules: n.rulesOf(c)}
}

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
		in(portsSet(r.Ports), nftables.DPort)
	}
	linkMessage := func(hopLimit byte, types string) {
		add(nftables.L4Proto.Is(unix.IPPROTO_ICMPV6), nftables.Network(hopLimitOffset, 1).Is(hopLimit))
		in(types, nftables.MessageType)
	}
	if r.NeighborDiscovery {
		linkMessage(255, neighborDiscovery)
	}
	if r.MulticastListener {
		linkMessage(1, multicastListener)
	}
	return all
}

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
