// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Statement is a condition or an action of a rule.
type Statement struct{ encoded []byte }

// Then returns the statement followed by others.
func (s Statement) Then(others ...Statement) Statement {
	all := Statement{slices.Clone(s.encoded)}
	for _, o := range others {
		all.encoded = append(all.encoded, o.encoded...)
	}
	return all
}

// Field is a part of a packet, or of the kernel's data about a packet.
type Field struct {
	load func(register uint32) []byte
	size int
	// mask is nil if all bits count.
	mask []byte
}

// register returns the number of a register of 4 bytes, counted from 0. The first register of 4
// bytes in a register of 16 bytes has the number of the latter, as in the kernel's lists.
func register(word int) uint32 {
	if word%4 == 0 {
		return unix.NFT_REG_1 + uint32(word/4)
	}
	return unix.NFT_REG32_00 + uint32(word)
}

func (f Field) words() int { return (f.size + 3) / 4 }

func expression(name string, attributes ...[]byte) []byte {
	return nested(unix.NFTA_LIST_ELEM, text(unix.NFTA_EXPR_NAME, name), nested(unix.NFTA_EXPR_DATA, attributes...))
}

func statement(expressions ...[]byte) Statement { return Statement{slices.Concat(expressions...)} }

func meta(key uint32, size int) Field {
	return Field{size: size, load: func(register uint32) []byte {
		return expression("meta", number(unix.NFTA_META_KEY, key), number(unix.NFTA_META_DREG, register))
	}}
}

func payload(base, offset uint32, size int) Field {
	return Field{size: size, load: func(register uint32) []byte {
		return expression("payload", number(unix.NFTA_PAYLOAD_DREG, register), number(unix.NFTA_PAYLOAD_BASE, base),
			number(unix.NFTA_PAYLOAD_OFFSET, offset), number(unix.NFTA_PAYLOAD_LEN, uint32(size)))
	}}
}

// conntrack is a field of the packet's connection, of one direction if given.
func conntrack(key uint32, size int, direction ...byte) Field {
	return Field{size: size, load: func(register uint32) []byte {
		attributes := [][]byte{number(unix.NFTA_CT_KEY, key), number(unix.NFTA_CT_DREG, register)}
		if direction != nil {
			attributes = append(attributes, attribute(unix.NFTA_CT_DIRECTION, direction))
		}
		return expression("ct", attributes...)
	}}
}

// fib is the result of a look-up in the node's routing tables.
func fib(result, flags uint32) Field {
	return Field{size: 4, load: func(register uint32) []byte {
		return expression("fib", number(unix.NFTA_FIB_DREG, register), number(unix.NFTA_FIB_RESULT, result), number(unix.NFTA_FIB_FLAGS, flags))
	}}
}

// addressType is the type of an address of the packet, as a routing table of the node has it.
func addressType(flags uint32) Field { return fib(unix.NFT_FIB_RESULT_ADDRTYPE, flags) }

// wayBack is the index of the packet's link if the node routes packets to the source by this link,
// and otherwise 0.
var wayBack = fib(unix.NFT_FIB_RESULT_OIF, unix.NFTA_FIB_F_SADDR|unix.NFTA_FIB_F_IIF)

// WayOut is the index of the link by which the node would route the packet, with its firewall mark,
// to its destination, and 0 without a route. The look-up is like for packets of the node itself
// (iif lo), and Linux allows it before the packet is routed.
var WayOut = fib(unix.NFT_FIB_RESULT_OIF, unix.NFTA_FIB_F_DADDR|unix.NFTA_FIB_F_MARK)

func (f Field) IsIndex(link int) Statement {
	return f.Is(binary.NativeEndian.AppendUint32(nil, uint32(link))...) //nolint:gosec // the kernel's indexes are positive
}

func (f Field) IsNotIndex(link int) Statement {
	return f.IsNot(binary.NativeEndian.AppendUint32(nil, uint32(link))...) //nolint:gosec // the kernel's indexes are positive
}

