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
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/cni/netfilter"
)

// rulesVersion is in the mark of every rule.
const rulesVersion = "1"

// Registers of 4 bytes: the kernel's NFT_REG32_00 and those that follow. The first of 16
// bytes, NFT_REG_1, begins at the first of them.
const (
	reg0     uint32 = 8
	regLast4 uint32 = 20 // NFT_REG_4, for what must not touch a key in the first ones
)

// family is an address family and where its packets have what.
type family struct {
	ruleset.Family
	protocol             byte
	addr                 nftables.SetDatatype
	saddr, daddr, length uint32
	// cut is the set of connections that were ended.
	cut string
}

var families = []family{
	{Family: ruleset.IPv4, protocol: unix.NFPROTO_IPV4, addr: nftables.TypeIPAddr, saddr: 12, daddr: 16, length: 4, cut: "cut4"},
	{Family: ruleset.IPv6, protocol: unix.NFPROTO_IPV6, addr: nftables.TypeIP6Addr, saddr: 8, daddr: 24, length: 16, cut: "cut6"},
}

func familyOf(f ruleset.Family) family {
	if f == ruleset.IPv4 {
		return families[0]
	}
	return families[1]
}

// words is how many registers of 4 bytes an address has.
func (f family) words() uint32 { return f.length / 4 }

// names are the names that a ruleset's objects have in the kernel: those that they have in the
// ruleset, with a suffix that is another one after each replacement. Base chains, counters and the
// sets of ended connections, which outlive replacements, have none.
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

// next returns names that nothing in the kernel has.
func next(have *netfilter.TableContents) names {
	used := map[names]bool{}
	use := func(name string) {
		// Names of rulesets have no dot; those of constants have one before something longer.
		at := strings.LastIndexByte(name, '.')
		if at < 0 || len(name)-at > len(".999999") || strings.Trim(name[at+1:], "0123456789") != "" {
			at = len(name)
		}
		used[names(name[at:])] = true
	}
	for _, s := range have.Sets {
		if !isCut(s.Name) {
			use(s.Name)
		}
	}
	for _, c := range have.Chains {
		if c.Hooknum == nil {
			use(c.Name)
		}
	}
	suffix := names("")
	for i := 1; used[suffix]; i++ {
		suffix = names(fmt.Sprintf(".%d", i))
	}
	return suffix
}

// isCut returns whether it is a set of ended connections.
func isCut(set string) bool { return set == families[0].cut || set == families[1].cut }

// cutFor is how long packets of an ended connection are dropped: longer than anybody repeats
// one that is not answered.
const cutFor = time.Hour

// cutSet is the set of packets of ended connections.
func (f family) cutSet(table *nftables.Table) *nftables.Set {
	return &nftables.Set{
		Table: table, Name: f.cut, Concatenation: true, HasTimeout: true, Timeout: cutFor,
		KeyType: nftables.MustConcatSetType(f.addr, f.addr, nftables.TypeInetProto, nftables.TypeInetService, nftables.TypeInetService),
	}
}

// setOf returns what the kernel knows of a set beside its elements.
func (n names) setOf(table *nftables.Table, s *ruleset.Set) *nftables.Set {
	set := &nftables.Set{Table: table, Name: n.of(s.Name)}
	f := familyOf(s.Family)
	switch s.Kind {
	case ruleset.Addresses:
		set.KeyType = f.addr
	case ruleset.Ranges:
		set.KeyType, set.Interval = f.addr, true
	case ruleset.Endpoints:
		set.KeyType, set.Concatenation = nftables.MustConcatSetType(f.addr, nftables.TypeInetProto, nftables.TypeInetService), true
	case ruleset.Pairs:
		set.KeyType, set.Concatenation = nftables.MustConcatSetType(f.addr, f.addr), true
	case ruleset.Interfaces:
		set.KeyType = nftables.TypeIFName
	}
	return set
}

func (n names) mapOf(table *nftables.Table, m *ruleset.Map) *nftables.Set {
	return &nftables.Set{Table: table, Name: n.of(m.Name), KeyType: familyOf(m.Family).addr, IsMap: true}
}

