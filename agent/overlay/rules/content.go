// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/ipam/iprange"
)

// rulesVersion is in the comment of every rule. Whoever changes a rule changes it, so that
// agents replace the table of an older one.
const rulesVersion = "1"

// family has the sets of one address family and where its packets have what.
type family struct {
	protocol             byte
	saddr, daddr, length uint32
	multicast            netip.Prefix
	subnets, inside      *nftables.Set
}

// content is what the table has in the kernel.
type content struct {
	table    *nftables.Table
	bridge   string
	families []*family
	chains   []netfilter.Chain
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
	sources := netfilter.NewChain(c.table, "sources", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, *nftables.ChainPriorityRaw)
	c.addSourceRules(&sources)
	c.chains = append(c.chains, sources)
	if spec.Masquerade {
		masquerade := netfilter.NewChain(c.table, "masquerade", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource)
		c.addMasqueradeRules(&masquerade)
		c.chains = append(c.chains, masquerade)
	}
	return c
}

func (c *content) sets() []*nftables.Set {
	var all []*nftables.Set
	for _, f := range c.families {
		all = append(all, f.subnets, f.inside)
	}
	return all
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

// version is that of the rules for the bridge.
func (c *content) version() string { return rulesVersion + ", " + c.bridge }

func (c *content) addSourceRules(in *netfilter.Chain) {
	const routerAdvertisement = 134 // RFC 4861, section 4.2
	v6 := c.families[1]
	fromBridge := c.link(expr.MetaKeyIIFNAME, expr.CmpOpEq)
	in.Add(c.version(), "no pod is a router", fromBridge, v6.is(),
		[]expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}}, equal(unix.IPPROTO_ICMPV6),
		payload(expr.PayloadBaseTransportHeader, 0, 1), equal(routerAdvertisement), verdict(expr.VerdictDrop))
	in.Add(c.version(), "link-local packets are not forwarded", fromBridge, v6.is(), payload(expr.PayloadBaseNetworkHeader, v6.saddr, 2),
		[]expr.Any{&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 2, Mask: []byte{0xff, 0xc0}, Xor: []byte{0, 0}}},
		equal(0xfe, 0x80), verdict(expr.VerdictAccept))
	in.Add(c.version(), "a pod looks for duplicates of its address", fromBridge, v6.is(), payload(expr.PayloadBaseNetworkHeader, v6.saddr, v6.length),
		equal(make([]byte, v6.length)...), verdict(expr.VerdictAccept))
	for _, f := range c.families {
		in.Add(c.version(), "a pod sends from the node's pod CIDRs", fromBridge, f.is(),
			payload(expr.PayloadBaseNetworkHeader, f.saddr, f.length), lookup(f.subnets, true), verdict(expr.VerdictDrop))
	}
}

func (c *content) addMasqueradeRules(in *netfilter.Chain) {
	for _, f := range c.families {
		prefix := f.multicast.Addr().AsSlice()[:1]
		mask := byte(0xff << (8 - f.multicast.Bits()))
		in.Add(c.version(), "the network outside does not know the pods of this network", f.is(),
			payload(expr.PayloadBaseNetworkHeader, f.saddr, f.length), lookup(f.subnets, false),
			c.link(expr.MetaKeyOIFNAME, expr.CmpOpNeq),
			payload(expr.PayloadBaseNetworkHeader, f.daddr, f.length), lookup(f.inside, true),
			payload(expr.PayloadBaseNetworkHeader, f.daddr, 1),
			[]expr.Any{
				&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{mask}, Xor: []byte{0}},
				&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: prefix},
				// Two pods' connections must not get one port.
				&expr.Masq{Random: true, FullyRandom: true},
			})
	}
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
