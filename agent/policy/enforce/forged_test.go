// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/berth-dev/berth/agent/netnstest"
)

// ICMPv6 types.
const (
	echoRequest           = 128
	listenerQuery         = 130
	listenerReport        = 131
	neighborSolicitation  = 135
	neighborAdvertisement = 136
)

// forger sends packets with any header.
type forger struct {
	t      *testing.T
	socket int
}

// message is an IPv6 packet with an ICMPv6 message.
type message struct {
	kind     byte
	source   string
	hopLimit byte
}

// send sends the packet; id is its data.
func (f forger) send(m message, to string, id uint16) {
	f.t.Helper()
	source, destination := netip.MustParseAddr(m.source).As16(), netip.MustParseAddr(to).As16()
	data := binary.BigEndian.AppendUint16(make([]byte, 6, 24), id)
	body := append([]byte{m.kind, 0, 0, 0}, append(data, make([]byte, 16)...)...)
	binary.BigEndian.PutUint16(body[2:], checksum(slices.Concat(source[:], destination[:], []byte{0, 0, 0, byte(len(body)), 0, 0, 0, unix.IPPROTO_ICMPV6}, body)))
	header := slices.Concat([]byte{0x60, 0, 0, 0, 0, byte(len(body)), unix.IPPROTO_ICMPV6, m.hopLimit}, source[:], destination[:])
	if err := unix.Sendto(f.socket, append(header, body...), 0, &unix.SockaddrInet6{Addr: destination}); err != nil {
		f.t.Fatal(err)
	}
}

func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// A host of the network does not reach an isolated pod by packets that look as if they were of the
// pod's link, or of the pod itself.
func TestForgedPackets(t *testing.T) {
	w := newTopology(t)
	outside := netnstest.New(t)
	w.node.IP("link", "set", "switch", "netns", outside.Path())
	if _, err := w.node.Command("sysctl", "-w", "net.ipv6.conf.all.forwarding=1"); err != nil {
		t.Fatal(err)
	}
	w.node.IPBatch("addr add 2001:db8:60::11/64 dev uplink nodad\n")
	outside.IPBatch("link set switch up\naddr add 2001:db8:60::99/64 dev switch nodad\nroute add 2001:db8:1::/64 via 2001:db8:60::11\n")
	policy := allow("db", "db")
	policy.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "2001:db8:60::99/128"}}}}}
	w.set(policy)
	db := w.newPod("db", "2001:db8:1::5")
	w.add(db, "routed6")

	var heard net.PacketConn
	db.Run(func() (err error) { heard, err = net.ListenPacket("ip6:ipv6-icmp", "::"); return err })
	t.Cleanup(func() { _ = heard.Close() })
	f := forger{t: t}
	outside.Run(func() (err error) {
		f.socket, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_RAW)
		return err
	})
	t.Cleanup(func() { _ = unix.Close(f.socket) })

	const stranger = "2001:db8:60::66"
	forged := []message{
		{neighborSolicitation, stranger, 255}, {neighborSolicitation, stranger, 2}, {neighborAdvertisement, stranger, 2},
		{listenerQuery, stranger, 2}, {listenerReport, stranger, 2}, {listenerReport, stranger, 3}, {echoRequest, stranger, 64},
		{echoRequest, "2001:db8:1::5", 64}, {echoRequest, "2001:db8:1::5", 255},
	}
	for i, m := range forged {
		f.send(m, "2001:db8:1::5", uint16(1000+i))
	}
	// It is allowed, and comes after the others.
	f.send(message{echoRequest, "2001:db8:60::99", 64}, "2001:db8:1::5", 2000)
	_ = heard.SetDeadline(time.Now().Add(time.Minute))
	for b := make([]byte, 1500); ; {
		n, from, err := heard.ReadFrom(b)
		if err != nil {
			t.Fatal(fmt.Errorf("wait for the last packet: %w", err))
		}
		if n < 12 {
			continue
		}
		switch id := binary.BigEndian.Uint16(b[10:]); {
		case id == 2000:
			return
		case id >= 1000 && int(id) < 1000+len(forged):
			t.Errorf("a forged packet came from %s: %+v", from, forged[id-1000])
		}
	}
}

// A pod that policies isolate calls itself through a Service.
func TestPodCallsItself(t *testing.T) {
	for _, tc := range []struct {
		kind string
		Backend
	}{
		{"routed", BackendNFTables}, {"routed", BackendIPTablesNFT}, {"routed", BackendIPTablesLegacy},
		{"bridge", BackendNFTables}, {"bridge", BackendIPTablesNFT}, {"bridge", BackendIPTablesLegacy},
	} {
		kind := tc.kind
		t.Run(kind+" "+string(tc.Backend), func(t *testing.T) {
			w := newTopologyOf(t, tc.Backend)
			w.set(allow("db", "db"))
			db := w.newPod("db", "10.244.0.5")
			w.add(db, kind)
			if kind == "bridge" {
				w.node.IP("link", "set", "vdb", "type", "bridge_slave", "hairpin", "on")
			}
			const service, port = "10.96.0.1", 80
			w.node.Run(func() error {
				return errors.Join(netnstest.Redirect(service, port, "10.244.0.5"), netnstest.Masquerade())
			})
			var listener net.Listener
			db.Run(func() (err error) { listener, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); return err })
			t.Cleanup(func() { _ = listener.Close() })
			w.eventually("the pod calls itself", func() bool {
				var conn net.Conn
				err := db.Try(func() (err error) {
					conn, err = net.DialTimeout("tcp", fmt.Sprintf("%s:%d", service, port), time.Second)
					return err
				})
				if err == nil {
					_ = conn.Close()
				}
				return err == nil
			})
		})
	}
}