// elementsOf yields the elements of a set as the kernel has them.
func elementsOf(s *ruleset.Set) iter.Seq[netfilter.Element] {
	return func(yield func(netfilter.Element) bool) {
		key := make([]byte, 0, 64)
		for _, a := range s.Addresses {
			key = appendAddress(key[:0], a)
			if !yield(netfilter.Element{Key: key}) {
				return
			}
		}
		for _, r := range s.Ranges {
			key = appendAddress(key[:0], r.First)
			if !yield(netfilter.Element{Key: key}) {
				return
			}
			if end := r.Last.Next(); end.IsValid() {
				key = appendAddress(key[:0], end)
				if !yield(netfilter.Element{Key: key, End: true}) {
					return
				}
			}
		}
		for _, e := range s.Endpoints {
			key = appendPort(appendProtocol(appendAddress(key[:0], e.Address), byte(e.Protocol)), e.Port)
			if !yield(netfilter.Element{Key: key}) {
				return
			}
		}
		for _, p := range s.Pairs {
			key = appendAddress(appendAddress(key[:0], p.Source), p.Destination)
			if !yield(netfilter.Element{Key: key}) {
				return
			}
		}
		for _, name := range s.Interfaces {
			key = append(key[:0], interfaceName(name)...)
			if !yield(netfilter.Element{Key: key}) {
				return
			}
		}
	}
}

// elementsOfMap yields the elements of a map as the kernel has them.
func (n names) elementsOfMap(chains map[netip.Addr]string) iter.Seq[netfilter.Element] {
	return func(yield func(netfilter.Element) bool) {
		key := make([]byte, 0, 16)
		for a, chain := range chains {
			key = appendAddress(key[:0], a)
			if !yield(netfilter.Element{Key: key, Goto: n.of(chain)}) {
				return
			}
		}
	}
}

func appendAddress(key []byte, a netip.Addr) []byte {
	if a.Is4() {
		four := a.As4()
		return append(key, four[:]...)
	}
	sixteen := a.As16()
	return append(key, sixteen[:]...)
}

// appendProtocol and appendPort fill a register of 4 bytes.
func appendProtocol(key []byte, p byte) []byte { return append(key, p, 0, 0, 0) }

func appendPort(key []byte, port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(key, port), 0, 0)
}

func interfaceName(name string) []byte {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return padded
}

// constant is a set that follows from rules: it is there as long as a rule names it, and never
// changes.
type constant struct {
	name string
	kind nftables.SetDatatype
	// ranges are of 1 byte or 2, as the kind says.
	ranges []ruleset.PortRange
}

func (n names) constant(table *nftables.Table, c constant) *nftables.Set {
	return &nftables.Set{Table: table, Name: n.of(c.name), KeyType: c.kind, Interval: true, Constant: true}
}

func (c constant) elements() iter.Seq[netfilter.Element] {
	key := func(n uint16) []byte {
		if c.kind.Bytes == 1 {
			return []byte{byte(n)}
		}
		return binary.BigEndian.AppendUint16(nil, n)
	}
	last := uint16(1<<(8*c.kind.Bytes) - 1)
	return func(yield func(netfilter.Element) bool) {
		for _, r := range c.ranges {
			if !yield(netfilter.Element{Key: key(r.First)}) || r.Last < last && !yield(netfilter.Element{Key: key(r.Last + 1), End: true}) {
				return
			}
		}
	}
}

// ports returns the set of several ports. Its name has a dot, which those of rulesets never
// have, and says what is in it: a set of another content is another set.
func ports(all []ruleset.PortRange) constant {
	hash := fnv.New128a()
	for _, p := range all {
		_, _ = hash.Write(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, p.First), p.Last))
	}
	return constant{"ports." + hex.EncodeToString(hash.Sum(nil)[:10]), nftables.TypeInetService, all}
}

// neighborDiscovery has the types of ICMPv6 messages without which there is no IPv6 on a link: of
// multicast listeners from 130 and of neighbours to 137, and 143 of version 2 of the former.
var neighborDiscovery = constant{"icmpv6.nd", nftables.TypeICMP6Type, []ruleset.PortRange{{First: 130, Last: 137}, {First: 143, Last: 143}}}

// hopLimitOffset is where an IPv6 header has its hop limit (RFC 8200 §3).
const hopLimitOffset = 7