// The fields that the kernel knows of a packet.
var (
	IIFName   = meta(unix.NFT_META_IIFNAME, unix.IFNAMSIZ)
	OIFName   = meta(unix.NFT_META_OIFNAME, unix.IFNAMSIZ)
	IIFIndex  = meta(unix.NFT_META_IIF, 4)
	iifType   = meta(unix.NFT_META_IIFTYPE, 2)
	EtherType = meta(unix.NFT_META_PROTOCOL, 2)
	L4Proto   = meta(unix.NFT_META_L4PROTO, 1)
	nfProto   = meta(unix.NFT_META_NFPROTO, 1)

	CTState     = conntrack(unix.NFT_CT_STATE, 4)
	ctMark      = conntrack(unix.NFT_CT_MARK, 4)
	CTStatus    = conntrack(unix.NFT_CT_STATUS, 4)
	CTDirection = conntrack(unix.NFT_CT_DIRECTION, 1)
	// CTOriginalDPort is the destination port before it was translated.
	CTOriginalDPort = conntrack(unix.NFT_CT_PROTO_DST, 2, 0)
)

// Link, Network and Transport are parts of the packet's headers.
func Link(offset uint32, size int) Field { return payload(unix.NFT_PAYLOAD_LL_HEADER, offset, size) }
func Network(offset uint32, size int) Field {
	return payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, size)
}
func Transport(offset uint32, size int) Field {
	return payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, offset, size)
}

var (
	EtherSAddr  = Link(6, 6)
	DPort       = Transport(2, 2)
	MessageType = Transport(0, 1) // of ICMP and ICMPv6
)

// IP is nft's ip or ip6.
type IP struct {
	// Suffix ends the names of sets of the family.
	Suffix string
	Addr   Type
	// Is matches packets of the family, in tables that see both.
	Is           Statement
	SAddr, DAddr Field
	// Addresses are the adjacent source and destination.
	Addresses Field
	family    uint32
}

var (
	V4  = &IP{Suffix: "4", Addr: IPv4Addr, Is: nfProto.Is(unix.NFPROTO_IPV4), SAddr: Network(12, 4), DAddr: Network(16, 4), Addresses: Network(12, 8), family: unix.NFPROTO_IPV4}
	V6  = &IP{Suffix: "6", Addr: IPv6Addr, Is: nfProto.Is(unix.NFPROTO_IPV6), SAddr: Network(8, 16), DAddr: Network(24, 16), Addresses: Network(8, 32), family: unix.NFPROTO_IPV6}
	IPs = []*IP{V4, V6}
)

func IPOf(a netip.Addr) *IP {
	if a.Is4() {
		return V4
	}
	return V6
}

// CTReplyDAddr is the destination address of the replies of the packet's connection.
func (ip *IP) CTReplyDAddr() Field {
	key := uint32(unix.NFT_CT_DST_IP)
	if ip == V6 {
		key = unix.NFT_CT_DST_IP6
	}
	return conntrack(key, ip.Addr.Size(), 1)
}

// into loads the masked bits of the field into the registers from a word on.
func (f Field) into(word int) []byte {
	if f.mask == nil {
		return f.load(register(word))
	}
	return slices.Concat(f.load(register(word)), bitwise(word, f.mask, make([]byte, len(f.mask))))
}

// bitwise computes (register & mask) ^ xor.
func bitwise(word int, mask, xor []byte) []byte {
	return expression("bitwise", number(unix.NFTA_BITWISE_SREG, register(word)), number(unix.NFTA_BITWISE_DREG, register(word)),
		number(unix.NFTA_BITWISE_LEN, uint32(len(mask))), value(unix.NFTA_BITWISE_MASK, mask), value(unix.NFTA_BITWISE_XOR, xor))
}

func (f Field) compare(op uint32, to []byte) Statement {
	return statement(f.into(0), expression("cmp", number(unix.NFTA_CMP_SREG, register(0)), number(unix.NFTA_CMP_OP, op), value(unix.NFTA_CMP_DATA, to)))
}

