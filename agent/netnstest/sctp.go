// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"time"
)

// Many kernels have no sockets for SCTP, so the tests speak it through raw ones: the first
// packet of an association and its answer (RFC 9260, sections 3.3.2 and 3.3.3).
const (
	sctpInit    = 1
	sctpInitAck = 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sctpPacket makes a packet of one chunk, whose text is an unrecognized parameter.
func sctpPacket(source, destination uint16, verification uint32, chunk byte, text string) []byte {
	b := binary.BigEndian.AppendUint16(nil, source)
	b = binary.BigEndian.AppendUint16(b, destination)
	b = binary.BigEndian.AppendUint32(b, verification)
	b = append(b, 0, 0, 0, 0) // checksum
	b = append(b, chunk, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(20+4+len(text)))
	b = binary.BigEndian.AppendUint32(b, 0x01020304) // initiate tag
	b = binary.BigEndian.AppendUint32(b, 65536)      // window
	b = append(b, 0, 1, 0, 1, 0, 0, 0, 1)            // streams out and in, first TSN
	b = binary.BigEndian.AppendUint16(b, 0xc000)
	b = binary.BigEndian.AppendUint16(b, uint16(4+len(text)))
	b = append(b, text...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
	return b
}

type sctpSeen struct {
	source, destination uint16
	chunk               byte
	text                string
}

func parseSCTP(b []byte) (sctpSeen, error) {
	if len(b) < 36 {
		return sctpSeen{}, errors.New("short SCTP packet")
	}
	given := binary.LittleEndian.Uint32(b[8:])
	zeroed := append([]byte{}, b...)
	copy(zeroed[8:], []byte{0, 0, 0, 0})
	if sum := crc32.Checksum(zeroed, castagnoli); sum != given {
		return sctpSeen{}, fmt.Errorf("SCTP checksum is %x, want %x", given, sum)
	}
	text := b[36:]
	return sctpSeen{
		source: binary.BigEndian.Uint16(b), destination: binary.BigEndian.Uint16(b[2:]), chunk: b[12],
		text: string(text[:min(len(text), int(binary.BigEndian.Uint16(b[34:]))-4)]),
	}, nil
}

func sctpNetwork(addr netip.Addr) string {
	if addr.Is4() {
		return "ip4:132"
	}
	return "ip6:132"
}

// ServeSCTP answers every association with the address that it comes from, until stop.
func ServeSCTP(host *Host, addr netip.Addr, port uint16) (stop func(), err error) {
	var conn net.PacketConn
	if err := host.Try(func() error {
		conn, err = new(net.ListenConfig).ListenPacket(host.t.Context(), sctpNetwork(addr), addr.String())
		return err
	}); err != nil {
		return nil, err
	}
	go func() {
		b := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			seen, err := parseSCTP(b[:n])
			if err != nil || seen.chunk != sctpInit || seen.destination != port {
				continue
			}
			_, _ = conn.WriteTo(sctpPacket(port, seen.source, 0x01020304, sctpInitAck, from.String()), from)
		}
	}()
	return func() { _ = conn.Close() }, nil
}

// AskSCTP begins an association and returns the text of the answer.
func AskSCTP(host *Host, source uint16, to netip.AddrPort, patience time.Duration) (string, error) {
	var conn *net.IPConn
	err := host.Try(func() error {
		var err error
		conn, err = net.DialIP(sctpNetwork(to.Addr()), nil, &net.IPAddr{IP: to.Addr().AsSlice()})
		return err
	})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	deadline := time.Now().Add(patience)
	b := make([]byte, 1500)
	for time.Now().Before(deadline) {
		if _, err := conn.Write(sctpPacket(source, to.Port(), 0, sctpInit, "")); err != nil {
			return "", err
		}
		if err := conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			return "", err
		}
		for {
			// Read would return the header of IPv4, too.
			n, _, err := conn.ReadFromIP(b)
			if err != nil {
				break
			}
			seen, err := parseSCTP(b[:n])
			if err != nil {
				return "", err
			}
			if seen.chunk == sctpInitAck && seen.source == to.Port() && seen.destination == source {
				return seen.text, nil
			}
		}
	}
	return "", errors.New("no answer by SCTP")
}