// constantsOf yields the sets that follow from a rule.
func constantsOf(r *ruleset.Rule) iter.Seq[constant] {
	return func(yield func(constant) bool) {
		if len(r.Ports) > 1 && !yield(ports(r.Ports)) {
			return
		}
		if r.NeighborDiscovery {
			yield(neighborDiscovery)
		}
	}
}

var hooks = map[ruleset.Hook]*nftables.ChainHook{
	ruleset.Forward: nftables.ChainHookForward, ruleset.Input: nftables.ChainHookInput, ruleset.Output: nftables.ChainHookOutput,
}

// chainsOf returns what the kernel knows of chains beside their rules, by the names of the
// ruleset.
func (n names) chainsOf(table *nftables.Table, rs *ruleset.Ruleset) map[string]*nftables.Chain {
	all := make(map[string]*nftables.Chain, len(rs.Chains))
	for name, c := range rs.Chains {
		all[name] = &nftables.Chain{Table: table, Name: n.chain(c)}
	}
	inHook := map[ruleset.Hook]int{}
	for _, c := range baseChains(rs) {
		priority := *nftables.ChainPriorityFilter + nftables.ChainPriority(inHook[c.Hook])
		inHook[c.Hook]++
		all[c.Name] = netfilter.NewChain(table, c.Name, nftables.ChainTypeFilter, hooks[c.Hook], priority).Chain
	}
	return all
}

// baseChains lists the chains with a hook by their names.
func baseChains(rs *ruleset.Ruleset) []*ruleset.Chain {
	var all []*ruleset.Chain
	for c := range maps.Values(rs.Chains) {
		if c.Hook != ruleset.NoHook {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b *ruleset.Chain) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// rulesOf returns the rules of a chain as the kernel has them.
func (n names) rulesOf(chain *nftables.Chain, c *ruleset.Chain) []*nftables.Rule {
	out := netfilter.Chain{Chain: chain, Rules: make([]*nftables.Rule, 0, len(c.Rules)+len(families))}
	cut := func() {
		for _, f := range families {
			out.Add(rulesVersion, "connections that were ended", f.is(), f.connection(), lookup(f.cut), verdict(expr.VerdictDrop, ""))
		}
	}
	done := c.Hook == ruleset.NoHook
	for i := range c.Rules {
		r := &c.Rules[i]
		if !done && !r.Established {
			cut()
			done = true
		}
		out.Add(rulesVersion, comment(r), n.conditions(c.Hook, r), n.action(r))
	}
	if !done {
		cut()
	}
	return out.Rules
}

// maxComment is how much of a comment nft shows, without what netfilter.Chain adds.
const maxComment = 127 - len("berth : ") - len(rulesVersion)

// comment says what a rule is for. Long names of policies are cut off.
func comment(r *ruleset.Rule) string {
	var text string
	switch {
	case r.Origin != nil:
		text = r.Origin.String()
	case r.Established:
		text = "connections that may go on"
	case r.NeighborDiscovery:
		text = "neighbour discovery"
	case r.Pair != "":
		text = "a pod that calls itself"
	case r.SourceMap != "":
		text = "what may leave the source"
	case r.DestinationMap != "":
		text = "what may come to the destination"
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
	return text[:min(len(text), maxComment)]
}

// conditions are what a packet must have.
func (n names) conditions(hook ruleset.Hook, r *ruleset.Rule) []expr.Any {
	var all []expr.Any
	add := func(some ...expr.Any) { all = append(all, some...) }
	f := familyOf(r.Family)
	if r.Family != ruleset.AnyFamily {
		add(f.is()...)
	}
	if r.Established {
		add(&expr.Ct{Key: expr.CtKeySTATE, Register: reg0},
			&expr.Bitwise{SourceRegister: reg0, DestRegister: reg0, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED), Xor: make([]byte, 4)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: reg0, Data: make([]byte, 4)})
	}
	if r.InInterface != "" {
		add(&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg0})
		add(lookup(n.of(r.InInterface))...)
	}
	if r.OutInterface != "" {
		add(&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg0})
		add(lookup(n.of(r.OutInterface))...)
	}
	if r.Loopback {
		key := expr.MetaKeyIIFNAME
		if hook == ruleset.Output {
			key = expr.MetaKeyOIFNAME
		}
		add(&expr.Meta{Key: key, Register: reg0}, &expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: interfaceName(ruleset.Loopback)})
	}
	if r.LocalSource {
		add(&expr.Fib{Register: reg0, FlagSADDR: true, ResultADDRTYPE: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)})
	}
	if r.Pair != "" {
		// The two addresses lie side by side in both headers.
		add(network(f.saddr, 2*f.length))
		add(lookup(n.of(r.Pair))...)
	}
	if r.Source != "" {
		add(network(f.saddr, f.length))
		add(lookup(n.of(r.Source))...)
	}
	if r.Destination != "" {
		add(network(f.daddr, f.length))
		add(lookup(n.of(r.Destination))...)
	}
	if r.Endpoint != "" {
		add(network(f.daddr, f.length), protocol(reg0+f.words()), port(2, reg0+f.words()+1))
		add(lookup(n.of(r.Endpoint))...)
	}
	if r.Protocol != ruleset.AnyProtocol {
		add(protocol(reg0), equal(byte(r.Protocol)))
	}
	switch {
	case len(r.Ports) > 1:
		add(port(2, reg0))
		add(lookup(n.of(ports(r.Ports).name))...)
	case len(r.Ports) == 1 && r.Ports[0].First == r.Ports[0].Last:
		add(port(2, reg0), equal(binary.BigEndian.AppendUint16(nil, r.Ports[0].First)...))
	case len(r.Ports) == 1:
		add(port(2, reg0), &expr.Range{
			Op: expr.CmpOpEq, Register: reg0,
			FromData: binary.BigEndian.AppendUint16(nil, r.Ports[0].First), ToData: binary.BigEndian.AppendUint16(nil, r.Ports[0].Last),
		})
	}
	if r.NeighborDiscovery {
		// Of a link: routers make 254 of 255 before the hook forward, and MLD has 1.
		add(protocol(reg0), equal(unix.IPPROTO_ICMPV6), network(hopLimitOffset, 1), &expr.Range{Op: expr.CmpOpNeq, Register: reg0, FromData: []byte{2}, ToData: []byte{254}})
		add(&expr.Payload{DestRegister: reg0, Base: expr.PayloadBaseTransportHeader, Len: 1})
		add(lookup(n.of(neighborDiscovery.name))...)
	}
	return all
}