// Is matches if the field is the value, or begins with a shorter value.
func (f Field) Is(value ...byte) Statement { return f.compare(unix.NFT_CMP_EQ, value) }

func (f Field) IsNot(value ...byte) Statement { return f.compare(unix.NFT_CMP_NEQ, value) }

// And returns the field with only the bits of a mask.
func (f Field) And(mask ...byte) Field {
	f.mask, f.size = mask, len(mask)
	return f
}

// hasAny matches if any of the bits is set in a number of the kernel.
func (f Field) hasAny(bits uint32) Statement {
	return f.And(binary.NativeEndian.AppendUint32(nil, bits)...).IsNot(0, 0, 0, 0)
}

// Between matches if the field is from first to last.
func (f Field) Between(first, last []byte) Statement {
	return statement(f.into(0), expression("range", number(unix.NFTA_RANGE_SREG, register(0)), number(unix.NFTA_RANGE_OP, unix.NFT_RANGE_EQ),
		value(unix.NFTA_RANGE_FROM_DATA, first), value(unix.NFTA_RANGE_TO_DATA, last)))
}

// IsLink matches if the field is the name of an interface.
func (f Field) IsLink(name string) Statement { return f.Is(AppendName(nil, name)...) }

func (f Field) IsNotLink(name string) Statement { return f.IsNot(AppendName(nil, name)...) }

var (
	// Established matches packets of established and related connections.
	Established = CTState.hasAny(1<<1 | 1<<2) // ESTABLISHED and RELATED of nf_conntrack_common.h
	// DestinationTranslated matches packets of connections whose destination the node translates.
	DestinationTranslated = CTStatus.hasAny(1 << 5) // IPS_DST_NAT
	// IsReply matches packets against the direction of their connection.
	IsReply = CTDirection.Is(1) // IP_CT_DIR_REPLY
	// ToNode and FromNode match packets to and from an address of the network namespace.
	ToNode   = addressType(unix.NFTA_FIB_F_DADDR).Is(binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)...)
	FromNode = addressType(unix.NFTA_FIB_F_SADDR).Is(binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)...)
	// NoWayBack matches packets whose source the node does not reach by their link.
	NoWayBack = wayBack.Is(0, 0, 0, 0)
	// NotByLoopback matches packets that come by another link than lo.
	NotByLoopback = iifType.IsNot(binary.NativeEndian.AppendUint16(nil, unix.ARPHRD_LOOPBACK)...)
	// FromLinkLocal matches IPv6 packets from fe80::/10, which nothing forwards.
	FromLinkLocal = Network(8, 2).And(0xff, 0xc0).Is(0xfe, 0x80)
	// IPv6Fragment matches IPv6 packets with a fragment header.
	IPv6Fragment = Field{size: 1, load: func(register uint32) []byte {
		const present = 1 // NFT_EXTHDR_F_PRESENT
		return expression("exthdr", number(unix.NFTA_EXTHDR_DREG, register), attribute(unix.NFTA_EXTHDR_TYPE, []byte{unix.IPPROTO_FRAGMENT}),
			number(unix.NFTA_EXTHDR_OFFSET, 0), number(unix.NFTA_EXTHDR_LEN, 1), number(unix.NFTA_EXTHDR_FLAGS, present), number(unix.NFTA_EXTHDR_OP, 0)) // of IPv6
	}}.Is(1)
)

// HasConnectionMark matches packets of connections whose mark has one of the bits.
func HasConnectionMark(bits uint32) Statement { return ctMark.hasAny(bits) }

func LacksConnectionMark(bits uint32) Statement {
	return ctMark.And(binary.NativeEndian.AppendUint32(nil, bits)...).Is(0, 0, 0, 0)
}

