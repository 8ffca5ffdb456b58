// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

const (
	// rulesVersion is in the comment of every rule. Whoever changes a rule changes it,
	// so that agents replace the table of an older one.
	rulesVersion = "1"
	// beforeSourceNAT comes before the source NAT of iptables, kube-proxy and others.
	beforeSourceNAT = 90
	// beforeRouting comes after the chains of other programs, so that a mark that they
	// give a packet does not replace ours.
	beforeRouting = 290
)

// Mark and ArrivalMark are values of two bits of the firewall mark (skb->mark), those of
// MarkMask, of packets from pods and of packets that arrive for pods, while the node routes
// them. Routing rules have them: whoever changes them must take over the rules of earlier
// versions. No value or mask of the programs that we know sets bit 0x1000 alone
// or with 0x10:
//
//	wg-quick            51820 = 0xca6c, and upward for further tunnels
//	kube-proxy          0x4000, 0x8000
//	flannel             0x4000
//	portmap             0x2000
//	AWS CNI             0x80
//	Cilium              0x0200 to 0x0f00, and identities from 0x10000; with IPsec keys in 0xf000,
//	                    whose packets its own rules route before ours
//	Calico              0xffff0000
//	Tailscale           0xff0000
//	Istio               0x539, 0x111
//	OVN-Kubernetes      0x3f0, 0x1745ec
//	Docker              as given, 0xd0c in its examples
//	small numbers       below 0x1000: many
const (
	Mark        = 0x1000
	ArrivalMark = 0x1010
	MarkMask    = 0x1010
)

// destinationNAT is IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h.
const destinationNAT = 1 << 5

// family has the sets of one address family and where its packets have what.
type family struct {
	protocol                   byte
	saddr, daddr, length       uint32
	sources, floating, hairpin *nftables.Set
}

// table is the content that Berth's table has in the kernel, without elements.
type table struct {
	table *nftables.Table
	// links lead to pods, and past are those of them whose pods talk to others past the node.
	links, past *nftables.Set
	// arp is a table beside it, for ARP requests.
	arp *nftables.Table
	// arrivals and asked have an uplink and an address to which packets come by it; they
	// are IPv4's, because IPv6 has no reverse path filter in the kernel.
	arrivals, asked *nftables.Set
	families        []*family
	chains          []Chain
}

func newTable() *table {
	t := &table{table: &nftables.Table{Family: nftables.TableFamilyINet, Name: TableName}, arp: &nftables.Table{Family: nftables.TableFamilyARP, Name: TableName}}
	arrival := nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIPAddr)
	t.links, t.past = t.set("links", nftables.TypeIFName), t.set("past", nftables.TypeIFName)
	t.arrivals, t.asked = t.set("arrivals", arrival), t.set("asked", arrival)
	t.asked.Table = t.arp
	for _, f := range []*family{
		{protocol: unix.NFPROTO_IPV4, saddr: 12, daddr: 16, length: 4},
		{protocol: unix.NFPROTO_IPV6, saddr: 8, daddr: 24, length: 16},
	} {
		addr, suffix := nftables.TypeIPAddr, "4"
		if f.protocol == unix.NFPROTO_IPV6 {
			addr, suffix = nftables.TypeIP6Addr, "6"
		}
		f.sources = t.set("sources"+suffix, nftables.MustConcatSetType(nftables.TypeIFName, addr))
		f.floating = t.set("floating"+suffix, addr)
		f.hairpin = t.set("hairpin"+suffix, nftables.MustConcatSetType(addr, addr))
		t.families = append(t.families, f)
	}
	sources := NewChain(t.table, "sources", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, *nftables.ChainPriorityRaw)
	t.addSourceRules(&sources)
	keep := NewChain(t.table, "keep_source", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, beforeSourceNAT)
	t.addKeepRules(&keep)
	mark := NewChain(t.table, "mark", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, beforeRouting)
	t.addMarkRules(&mark)
	secluded := NewChain(t.table, "secluded", nftables.ChainTypeFilter, nftables.ChainHookInput, *nftables.ChainPriorityFilter)
	t.addSecludedRules(&secluded)
	// NF_ARP_IN; it has the number of another hook of other families.
	asked := NewChain(t.arp, "mark", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, *nftables.ChainPriorityFilter)
	asked.Add(rulesVersion, "asks for a pod", t.arrived(t.asked, arpTarget), setMark(ArrivalMark))
	t.chains = []Chain{sources, mark, keep, secluded, asked}
	return t
}

