// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/ipam/iprange"
)

// version is in the comment of every rule. Whoever changes a rule changes it, so that
// agents replace the table of an older one.
const version = 1

// family has the sets of one address family and where its packets have what.
type family struct {
	protocol             byte
	saddr, daddr, length uint32
	multicast            netip.Prefix
	subnets, inside      *nftables.Set
}

type chain struct {
	chain *nftables.Chain
	rules []*nftables.Rule
}

// content is what the table has in the kernel.
type content struct {
	table    *nftables.Table
	bridge   string
	families []*family
	chains   []chain
	// elements are those of each set.
	elements map[*nftables.Set][]nftables.SetElement
}

func newContent(spec Spec) *content {
	c := &content{table: &nftables.Table{Family: nftables.TableFamilyINet, Name: TableName}, bridge: spec.Bridge, elements: map[*nftables.Set][]nftables.SetElement{}}
	for _, f := range []*family{
		{protocol: unix.NFPROTO_IPV4, saddr: 12, daddr: 16, length: 4, multicast: netip.MustParsePrefix("224.0.0.0/4")},
		{protocol: unix.NFPROTO_IPV6, saddr: 8, daddr: 24, length: 16, multicast: netip.MustParsePrefix("ff00::/8")},
	} {
		is4 := f.protocol == unix.NFPROTO_IPV4
		addr, suffix := nftables.TypeIPAddr, "4"
		if !is4 {
			addr, suffix = nftables.TypeIP6Addr, "6"
		}
		f.subnets = &nftables.Set{Table: c.table, Name: "subnets" + suffix, KeyType: addr, Interval: true}
		f.inside = &nftables.Set{Table: c.table, Name: "inside" + suffix, KeyType: addr, Interval: true}
		var subnets []iprange.Range
		for _, p := range spec.Subnets {
			subnets = append(subnets, iprange.OfPrefix(p.Masked()))
		}
		c.elements[f.subnets] = intervals(subnets, is4)
		c.elements[f.inside] = intervals(spec.Inside, is4)
		c.families = append(c.families, f)
	}
	sources := c.newChain("sources", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	sources.rules = c.sourceRules(sources.chain)
	c.chains = append(c.chains, sources)
	if spec.Masquerade {
		masquerade := c.newChain("masquerade", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
		masquerade.rules = c.masqueradeRules(masquerade.chain)
		c.chains = append(c.chains, masquerade)
	}
	return c
}

// intervals returns the elements of a set that has the ranges of one family: for each
// range its first address, and as an end the address after its last.
func intervals(ranges []iprange.Range, is4 bool) []nftables.SetElement {
	var of []iprange.Range
	for _, r := range ranges {
		if r.First.Is4() == is4 {
			of = append(of, r)
		}
	}
	var elements []nftables.SetElement
	for _, r := range iprange.SetOf(of...) {
		elements = append(elements, nftables.SetElement{Key: r.First.AsSlice()})
		if end := r.Last.Next(); end.IsValid() {
			elements = append(elements, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return elements
}

func (c *content) newChain(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority) chain {
	accept := nftables.ChainPolicyAccept
	return chain{chain: &nftables.Chain{Table: c.table, Name: name, Type: kind, Hooknum: hook, Priority: priority, Policy: &accept}}
}

// rule makes a rule whose comment says what it is for, and by which isWhole knows it.
func (c *content) rule(in *nftables.Chain, comment string, exprs ...[]expr.Any) *nftables.Rule {
	r := &nftables.Rule{Table: c.table, Chain: in, Exprs: slices.Concat(exprs...)}
	r.UserData = userdata.AppendString(nil, userdata.TypeComment, fmt.Sprintf("berth %d, %s: %s", version, c.bridge, comment))
	return r
}

func (c *content) sourceRules(in *nftables.Chain) []*nftables.Rule {
	const routerAdvertisement = 134 // RFC 4861, section 4.2
	v6 := c.families[1]
	fromBridge := c.link(expr.MetaKeyIIFNAME, expr.CmpOpEq)
	rules := []*nftables.Rule{
		c.rule(in, "no pod is a router", fromBridge, v6.is(),
			[]expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}}, equal(unix.IPPROTO_ICMPV6),
			payload(expr.PayloadBaseTransportHeader, 0, 1), equal(routerAdvertisement), verdict(expr.VerdictDrop)),
		c.rule(in, "link-local packets are not forwarded", fromBridge, v6.is(), payload(expr.PayloadBaseNetworkHeader, v6.saddr, 2),
			[]expr.Any{&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 2, Mask: []byte{0xff, 0xc0}, Xor: []byte{0, 0}}},
			equal(0xfe, 0x80), verdict(expr.VerdictAccept)),
		c.rule(in, "a pod looks for duplicates of its address", fromBridge, v6.is(), payload(expr.PayloadBaseNetworkHeader, v6.saddr, v6.length),
			equal(make([]byte, v6.length)...), verdict(expr.VerdictAccept)),
	}
	for _, f := range c.families {
		rules = append(rules, c.rule(in, "a pod sends from the node's pod CIDRs", fromBridge, f.is(),
			payload(expr.PayloadBaseNetworkHeader, f.saddr, f.length), lookup(f.subnets, true), verdict(expr.VerdictDrop)))
	}
	return rules
}

func (c *content) masqueradeRules(in *nftables.Chain) []*nftables.Rule {
	var rules []*nftables.Rule
	for _, f := range c.families {
		prefix := f.multicast.Addr().AsSlice()[:1]
		mask := byte(0xff << (8 - f.multicast.Bits()))
		rules = append(rules, c.rule(in, "the network outside does not know the pods of this network", f.is(),
			payload(expr.PayloadBaseNetworkHeader, f.saddr, f.length), lookup(f.subnets, false),
			c.link(expr.MetaKeyOIFNAME, expr.CmpOpNeq),
			payload(expr.PayloadBaseNetworkHeader, f.daddr, f.length), lookup(f.inside, true),
			payload(expr.PayloadBaseNetworkHeader, f.daddr, 1),
			[]expr.Any{
				&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{mask}, Xor: []byte{0}},
				&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: prefix},
				// Two pods' connections must not get one port.
				&expr.Masq{Random: true, FullyRandom: true},
			}))
	}
	return rules
}