// Types of ICMP (RFC 792) and ICMPv6 messages (RFC 4861, RFC 2710, RFC 3810).
const (
	ICMPRedirect          = 5
	ListenerQuery         = 130
	ListenerReport1       = 131
	ListenerDone          = 132
	RouterSolicitation    = 133
	RouterAdvertisement   = 134
	NeighborSolicitation  = 135
	NeighborAdvertisement = 136
	Redirect              = 137
	ListenerReport2       = 143
)

// ICMPv6 matches messages of one type.
func ICMPv6(kind byte) Statement {
	return L4Proto.Is(unix.IPPROTO_ICMPV6).Then(MessageType.Is(kind))
}

// lookup looks the concatenated fields up in a set. For a map, destination is the register for the
// value.
func lookup(set string, flags uint32, fields []Field, destination ...uint32) Statement {
	var expressions [][]byte
	word := 0
	for _, f := range fields {
		expressions = append(expressions, f.into(word))
		word += f.words()
	}
	attributes := [][]byte{text(unix.NFTA_LOOKUP_SET, set), number(unix.NFTA_LOOKUP_SREG, register(0))}
	for _, d := range destination {
		attributes = append(attributes, number(unix.NFTA_LOOKUP_DREG, d))
	}
	return statement(append(expressions, expression("lookup", append(attributes, number(unix.NFTA_LOOKUP_FLAGS, flags))...))...)
}

// In matches if the set has the fields.
func In(set string, fields ...Field) Statement { return lookup(set, 0, fields) }

func NotIn(set string, fields ...Field) Statement { return lookup(set, unix.NFT_LOOKUP_F_INV, fields) }

// Vmap gives the map's verdict for the fields, if the map has them.
func Vmap(verdicts string, fields ...Field) Statement {
	return lookup(verdicts, 0, fields, unix.NFT_REG_VERDICT)
}

// Of the kernel's uapi/linux/netfilter/nf_tables.h.
const (
	dynsetUpdate, dynsetDelete = 1, 2 // NFT_DYNSET_OP_UPDATE, NFT_DYNSET_OP_DELETE
	nextHop4, nextHop6         = 1, 2 // NFT_RT_NEXTHOP4, NFT_RT_NEXTHOP6
)

func dynset(op uint32, set string, field Field) Statement {
	return statement(field.into(0), expression("dynset", text(unix.NFTA_DYNSET_SET_NAME, set), number(unix.NFTA_DYNSET_OP, op), number(unix.NFTA_DYNSET_SREG_KEY, register(0))))
}

// Update adds the field to a set, or restarts its timeout there. If the set is full, the rule does
// not match.
func Update(set string, field Field) Statement { return dynset(dynsetUpdate, set, field) }

// Delete takes the field out of a set.
func Delete(set string, field Field) Statement { return dynset(dynsetDelete, set, field) }

// NextHop is the next hop of a routed packet: its destination, or a router.
func (ip *IP) NextHop() Field {
	key := uint32(nextHop4)
	if ip == V6 {
		key = nextHop6
	}
	return Field{size: ip.Addr.Size(), load: func(register uint32) []byte {
		return expression("rt", number(unix.NFTA_RT_KEY, key), number(unix.NFTA_RT_DREG, register))
	}}
}

// MoreThan matches packets above a rate in a second. As many may come at once.
func MoreThan(inSecond uint32) Statement {
	return statement(expression("limit", number64(unix.NFTA_LIMIT_RATE, uint64(inSecond)), number64(unix.NFTA_LIMIT_UNIT, 1), number(unix.NFTA_LIMIT_BURST, inSecond),
		number(unix.NFTA_LIMIT_TYPE, unix.NFT_LIMIT_PKTS), number(unix.NFTA_LIMIT_FLAGS, unix.NFT_LIMIT_F_INV)))
}

func verdict(code int32, chain string) Statement {
	return statement(expression("immediate", number(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT), nested(unix.NFTA_IMMEDIATE_DATA, verdictData(code, chain))))
}