func (t *table) set(name string, key nftables.SetDatatype) *nftables.Set {
	return &nftables.Set{Table: t.table, Name: name, KeyType: key, Concatenation: len(nftables.ConcatSetTypeElements(key)) > 1}
}

func (t *table) sets() []*nftables.Set {
	all := []*nftables.Set{t.links, t.past, t.arrivals, t.asked}
	for _, f := range t.families {
		all = append(all, f.sources, f.floating, f.hairpin)
	}
	return all
}

// family returns that of an address.
func (t *table) family(addr netip.Addr) *family {
	if addr.Is4() {
		return t.families[0]
	}
	return t.families[1]
}

func (t *table) addSourceRules(c *Chain) {
	const routerAdvertisement = 134 // RFC 4861, section 4.2
	v6 := t.families[1]
	c.Add(rulesVersion, "no pod is a router", t.fromPod(), v6.is(), l4(unix.IPPROTO_ICMPV6),
		payload(expr.PayloadBaseTransportHeader, 0, 1, 1), equal(routerAdvertisement), drop())
	c.Add(rulesVersion, "link-local packets are not forwarded", t.fromPod(), v6.is(), payload(expr.PayloadBaseNetworkHeader, v6.saddr, 2, 1),
		[]expr.Any{&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 2, Mask: []byte{0xff, 0xc0}, Xor: []byte{0, 0}}}, equal(0xfe, 0x80), accept())
	for _, f := range t.families {
		c.Add(rulesVersion, "a pod sends from its own addresses", t.fromPod(), f.is(),
			[]expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}}, payload(expr.PayloadBaseNetworkHeader, f.saddr, f.length, 2),
			[]expr.Any{&expr.Lookup{SourceRegister: 1, SetName: f.sources.Name, Invert: true}}, drop())
	}
}

// addSecludedRules close the node to the networks of links that Berth made: it has no address
// there, and would answer for those of its other links. What it hears for its pods is
// neighbour discovery and, with ipvlan links in mode l3s, their packets.
func (t *table) addSecludedRules(c *Chain) {
	const listenerQuery, solicitation, advertisement = 130, 135, 136 // RFC 2710, RFC 4861
	on := func(op expr.CmpOp, prefix string) []expr.Any {
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: []byte(prefix)}}
	}
	c.Add(rulesVersion, "other links", on(expr.CmpOpNeq, LinkPrefix), accept())
	for _, prefix := range []string{VLANPrefix, BridgePrefix} {
		for _, kind := range []byte{listenerQuery, solicitation, advertisement} {
			c.Add(rulesVersion, fmt.Sprintf("ICMPv6 type %d", kind), on(expr.CmpOpEq, prefix), t.families[1].is(), l4(unix.IPPROTO_ICMPV6),
				payload(expr.PayloadBaseTransportHeader, 0, 1, 1), equal(kind), accept())
		}
		for _, f := range t.families {
			c.Add(rulesVersion, "to a pod", on(expr.CmpOpEq, prefix), f.is(), payload(expr.PayloadBaseNetworkHeader, f.daddr, f.length, 1),
				[]expr.Any{&expr.Lookup{SourceRegister: 1, SetName: f.floating.Name}}, accept())
		}
		c.Add(rulesVersion, "the node has no address there", on(expr.CmpOpEq, prefix), drop())
	}
}

func (t *table) addMarkRules(c *Chain) {
	const reply = 1 // IP_CT_DIR_REPLY
	v4 := t.families[0]
	c.Add(rulesVersion, "replies that get the node's address back", t.fromPod(),
		[]expr.Any{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1}}, equal(reply),
		translated(), accept())
	c.Add(rulesVersion, "from a pod", t.fromPod(), setMark(Mark))
	c.Add(rulesVersion, "to a pod", v4.is(), t.arrived(t.arrivals, v4.daddr), setMark(ArrivalMark))
}

