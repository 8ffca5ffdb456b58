// SPDX-License-Identifier: Apache-2.0

// Package frame makes and reads the Ethernet frames by which hosts find each other: ARP
// (RFC 826) and neighbour discovery (RFC 4861), and UDP datagrams to all hosts of a segment. It is
// pure; it sends nothing.
package frame

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	ARPRequest = 1
	ARPReply   = 2
)

// Broadcast is the address of all hosts of a segment.
func Broadcast() net.HardwareAddr { return net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff} }

// ARP is an ARP packet for IPv4 over Ethernet. Its MACs have 6 bytes; a nil TargetMAC is
// zeros.
type ARP struct {
	Operation            uint16
	SenderMAC, TargetMAC net.HardwareAddr
	Sender, Target       netip.Addr
}

const (
	header = 14
	arpEnd = header + 28
)

// To returns the frame that sends the packet to a host.
func (a ARP) To(destination net.HardwareAddr) []byte {
	sender, target := a.Sender.As4(), a.Target.As4()
	targetMAC := make([]byte, 6)
	copy(targetMAC, a.TargetMAC)
	f := make([]byte, 0, arpEnd)
	f = append(f, destination...)
	f = append(f, a.SenderMAC...)
	f = binary.BigEndian.AppendUint16(f, unix.ETH_P_ARP)
	f = append(f, 0, 1, 0x08, 0x00, 6, 4)
	f = binary.BigEndian.AppendUint16(f, a.Operation)
	f = append(f, a.SenderMAC...)
	f = append(f, sender[:]...)
	f = append(f, targetMAC...)
	return append(f, target[:]...)
}

// ParseARP reads a frame; ok is false for every other frame.
func ParseARP(f []byte) (a ARP, destination net.HardwareAddr, ok bool) {
	if len(f) < arpEnd || binary.BigEndian.Uint16(f[12:]) != unix.ETH_P_ARP || [6]byte(f[header:header+6]) != [6]byte{0, 1, 0x08, 0x00, 6, 4} {
		return ARP{}, nil, false
	}
	p := f[header:]
	return ARP{
		Operation: binary.BigEndian.Uint16(p[6:]),
		SenderMAC: clone(p[8:14]), Sender: netip.AddrFrom4([4]byte(p[14:18])),
		TargetMAC: clone(p[18:24]), Target: netip.AddrFrom4([4]byte(p[24:28])),
	}, clone(f[:6]), true
}

func clone(mac []byte) net.HardwareAddr { return append(net.HardwareAddr(nil), mac...) }

// Types of ICMPv6 messages, and the flags of an advertisement: from a router, and to replace a MAC
// address that receivers know.
const (
	NeighborSolicitation  = 135
	NeighborAdvertisement = 136
	FlagRouter            = 0x80
	FlagOverride          = 0x20
)

const (
	ipv6Header = 40
	// neighborMessage is the length of a message without options.
	neighborMessage = 24
)

// ICMPv6 returns the frame of an ICMPv6 message, and sets the message's checksum, which is
// zero.
func ICMPv6(sourceMAC, destinationMAC net.HardwareAddr, source, destination netip.Addr, message []byte) []byte {
	src, dst := source.As16(), destination.As16()
	binary.BigEndian.PutUint16(message[2:4], checksum6(src, dst, message))
	f := make([]byte, 0, header+ipv6Header+len(message))
	f = append(f, destinationMAC...)
	f = append(f, sourceMAC...)
	f = binary.BigEndian.AppendUint16(f, unix.ETH_P_IPV6)
	f = append(f, 0x60, 0, 0, 0)
	f = binary.BigEndian.AppendUint16(f, uint16(len(message)))
	f = append(f, unix.IPPROTO_ICMPV6, 255)
	f = append(f, src[:]...)
	f = append(f, dst[:]...)
	return append(f, message...)
}

// checksum6 returns the checksum over the pseudo header and an ICMPv6 message whose checksum field
// is zero. For a message with a right checksum it returns 0.
func checksum6(src, dst [16]byte, message []byte) uint16 {
	return checksum(uint32(len(message))+unix.IPPROTO_ICMPV6, src[:], dst[:], message)
}

// checksum returns the Internet checksum (RFC 1071) over parts, added to a sum of other parts. Only
// the last part may have an odd length.
func checksum(sum uint32, parts ...[]byte) uint16 {
	for _, b := range parts {
		for ; len(b) > 1; b = b[2:] {
			sum += uint32(binary.BigEndian.Uint16(b))
		}
		if len(b) == 1 {
			sum += uint32(b[0]) << 8
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// DuplicateProbe returns the neighbour solicitation of duplicate address detection (RFC
// 4862, section 5.4.2).
func DuplicateProbe(mac net.HardwareAddr, target netip.Addr) []byte {
	tgt := target.As16()
	// The target's solicited-node group, and the group's Ethernet address.
	group := [16]byte{0xff, 0x02, 11: 0x01, 12: 0xff, 13: tgt[13], 14: tgt[14], 15: tgt[15]}
	groupMAC := net.HardwareAddr{0x33, 0x33, 0xff, tgt[13], tgt[14], tgt[15]}
	message := append([]byte{NeighborSolicitation, 0, 0, 0, 0, 0, 0, 0}, tgt[:]...)
	return ICMPv6(mac, groupMAC, netip.IPv6Unspecified(), netip.AddrFrom16(group), message)
}

// Solicitation returns the neighbour solicitation by which a node asks a host with a known MAC
// whether it still has an address (RFC 4861, section 7.3.3). source is the node's own address.
func Solicitation(mac, to net.HardwareAddr, source, target netip.Addr) []byte {
	tgt := target.As16()
	message := append([]byte{NeighborSolicitation, 0, 0, 0, 0, 0, 0, 0}, tgt[:]...)
	return ICMPv6(mac, to, source, target, append(append(message, 1, 1), mac...))
}

// Advertisement has the fields of a neighbour advertisement.
type Advertisement struct {
	Target netip.Addr
	// MAC is from the option or, without the option, from the frame.
	MAC   net.HardwareAddr
	Flags byte
}

// ParseAdvertisement reads a frame; ok is false for every other frame, also for an advertisement
// that a receiver must discard (RFC 4861, section 7.1.2).
func ParseAdvertisement(f []byte) (a Advertisement, ok bool) {
	const start = header + ipv6Header
	if len(f) < start+neighborMessage || binary.BigEndian.Uint16(f[12:]) != unix.ETH_P_IPV6 || f[header+6] != unix.IPPROTO_ICMPV6 || f[header+7] != 255 {
		return Advertisement{}, false
	}
	length := int(binary.BigEndian.Uint16(f[header+4:]))
	if length < neighborMessage || start+length > len(f) {
		return Advertisement{}, false
	}
	m := f[start : start+length]
	if m[0] != NeighborAdvertisement || m[1] != 0 || checksum6([16]byte(f[header+8:]), [16]byte(f[header+24:]), m) != 0 {
		return Advertisement{}, false
	}
	a = Advertisement{Target: netip.AddrFrom16([16]byte(m[8:24])), MAC: clone(f[6:12]), Flags: m[4]}
	for options := m[neighborMessage:]; len(options) >= 8; {
		size := int(options[1]) * 8
		if size == 0 || size > len(options) {
			return Advertisement{}, false
		}
		if options[0] == 2 && size == 8 {
			a.MAC = clone(options[2:8])
		}
		options = options[size:]
	}
	return a, true
}