func verdictData(code int32, chain string) []byte {
	attributes := [][]byte{number(unix.NFTA_VERDICT_CODE, uint32(code))}
	if chain != "" {
		attributes = append(attributes, text(unix.NFTA_VERDICT_CHAIN, chain))
	}
	return nested(unix.NFTA_DATA_VERDICT, attributes...)
}

const verdictDrop, verdictAccept = 0, 1 // NF_DROP, NF_ACCEPT

// The verdicts without a chain.
var (
	Accept = verdict(verdictAccept, "")
	Drop   = verdict(verdictDrop, "")
	Return = verdict(unix.NFT_RETURN, "")
)

// Jump and Goto continue with another chain.
func Jump(chain string) Statement { return verdict(unix.NFT_JUMP, chain) }
func Goto(chain string) Statement { return verdict(unix.NFT_GOTO, chain) }

// Masquerade makes the source an address of the node; MasqueradeRandom chooses random ports, so
// that two connections rarely choose the same.
var (
	Masquerade       = statement(expression("masq"))
	MasqueradeRandom = statement(expression("masq", number(unix.NFTA_MASQ_FLAGS, unix.NF_NAT_RANGE_PROTO_RANDOM_ALL)))
)

// KeepSource translates the source to itself: the first translation of a connection counts.
func (ip *IP) KeepSource() Statement { return statement(ip.SAddr.into(0), ip.snat()) }

// SNAT makes an address the source, with ports that two connections do not choose alike: any, or
// the first to the last of ports, which are ids in ICMP.
func (ip *IP) SNAT(to netip.Addr, ports ...uint16) Statement {
	all := immediate(0, to.AsSlice())
	// The kernel lists the first flag, too, which follows from the address, and the second one, which
	// follows from ports.
	flags := uint32(unix.NF_NAT_RANGE_MAP_IPS | unix.NF_NAT_RANGE_PROTO_RANDOM_ALL)
	var more [][]byte
	for i, kind := range []uint16{unix.NFTA_NAT_REG_PROTO_MIN, unix.NFTA_NAT_REG_PROTO_MAX}[:len(ports)] {
		word := ip.SAddr.words() + i
		all = append(all, immediate(word, binary.BigEndian.AppendUint16(nil, ports[i]))...)
		more = append(more, number(kind, register(word)))
		flags |= unix.NF_NAT_RANGE_PROTO_SPECIFIED
	}
	return statement(all, ip.snat(append(more, number(unix.NFTA_NAT_FLAGS, flags))...))
}

func immediate(word int, data []byte) []byte {
	return expression("immediate", number(unix.NFTA_IMMEDIATE_DREG, register(word)), value(unix.NFTA_IMMEDIATE_DATA, data))
}

// Lead sends a packet on as it is, from the link, to the neighbour that a map has for the fields,
// and drops it here. It does nothing where they are not in it. The table must be of one family.
func Lead(neighbours string, link int, fields ...Field) Statement {
	const addr, device = 0, 4                                                    // an address of IPv6 has four words
	by := immediate(device, binary.NativeEndian.AppendUint32(nil, uint32(link))) //nolint:gosec // the kernel's indexes are positive
	return lookup(neighbours, 0, fields, register(addr)).Then(
		statement(by, expression("dup", number(unix.NFTA_DUP_SREG_ADDR, register(addr)), number(unix.NFTA_DUP_SREG_DEV, register(device)))), Drop)
}

// snat translates the source to the address in the first register.
func (ip *IP) snat(more ...[]byte) []byte {
	return expression("nat", append([][]byte{number(unix.NFTA_NAT_TYPE, unix.NFT_NAT_SNAT), number(unix.NFTA_NAT_FAMILY, ip.family),
		number(unix.NFTA_NAT_REG_ADDR_MIN, register(0)), number(unix.NFTA_NAT_REG_ADDR_MAX, register(0))}, more...)...)
}