// translated matches packets of connections whose destination the node translates.
func translated() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: bitsOf(destinationNAT), Xor: bitsOf(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: bitsOf(0)},
	}
}

// arpTarget is the offset of the target address in an ARP packet of Ethernet and IPv4.
const arpTarget = 24

// arrived matches a packet whose uplink and address, at an offset of the network header,
// are in the set.
func (t *table) arrived(set *nftables.Set, address uint32) []expr.Any {
	return append([]expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}},
		&expr.Payload{DestRegister: 2, Base: expr.PayloadBaseNetworkHeader, Offset: address, Len: 4},
		&expr.Lookup{SourceRegister: 1, SetName: set.Name})
}

// setMark sets our bits of the firewall mark and leaves the others.
func setMark(value uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: bitsOf(^uint32(MarkMask)), Xor: bitsOf(value)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1},
	}
}

func bitsOf(m uint32) []byte { return binaryutil.NativeEndian.PutUint32(m) }

func (t *table) addKeepRules(c *Chain) {
	for _, f := range t.families {
		// The two addresses lie side by side in both headers.
		c.Add(rulesVersion, "a pod that calls itself", f.is(), payload(expr.PayloadBaseNetworkHeader, f.saddr, 2*f.length, 1),
			[]expr.Any{&expr.Lookup{SourceRegister: 1, SetName: f.hairpin.Name}}, accept())
		for _, key := range []expr.MetaKey{expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME} {
			c.Add(rulesVersion, "answers must pass the node, which translates them back", f.is(), translated(),
				[]expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Lookup{SourceRegister: 1, SetName: t.past.Name}, &expr.Masq{}})
		}
		c.Add(rulesVersion, "a floating IP stays the source", f.is(), payload(expr.PayloadBaseNetworkHeader, f.saddr, f.length, 1),
			[]expr.Any{
				&expr.Lookup{SourceRegister: 1, SetName: f.floating.Name},
				&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(f.protocol), RegAddrMin: 1, RegAddrMax: 1},
			})
	}
}

func (f *family) is() []expr.Any {
	return append([]expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}}, equal(f.protocol)...)
}

func (t *table) fromPod() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, &expr.Lookup{SourceRegister: 1, SetName: t.links.Name}}
}

func l4(protocol byte) []expr.Any {
	return append([]expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}}, equal(protocol)...)
}

func payload(base expr.PayloadBase, offset, length, register uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: register, Base: base, Offset: offset, Len: length}}
}

// equal compares register 1.
func equal(data ...byte) []expr.Any {
	return []expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data}}
}

func accept() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}} }
func drop() []expr.Any   { return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}} }

// element is one of a set.
type element struct {
	set *nftables.Set
	key []byte
}

// elements lists what the sets have for a source.
func (t *table) elements(s Source) []element {
	f := t.family(s.Address)
	all := []element{{t.links, linkKey(s.Link)}, {f.sources, sourceKey(s)}, {f.floating, addressKey(s)}, {f.hairpin, hairpinKey(s)}}
	if s.Past {
		all = append(all, element{t.past, linkKey(s.Link)})
	}
	if s.Uplink != "" && s.Address.Is4() {
		arrival := sourceKey(Source{Link: s.Uplink, Address: s.Address})
		all = append(all, element{t.asked, arrival})
		if !s.Past {
			all = append(all, element{t.arrivals, arrival})
		}
	}
	return all
}

// nameSize is the size of an interface's name in the kernel, which pads it with zeros.
const nameSize = unix.IFNAMSIZ

func linkKey(link string) []byte {
	name := make([]byte, nameSize)
	copy(name, link)
	return name
}

func sourceKey(s Source) []byte { return append(linkKey(s.Link), s.Address.AsSlice()...) }

func addressKey(s Source) []byte { return s.Address.AsSlice() }

func hairpinKey(s Source) []byte { return append(s.Address.AsSlice(), s.Address.AsSlice()...) }

func parseSource(key []byte) (Source, bool) {
	if len(key) < nameSize {
		return Source{}, false
	}
	addr, ok := netip.AddrFromSlice(key[nameSize:])
	return Source{Link: unix.ByteSliceToString(key[:nameSize]), Address: addr}, ok
}