// action is what becomes of a packet that has the conditions.
func (n names) action(r *ruleset.Rule) []expr.Any {
	var all []expr.Any
	if r.Counter != "" {
		all = append(all, &expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: r.Counter})
	}
	f := familyOf(r.Family)
	switch {
	case r.SourceMap != "":
		return append(all, network(f.saddr, f.length), verdictOf(n.of(r.SourceMap)))
	case r.DestinationMap != "":
		return append(all, network(f.daddr, f.length), verdictOf(n.of(r.DestinationMap)))
	}
	kinds := map[ruleset.Verdict]expr.VerdictKind{
		ruleset.Accept: expr.VerdictAccept, ruleset.Drop: expr.VerdictDrop, ruleset.Return: expr.VerdictReturn,
		ruleset.Jump: expr.VerdictJump, ruleset.Goto: expr.VerdictGoto,
	}
	if kind, ok := kinds[r.Verdict]; ok {
		all = append(all, verdict(kind, n.of(r.Target))...)
	}
	return all
}

func (f family) is() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: regLast4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regLast4, Data: []byte{f.protocol}},
	}
}

// connection loads the key of a set of ended connections.
func (f family) connection() []expr.Any {
	next := reg0 + 2*f.words()
	return []expr.Any{network(f.saddr, 2*f.length), protocol(next), port(0, next+1), port(2, next+2)}
}

// network loads a part of the network header into the first registers.
func network(offset, length uint32) expr.Any {
	return &expr.Payload{DestRegister: reg0, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}
}

func protocol(register uint32) expr.Any {
	return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}
}

// port loads the port of the source, at offset 0, or of the destination, at 2.
func port(offset, register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2}
}

func equal(data ...byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: data}
}

// lookup looks for the first registers in a set.
func lookup(set string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: reg0, SetName: set}}
}

// verdictOf takes the verdict that a map has for the first registers.
func verdictOf(name string) expr.Any {
	return &expr.Lookup{SourceRegister: reg0, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: name}
}

func verdict(kind expr.VerdictKind, chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: kind, Chain: chain}}
}