func (c *content) link(key expr.MetaKey, op expr.CmpOp) []expr.Any {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, c.bridge)
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: name}}
}

func (f *family) is() []expr.Any {
	return append([]expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}}, equal(f.protocol)...)
}

func payload(base expr.PayloadBase, offset, length uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: base, Offset: offset, Len: length}}
}

func lookup(set *nftables.Set, invert bool) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: 1, SetName: set.Name, Invert: invert}}
}

// equal compares register 1.
func equal(data ...byte) []expr.Any {
	return []expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data}}
}

func verdict(kind expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: kind}} }

// sameElements returns whether two lists have the same boundaries, in any order.
func sameElements(a, b []nftables.SetElement) bool {
	return slices.EqualFunc(sorted(a), sorted(b), func(a, b nftables.SetElement) bool {
		return a.IntervalEnd == b.IntervalEnd && bytes.Equal(a.Key, b.Key)
	})
}

func sorted(elements []nftables.SetElement) []nftables.SetElement {
	// The kernel begins a set of intervals with an end at zero.
	all := slices.DeleteFunc(slices.Clone(elements), func(e nftables.SetElement) bool {
		return e.IntervalEnd && !slices.ContainsFunc(e.Key, func(b byte) bool { return b != 0 })
	})
	slices.SortFunc(all, func(a, b nftables.SetElement) int {
		if c := bytes.Compare(a.Key, b.Key); c != 0 {
			return c
		}
		if a.IntervalEnd == b.IntervalEnd {
			return 0
		}
		if a.IntervalEnd {
			return -1
		}
		return 1
	})
	return all
}
