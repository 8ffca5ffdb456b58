// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// MAC returns the MAC address of a link of the host.
func (h *Host) MAC(link string) (mac net.HardwareAddr) {
	h.t.Helper()
	h.Run(func() error {
		found, err := net.InterfaceByName(link)
		if err == nil {
			mac = found.HardwareAddr
		}
		return err
	})
	return mac
}

// Groups are the multicast groups that Hear joins.
var Groups = []string{"224.0.0.77", "ff02::77"}

// Hear returns the texts of the datagrams that come to a port of the host, also by broadcast and to
// Groups.
func (h *Host) Hear(t testing.TB, link string, port int) <-chan string {
	t.Helper()
	heard := make(chan string, 100)
	listen := func(open func() (*net.UDPConn, error)) {
		var listener *net.UDPConn
		h.Run(func() (err error) { listener, err = open(); return err })
		t.Cleanup(func() { _ = listener.Close() })
		go func() {
			buffer := make([]byte, 2000)
			for {
				n, err := listener.Read(buffer)
				if err != nil {
					return
				}
				heard <- string(buffer[:n])
			}
		}()
	}
	listen(func() (*net.UDPConn, error) { return net.ListenUDP("udp4", &net.UDPAddr{Port: port}) })
	for _, group := range Groups {
		listen(func() (*net.UDPConn, error) {
			on, err := net.InterfaceByName(link)
			if err != nil {
				return nil, err
			}
			// The port of the first listener has the unicast addresses.
			return net.ListenMulticastUDP("udp", on, &net.UDPAddr{IP: net.ParseIP(group), Port: port + 1})
		})
	}
	return heard
}

// Say sends a datagram, as a container without any capability can, also to the broadcast address.
func (h *Host) Say(to string, port uint16, text string) {
	h.t.Helper()
	h.Run(func() error {
		dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
			var err error
			return errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1) }), err)
		}}
		conn, err := dialer.Dial("udp", netip.AddrPortFrom(netip.MustParseAddr(to), port).String())
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte(text))
		return err
	})
}

// SendFrame sends a frame by a link, as a container with CAP_NET_RAW can.
func (h *Host) SendFrame(link string, f []byte) {
	h.t.Helper()
	h.Run(func() error {
		socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(socket)
		by, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		return unix.Sendto(socket, f, 0, &unix.SockaddrLinklayer{Ifindex: by.Index, Halen: 6})
	})
}

// Datagram returns a datagram with its IPv4 header.
func Datagram(from, to netip.Addr, port uint16, text string) []byte {
	packet := []byte{0x45, 0, 0, 0, 0, 1, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	packet = append(append(packet, from.AsSlice()...), to.AsSlice()...)
	binary.BigEndian.PutUint16(packet[2:], uint16(len(packet)+8+len(text)))
	sum := uint32(0)
	for i := 0; i < len(packet); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(packet[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(packet[10:], ^uint16(sum))
	packet = binary.BigEndian.AppendUint16(packet, 40000)
	packet = binary.BigEndian.AppendUint16(packet, port)
	packet = binary.BigEndian.AppendUint16(packet, uint16(8+len(text)))
	return append(append(packet, 0, 0), text...)
}
