// SPDX-License-Identifier: Apache-2.0

package frame

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Datagram is a UDP datagram to all hosts of a segment (255.255.255.255), from and to one port.
// Source may be 0.0.0.0.
type Datagram struct {
	SourceMAC net.HardwareAddr
	Source    netip.Addr
	Port      uint16
	Payload   []byte
}

const (
	ipv4Header = 20
	udpHeader  = 8
	payload    = header + ipv4Header + udpHeader
)

var limitedBroadcast = [4]byte{255, 255, 255, 255}

// ToAll returns the frame that sends the datagram.
func (d Datagram) ToAll() []byte {
	length := udpHeader + len(d.Payload)
	f := make([]byte, 0, payload+len(d.Payload))
	f = append(f, Broadcast()...)
	f = append(f, d.SourceMAC...)
	f = binary.BigEndian.AppendUint16(f, unix.ETH_P_IP)

	source := d.Source.As4()
	f = append(f, 0x45, 0)
	f = binary.BigEndian.AppendUint16(f, uint16(ipv4Header+length))
	// A packet with Don't Fragment needs no ID (RFC 6864).
	f = append(f, 0, 0, 0x40, 0, 64, unix.IPPROTO_UDP, 0, 0)
	f = append(f, source[:]...)
	f = append(f, limitedBroadcast[:]...)
	binary.BigEndian.PutUint16(f[header+10:], checksum(0, f[header:]))

	f = binary.BigEndian.AppendUint16(f, d.Port)
	f = binary.BigEndian.AppendUint16(f, d.Port)
	f = binary.BigEndian.AppendUint16(f, uint16(length))
	f = append(f, 0, 0)
	f = append(f, d.Payload...)
	sum := checksum(uint32(length)+unix.IPPROTO_UDP, source[:], limitedBroadcast[:], f[header+ipv4Header:])
	if sum == 0 {
		// 0 would mean that there is no checksum (RFC 768).
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(f[header+ipv4Header+6:], sum)
	return f
}

// ParseDatagram reads a frame; ok is false for every other frame, also with IP options, which ToAll
// never makes. It does not read the UDP checksum, which links with checksum offload have not
// computed yet. Payload is part of f.
func ParseDatagram(f []byte) (d Datagram, ok bool) {
	if len(f) < payload || binary.BigEndian.Uint16(f[12:]) != unix.ETH_P_IP {
		return Datagram{}, false
	}
	ip, udp := f[header:], f[header+ipv4Header:]
	length := int(binary.BigEndian.Uint16(udp[4:]))
	total := int(binary.BigEndian.Uint16(ip[2:]))
	const moreOrOffset = 0x3fff
	if ip[0] != 0x45 || ip[9] != unix.IPPROTO_UDP || binary.BigEndian.Uint16(ip[6:])&moreOrOffset != 0 || !bytes.Equal(ip[16:20], limitedBroadcast[:]) ||
		length < udpHeader || total != ipv4Header+length || header+total > len(f) || !bytes.Equal(udp[:2], udp[2:4]) {
		return Datagram{}, false
	}
	return Datagram{
		SourceMAC: clone(f[6:12]), Source: netip.AddrFrom4([4]byte(ip[12:16])),
		Port: binary.BigEndian.Uint16(udp[2:]), Payload: udp[udpHeader:length],
	}, true
}
