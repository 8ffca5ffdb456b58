// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/frame"
)

// Every packet between two pods of a node is routed by it: nothing comes from one to the other that
// the node's hook forward does not see.
func TestPastTheNode(t *testing.T) {
	w := newTopology(t, VXLAN, 1)
	a, b := w.pod(w.nodes[0]), w.pod(w.nodes[0])
	w.expectReached(a, b)
	const port = 4789
	heard := make(chan string, 100)
	for _, listen := range []struct {
		network string
		address *net.UDPAddr
		group   net.IP
	}{
		{network: "udp4", address: &net.UDPAddr{Port: port}},
		{network: "udp4", address: &net.UDPAddr{Port: port + 1}, group: net.IPv4(224, 0, 0, 77)},
		{network: "udp6", address: &net.UDPAddr{Port: port + 1}, group: net.ParseIP("ff02::77")},
	} {
		var listener *net.UDPConn
		b.Run(func() (err error) {
			if listen.group == nil {
				listener, err = net.ListenUDP(listen.network, listen.address)
				return err
			}
			link, err := net.InterfaceByName("eth0")
			if err != nil {
				return err
			}
			listener, err = net.ListenMulticastUDP(listen.network, link, &net.UDPAddr{IP: listen.group, Port: listen.address.Port})
			return err
		})
		defer listener.Close()
		go func() {
			buffer := make([]byte, 100)
			for {
				n, err := listener.Read(buffer)
				if err != nil {
					return
				}
				heard <- string(buffer[:n])
			}
		}()
	}
	macs := map[*pod]net.HardwareAddr{a: macIn(t, a), b: macIn(t, b)}
	datagram := ipv4UDP(a.v4, b.v4, port, "tagged")
	a.Run(func() error {
		header := slices.Concat(macs[b], macs[a])
		return errors.Join(
			sendFrame(slices.Concat(header, []byte{0x81, 0x00, 0, 0, 0x08, 0x00}, datagram)),
			sendFrame(slices.Concat(frame.Broadcast(), macs[a], []byte{0x81, 0x00, 0, 0, 0x08, 0x00}, datagram)),
			sendFrame(slices.Concat(header, []byte{0x08, 0x00}, ipv4UDP(a.v4, b.v4, port, "untagged"))),
			sendGroup("255.255.255.255", port, "broadcast"), sendGroup("224.0.0.77", port+1, "multicast"), sendGroup("ff02::77%eth0", port+1, "multicast6"))
	})
	// The last one is routed; by then the others had their chance.
	a.Run(func() error { return sendGroup(b.v4.String(), port, "routed") })
	for {
		select {
		case text := <-heard:
			if text == "routed" {
				return
			}
			t.Errorf("the %s datagram came past the node", text)
		case <-time.After(10 * time.Second):
			t.Fatal("nothing comes at all")
		}
	}
}

// A pod has the addresses that it was given: with others it can neither send nor be found.
func TestUnassignedAddress(t *testing.T) {
	w := newTopology(t, VXLAN, 2)
	n := w.nodes[0]
	a, b, remote := w.pod(n), w.pod(n), w.pod(w.nodes[1])
	w.expectReached(a, b)
	w.expectReached(a, remote)
	for _, key := range []string{"all", "default"} {
		n.Run(func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/"+key+"/rp_filter", []byte("0"), 0o644) })
	}
	for _, source := range []netip.Addr{netip.MustParseAddr("10.244.1.200"), netip.MustParseAddr("fd00:244:0:1::200"), b.v4, b.v6} {
		to := remote.v4
		if source.Is6() {
			to = remote.v6
		}
		a.IP("addr", "replace", netip.PrefixFrom(source, source.BitLen()).String(), "dev", "eth0", "nodad")
		if arrives(t, a, source, remote.Host, to) {
			t.Errorf("packets from %s arrive", source)
		}
		if source != b.v4 && source != b.v6 && ping(n.Host, source.String()) == nil {
			t.Errorf("the node finds %s", source)
		}
	}
	if err := ping(n.Host, b.v4.String()); err != nil {
		t.Error("the node does not find the pod whose address another pod uses:", err)
	}
}

func macIn(t *testing.T, p *pod) (mac net.HardwareAddr) {
	t.Helper()
	p.Run(func() error {
		link, err := net.InterfaceByName("eth0")
		if err == nil {
			mac = link.HardwareAddr
		}
		return err
	})
	return mac
}

// ipv4UDP returns a datagram with its IPv4 header.
func ipv4UDP(from, to netip.Addr, port uint16, text string) []byte {
	header := []byte{0x45, 0, 0, 0, 0, 1, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	header = append(append(header, from.AsSlice()...), to.AsSlice()...)
	binary.BigEndian.PutUint16(header[2:], uint16(len(header)+8+len(text)))
	sum := uint32(0)
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	binary.BigEndian.PutUint16(header[10:], ^uint16(sum>>16+sum&0xffff))
	header = binary.BigEndian.AppendUint16(header, 40000)
	header = binary.BigEndian.AppendUint16(header, port)
	header = binary.BigEndian.AppendUint16(header, uint16(8+len(text)))
	return append(append(header, 0, 0), text...)
}

// sendFrame sends a frame by eth0, as a container with CAP_NET_RAW can.
func sendFrame(f []byte) error {
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	link, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	return unix.Sendto(socket, f, 0, &unix.SockaddrLinklayer{Ifindex: link.Index, Halen: 6})
}

// sendGroup sends a datagram, as a container without any capability can.
func sendGroup(to string, port uint16, text string) error {
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
}