// DNAT translates the destination to the map's address and port for the fields, if the map has
// them.
func (ip *IP) DNAT(addrs string, fields ...Field) Statement {
	return lookup(addrs, 0, fields, register(0)).Then(statement(expression("nat", number(unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT), number(unix.NFTA_NAT_FAMILY, ip.family),
		number(unix.NFTA_NAT_REG_ADDR_MIN, register(0)), number(unix.NFTA_NAT_REG_PROTO_MIN, register(ip.SAddr.words())))))
}

// SetMark sets the bits of a mask in the firewall mark to a value and leaves the others.
func SetMark(value, mask uint32) Statement {
	return statement(meta(unix.NFT_META_MARK, 4).into(0), bitwise(0, binary.NativeEndian.AppendUint32(nil, ^mask), binary.NativeEndian.AppendUint32(nil, value)),
		expression("meta", number(unix.NFTA_META_KEY, unix.NFT_META_MARK), number(unix.NFTA_META_SREG, register(0))))
}

// HasMark matches packets in whose firewall mark the bits of a mask have a value.
func HasMark(value, mask uint32) Statement {
	return meta(unix.NFT_META_MARK, 4).And(binary.NativeEndian.AppendUint32(nil, mask)...).Is(binary.NativeEndian.AppendUint32(nil, value)...)
}

// SetDSCP sets the DSCP of the packet and leaves the two bits of ECN.
func (ip *IP) SetDSCP(dscp uint8) Statement {
	// The first two bytes: version, header length and DSCP with ECN. In IPv6 version, traffic class
	// (DSCP with ECN) and the flow label's first bits, without a checksum.
	keep, value := []byte{0xff, 0x03}, []byte{0x00, dscp << 2}
	if ip == V6 {
		keep, value = []byte{0xf0, 0x3f}, []byte{dscp >> 2, dscp << 6}
	}
	attributes := [][]byte{number(unix.NFTA_PAYLOAD_SREG, register(0)), number(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER),
		number(unix.NFTA_PAYLOAD_OFFSET, 0), number(unix.NFTA_PAYLOAD_LEN, 2)}
	if ip == V4 {
		attributes = append(attributes, number(unix.NFTA_PAYLOAD_CSUM_TYPE, unix.NFT_PAYLOAD_CSUM_INET), number(unix.NFTA_PAYLOAD_CSUM_OFFSET, 10))
	}
	return statement(Network(0, 2).into(0), bitwise(0, keep, value), expression("payload", attributes...))
}

// Counter counts packets; CounterNamed does so in an object of the table.
var Counter = statement(expression("counter"))

// CounterNamed is described at Counter.
func CounterNamed(name string) Statement {
	return statement(expression("objref", number(unix.NFTA_OBJREF_IMM_TYPE, unix.NFT_OBJECT_COUNTER), text(unix.NFTA_OBJREF_IMM_NAME, name)))
}

// Match is a match of iptables, revision 0.
func Match(name string, info []byte) Statement {
	return statement(expression("match", text(unix.NFTA_MATCH_NAME, name), number(unix.NFTA_MATCH_REV, 0), attribute(unix.NFTA_MATCH_INFO, info)))
}

// covers reports whether the kernel's encoding of a rule contains our encoding. The kernel adds
// defaults, newer versions more of them.
func (r Rule) covers(have []byte) bool {
	theirs, err := splitList(have)
	ours, err2 := splitList(r.statements)
	return err == nil && err2 == nil && slices.EqualFunc(ours, theirs, covered)
}

// covered reports whether each attribute of want is in have with the same value.
func covered(want, have []byte) bool {
	theirs, err := split(have)
	for len(want) >= unix.SizeofNlAttr && err == nil {
		size, kind := int(binary.NativeEndian.Uint16(want)), binary.NativeEndian.Uint16(want[2:])
		value := theirs[kind&^unix.NLA_F_NESTED]
		ours := want[unix.SizeofNlAttr:size]
		if value == nil || kind&unix.NLA_F_NESTED != 0 && !covered(ours, value) || kind&unix.NLA_F_NESTED == 0 && !bytes.Equal(ours, value) {
			return false
		}
		want = want[min(len(want), (size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
	}
	return err == nil
}
