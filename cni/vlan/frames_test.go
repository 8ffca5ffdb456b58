// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	google "github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/frame"
	"github.com/berth-dev/berth/cni/nftables"
)

var (
	gateway4, gateway6 = netip.MustParseAddr("10.0.70.1"), netip.MustParseAddr("2001:db8:70::1")
	routerLinkLocal    = netip.MustParseAddr("fe80::1")
	allNodes           = netip.MustParseAddr("ff02::1")
	allNodesMAC        = net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
	foreignMAC         = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x66}
)

// sent is a frame that a container sends, and whether it may. socket is the protocol that it
// claims to its kernel, 0 for the frame's.
type sent struct {
	frame  []byte
	socket uint16
	may    bool
}

// speaker is the interface of a container that sends.
type speaker struct {
	mac           net.HardwareAddr
	v4, v6, local netip.Addr
}

// speakerOf reads the interface.
func speakerOf(t *testing.T, p *pod) speaker {
	t.Helper()
	s := speaker{v4: p.spec.Addresses[0].Address, v6: p.spec.Addresses[1].Address}
	netnstest.Eventually(t, func() error {
		return p.Try(func() error {
			link, err := net.InterfaceByName("eth0")
			if err != nil {
				return err
			}
			s.mac = link.HardwareAddr
			addrs, err := link.Addrs()
			if err != nil {
				return err
			}
			for _, a := range addrs {
				if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr().IsLinkLocalUnicast() {
					s.local = prefix.Addr()
					return nil
				}
			}
			return errors.New("eth0 has no link-local address yet")
		})
	})
	return s
}

// neighbour is a neighbour solicitation or advertisement.
func neighbour(kind, flags byte, target netip.Addr) []byte {
	addr := target.As16()
	return append([]byte{kind, 0, 0, 0, flags, 0, 0, 0}, addr[:]...)
}

func (s speaker) icmp(source netip.Addr, message []byte) []byte {
	return frame.ICMPv6(s.mac, allNodesMAC, source, allNodes, bytes.Clone(message))
}

func (s speaker) arp(operation uint16, mac net.HardwareAddr, sender, target netip.Addr) []byte {
	f := frame.ARP{Operation: operation, SenderMAC: mac, Sender: sender, Target: target}.To(frame.Broadcast())
	copy(f[6:12], s.mac)
	return f
}

func ethernet(mac net.HardwareAddr, ethertype uint16, payload []byte) []byte {
	f := append(bytes.Clone(frame.Broadcast()), mac...)
	return append(binary.BigEndian.AppendUint16(f, ethertype), payload...)
}

func (s speaker) ipv4(source netip.Addr, protocol byte, payload []byte) []byte {
	src := source.As4()
	p := []byte{0x45, 0, 0, byte(20 + len(payload)), 0, 1, 0, 0, 64, protocol, 0, 0}
	p = append(append(p, src[:]...), 10, 0, 70, 50)
	var sum uint32
	for i := 0; i < len(p); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	binary.BigEndian.PutUint16(p[10:], ^uint16(sum>>16+sum))
	return ethernet(s.mac, unix.ETH_P_IP, append(p, payload...))
}

func (s speaker) ipv6(source netip.Addr, next byte, payload []byte) []byte {
	src, dst := source.As16(), allNodes.As16()
	p := append([]byte{0x60, 0, 0, 0, 0, byte(len(payload)), next, 255}, src[:]...)
	return ethernet(s.mac, unix.ETH_P_IPV6, append(append(p, dst[:]...), payload...))
}

func udp(from, to uint16) []byte {
	p := binary.BigEndian.AppendUint16(nil, from)
	p = binary.BigEndian.AppendUint16(p, to)
	return append(p, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8)
}

func tagged(f []byte, tpid, vlan uint16) []byte {
	t := binary.BigEndian.AppendUint16(bytes.Clone(f[:12]), tpid)
	return append(binary.BigEndian.AppendUint16(t, vlan), f[12:]...)
}

// last is a frame that the container may send.
func (s speaker) last() []byte {
	return s.arp(frame.ARPRequest, s.mac, s.v4, netip.MustParseAddr("10.0.70.51"))
}

// frames lists frames that a container may and may not send.
func (s speaker) frames() map[string]sent {
	const request, reply = frame.ARPRequest, frame.ARPReply
	const solicits, advertises = frame.NeighborSolicitation, frame.NeighborAdvertisement
	const router, override = frame.FlagRouter, frame.FlagOverride
	unspecified4, unspecified6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	other4, other6 := netip.MustParseAddr("10.0.70.60"), netip.MustParseAddr("2001:db8:70::60")
	peer := netip.MustParseAddr("10.0.70.50")
	// Their lifetimes tell them apart, as ports do it for packets.
	ra := func(lifetime byte) []byte { return []byte{134, 0, 0, 0, 64, 0, 7, lifetime, 0, 0, 0, 0, 0, 0, 0, 0} }
	plain := func(port uint16) []byte { return s.ipv4(s.v4, unix.IPPROTO_UDP, udp(1000, port)) }
	hopByHop := []byte{unix.IPPROTO_ICMPV6, 0, 1, 4, 0, 0, 0, 0}
	fragment := []byte{unix.IPPROTO_ICMPV6, 0, 0, 1, 0, 0, 0, 9}
	// An ARP reply for the router with the bytes of an IPv4 packet of the container, for a kernel
	// that believes the socket: the source address is at bytes 12 to 15.
	own := s.v4.As4()
	asIPv4 := s.arp(reply, net.HardwareAddr{s.mac[0], s.mac[1], s.mac[2], s.mac[3], own[0], own[1]}, netip.AddrFrom4([4]byte{own[2], own[3], 0, 1}), peer)
	return map[string]sent{
		"ARP request":                            {frame: s.arp(request, s.mac, s.v4, peer), may: true},
		"ARP reply":                              {frame: s.arp(reply, s.mac, s.v4, peer), may: true},
		"ARP probe for its address":              {frame: s.arp(request, s.mac, unspecified4, s.v4), may: true},
		"advertisement":                          {frame: s.icmp(s.v6, neighbour(advertises, override, s.v6)), may: true},
		"advertisement of its link-local":        {frame: s.icmp(s.local, neighbour(advertises, override, s.local)), may: true},
		"solicitation":                           {frame: s.icmp(s.v6, neighbour(solicits, 0, other6)), may: true},
		"solicitation of its link-local":         {frame: s.icmp(s.local, neighbour(solicits, 0, routerLinkLocal)), may: true},
		"duplicate address detection":            {frame: s.icmp(unspecified6, neighbour(solicits, 0, s.v6)), may: true},
		"the same for its link-local":            {frame: s.icmp(unspecified6, neighbour(solicits, 0, s.local)), may: true},
		"router solicitation":                    {frame: s.icmp(s.local, []byte{133, 0, 0, 0, 0, 0, 0, 0}), may: true},
		"multicast listener":                     {frame: s.ipv6(unspecified6, 0, append(bytes.Clone(hopByHop), 143, 0, 0, 0, 0, 0, 0, 0)), may: true},
		"IPv4":                                   {frame: s.ipv4(s.v4, unix.IPPROTO_UDP, udp(68, 67)), may: true},
		"IPv6":                                   {frame: s.ipv6(s.v6, unix.IPPROTO_UDP, udp(1000, 1000)), may: true},
		"multicast DNS":                          {frame: s.ipv6(s.local, unix.IPPROTO_UDP, udp(5353, 5353)), may: true},
		"ARP reply of the router":                {frame: s.arp(reply, s.mac, gateway4, peer)},
		"ARP request of the router":              {frame: s.arp(request, s.mac, gateway4, peer)},
		"ARP reply with another MAC":             {frame: s.arp(reply, foreignMAC, s.v4, peer)},
		"ARP probe for another address":          {frame: s.arp(request, s.mac, unspecified4, other4)},
		"advertisement of the router":            {frame: s.icmp(s.v6, neighbour(advertises, router|override, gateway6))},
		"advertisement of the router, own":       {frame: s.icmp(s.local, neighbour(advertises, router|override, routerLinkLocal))},
		"advertisement as the router":            {frame: s.icmp(routerLinkLocal, neighbour(advertises, router|override, routerLinkLocal))},
		"its advertisement as the router":        {frame: s.icmp(routerLinkLocal, neighbour(advertises, 0, s.v6))},
		"solicitation as the router":             {frame: s.icmp(routerLinkLocal, neighbour(solicits, 0, other6))},
		"packet as the router":                   {frame: s.ipv6(routerLinkLocal, unix.IPPROTO_UDP, udp(1000, 1000))},
		"duplicate address detection of another": {frame: s.icmp(unspecified6, neighbour(solicits, 0, other6))},
		"the same for the router":                {frame: s.icmp(unspecified6, neighbour(solicits, 0, routerLinkLocal))},
		"advertisement from no address":          {frame: s.icmp(unspecified6, neighbour(advertises, 0, s.v6))},
		"router advertisement":                   {frame: s.icmp(s.local, ra(1))},
		"router advertisement as the router":     {frame: s.icmp(routerLinkLocal, ra(2))},
		"router advertisement behind an option":  {frame: s.ipv6(s.local, 0, append(bytes.Clone(hopByHop), ra(3)...))},
		"fragment of a router advertisement":     {frame: s.ipv6(s.local, 44, append(bytes.Clone(fragment), ra(4)...))},
		"redirect":                               {frame: s.icmp(s.local, append([]byte{137, 0, 0, 0, 0, 0, 0, 0}, make([]byte, 32)...))},
		"IPv4 redirect":                          {frame: s.ipv4(s.v4, unix.IPPROTO_ICMP, []byte{5, 1, 0, 0, 10, 0, 70, 5})},
		"DHCP offer":                             {frame: s.ipv4(s.v4, unix.IPPROTO_UDP, udp(67, 68))},
		"DHCPv6 advertisement":                   {frame: s.ipv6(s.local, unix.IPPROTO_UDP, udp(547, 546))},
		"DHCPv6 advertisement, global":           {frame: s.ipv6(s.v6, unix.IPPROTO_UDP, udp(547, 546))},
		"IPv4 of another":                        {frame: s.ipv4(other4, unix.IPPROTO_UDP, udp(1000, 1000))},
		"IPv6 of another":                        {frame: s.ipv6(other6, unix.IPPROTO_UDP, udp(1000, 1000))},
		"VLAN 7":                                 {frame: tagged(plain(2001), unix.ETH_P_8021Q, 7)},
		"ARP of VLAN 7":                          {frame: tagged(s.arp(reply, s.mac, s.v4, other4), unix.ETH_P_8021Q, 7)},
		"VLAN 0":                                 {frame: tagged(plain(2002), unix.ETH_P_8021Q, 0)},
		"service VLAN":                           {frame: tagged(plain(2003), unix.ETH_P_8021AD, 7)},
		"two tags":                               {frame: tagged(tagged(plain(2004), unix.ETH_P_8021Q, 7), unix.ETH_P_8021AD, 0)},
		"VLAN 7, said to be IPv4":                {frame: tagged(plain(2005), unix.ETH_P_8021Q, 7), socket: unix.ETH_P_IP},
		"another protocol":                       {frame: ethernet(s.mac, 0x88cc, make([]byte, 46))},
		"ARP, said to be IPv4":                   {frame: asIPv4, socket: unix.ETH_P_IP},
		"router advertisement, said to be IPv4":  {frame: s.icmp(s.local, ra(5)), socket: unix.ETH_P_IP},
		"router advertisement, said to be ARP":   {frame: s.icmp(s.local, ra(6)), socket: unix.ETH_P_ARP},
		"advertisement, said to be something":    {frame: s.icmp(s.local, neighbour(advertises, override, routerLinkLocal)), socket: 0x88b5},
		"the router's ARP from another MAC":      {frame: speaker{mac: foreignMAC}.arp(reply, foreignMAC, gateway4, peer)},
		"its advertisement from another MAC":     {frame: speaker{mac: foreignMAC}.icmp(s.v6, neighbour(advertises, router|override, gateway6))},
		"IPv4 from another MAC":                  {frame: speaker{mac: foreignMAC}.ipv4(s.v4, unix.IPPROTO_UDP, udp(1000, 1000))},
		"ARP from another MAC":                   {frame: speaker{mac: foreignMAC}.arp(reply, foreignMAC, s.v4, peer)},
	}
}

// arrived sends the frames from a container's eth0 and returns which of them arrive at the link
// of a host. The last frame is one that the container may send.
func arrived(t *testing.T, p *pod, bypass bool, frames map[string]sent, last []byte, at *netnstest.Host, link string) map[string]bool {
	t.Helper()
	var receiver *packet.Conn
	at.Run(func() error {
		dev, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		receiver, err = packet.Listen(dev, packet.Raw, unix.ETH_P_ALL, nil)
		return err
	})
	defer receiver.Close()
	const end = "the last one"
	names := map[string]string{untagged(last): end}
	for name, f := range frames {
		if other := names[untagged(f.frame)]; other != "" {
			t.Fatalf("%s is the same frame as %s", name, other)
		}
		names[untagged(f.frame)] = name
	}
	p.Run(func() error {
		for name, f := range frames {
			if err := send(f.frame, f.socket, bypass); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return send(last, 0, false)
	})
	got := map[string]bool{}
	if err := receiver.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 1<<16)
	for !got[end] {
		n, _, err := receiver.ReadFrom(buffer)
		if err != nil {
			t.Fatalf("wait for a frame that the container may send: %v", err)
		}
		got[names[untagged(buffer[:n])]] = true
	}
	return got
}

// untagged identifies a frame: the kernel takes tags from frames that it receives.
func untagged(f []byte) string {
	addresses := string(f[:12])
	for f = f[12:]; len(f) > 4 && (f[0] == 0x81 && f[1] == 0 || f[0] == 0x88 && f[1] == 0xa8); {
		f = f[4:]
	}
	return addresses + string(f)
}

// send sends a frame on eth0; bypass leaves out the queue, which a socket may. The kernel says
// so where it drops a frame.
func send(f []byte, protocol uint16, bypass bool) error {
	link, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(socket)
	if bypass {
		if err := unix.SetsockoptInt(socket, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	if protocol == 0 {
		protocol = binary.BigEndian.Uint16(f[12:14])
	}
	network := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, protocol))
	err = unix.Sendto(socket, f, 0, &unix.SockaddrLinklayer{Protocol: network, Ifindex: link.Index, Halen: 6})
	if err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EPERM) {
		return os.NewSyscallError("sendto", err)
	}
	return nil
}

// compare sends the frames and checks which of them arrive.
func compare(t *testing.T, p *pod, bypass bool, at *netnstest.Host, link string, may func(name string, f sent) bool) {
	t.Helper()
	s := speakerOf(t, p)
	frames := s.frames()
	got := arrived(t, p, bypass, frames, s.last(), at, link)
	for name, f := range frames {
		if want := may(name, f); got[name] != want {
			t.Errorf("%s: arrived is %v, want %v", name, got[name], want)
		}
	}
}

// A container sends frames of its own addresses alone, with any protocol that it claims to its
// kernel: it is no router, no DHCP server, and in no other VLAN.
func TestFrames(t *testing.T) {
	t.Parallel()
	eachPlain(t, func(t *testing.T, w *topology) {
		p, neighbour := w.pod("a", "10.0.70.5", "2001:db8:70::5"), w.pod("b", "10.0.70.6")
		w.setup(w.nodeA, p)
		w.setup(w.nodeA, neighbour)
		may := func(_ string, f sent) bool { return f.may }
		t.Run("to a host", func(t *testing.T) { compare(t, p, false, w.client, "eth0", may) })
		t.Run("to a container", func(t *testing.T) { compare(t, p, false, neighbour.Host, "eth0", may) })
		t.Run("without a queue", func(t *testing.T) {
			s := speakerOf(t, p)
			got := arrived(t, p, true, s.frames(), s.last(), w.client, "eth0")
			for name, f := range s.frames() {
				// Some kernels do not find the Ethernet header of such a frame, and nothing
				// passes the rules in the container.
				if got[name] && !f.may || !got[name] && f.may && w.config.Mode == Bridge {
					t.Errorf("%s: arrived is %v, want %v", name, got[name], f.may)
				}
			}
		})
	})
}

// On the wire the guard on the node does without that in the container, which a container
// with privileges can remove, and sockets can pass by.
func TestFramesWithoutGuard(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		networkType
		needs []string
	}{
		"macvlan":           {networkType{Config{Mode: Macvlan}, 0}, []string{"macvlan"}},
		"macvlan on a VLAN": {networkType{Config{Mode: Macvlan}, 7}, []string{"vlan", "macvlan"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			netnstest.NeedLinks(t, c.needs...)
			w := newTopology(t, c.Config, c.vlan)
			before := snapshot(w.nodeA)
			p, neighbour := w.pod("a", "10.0.70.5", "2001:db8:70::5"), w.pod("b", "10.0.70.6")
			w.setup(w.nodeA, neighbour)
			w.setup(w.nodeA, p)
			p.Run(removeGuards)
			// Others may use the node's own link with MAC addresses of their own. A link that
			// Berth made has its containers alone.
			may := func(name string, f sent) bool { return f.may || c.vlan == 0 && fromForeign(f) && !claimsGateway(f) }
			for _, bypass := range []bool{false, true} {
				compare(t, p, bypass, w.client, w.poolLinkName(), may)
			}
			w.nodeA.Run(func() error {
				if err := w.drivers[w.nodeA].CheckNode(p.spec); !errors.Is(err, ErrNotWired) {
					t.Errorf("CheckNode() = %v, want ErrNotWired", err)
				}
				return nil
			})
			// An address comes back to its node in another container, before the old one is gone.
			again := w.pod("again", "10.0.70.5", "2001:db8:70::5")
			w.nodeA.Run(func() error { return w.drivers[w.nodeA].Withdraw(p.spec) })
			w.setup(w.nodeA, again)
			w.nodeA.Run(func() error { return w.drivers[w.nodeA].Teardown(p.spec) })
			again.Run(removeGuards)
			compare(t, again, false, w.client, w.poolLinkName(), may)
			for _, q := range []*pod{again, neighbour} {
				w.nodeA.Run(func() error { return w.drivers[w.nodeA].Teardown(q.spec) })
			}
			if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
				t.Errorf("(-before +after):\n%s", diff)
			}
		})
	}
}

func fromForeign(f sent) bool { return bytes.Equal(f.frame[6:12], foreignMAC) }

func claimsGateway(f sent) bool {
	four := gateway4.As4()
	return bytes.Contains(f.frame, four[:]) || bytes.Contains(f.frame, gateway6.AsSlice())
}

// A container with privileges changes the guard in it, and the agent notices.
func TestChangedGuard(t *testing.T) {
	t.Parallel()
	netnstest.NeedLinks(t, "macvlan")
	w := newTopology(t, Config{Mode: Macvlan}, 0)
	p, neighbour := w.pod("a", "10.0.70.5", "2001:db8:70::5"), w.pod("b", "10.0.70.6")
	w.setup(w.nodeA, p)
	w.setup(w.nodeA, neighbour)
	from := guardOf(p.spec, p.spec.segments()[0], nil).chains()[1]
	table := &google.Table{Family: google.TableFamilyNetdev, Name: TableName}
	chain := &google.Chain{Table: table, Name: from.Name}
	for name, change := range map[string]func(conn *google.Conn) error{
		"deleted": func(conn *google.Conn) error {
			conn.DelTable(table)
			return nil
		},
		"policy": func(*google.Conn) error {
			var tx nftables.Transaction
			accepts := *from.Base
			accepts.Drops = false
			tx.AddChain(guardTable(), &nftables.Chain{Name: from.Name, Base: &accepts})
			return tx.Commit()
		},
		"rules of the same text": func(conn *google.Conn) error {
			rules, err := conn.GetRules(table, chain)
			conn.FlushChain(chain)
			for _, r := range rules {
				conn.AddRule(&google.Rule{Table: table, Chain: chain, UserData: r.UserData, Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}})
			}
			return err
		},
		"a chain that sees nothing": func(*google.Conn) error {
			var tx nftables.Transaction
			tx.FlushChain(guardTable(), from.Name)
			tx.DeleteChain(guardTable(), from.Name)
			unseen := &nftables.Chain{Name: from.Name, Rules: from.Rules}
			tx.AddChain(guardTable(), unseen)
			tx.AddRules(guardTable(), unseen)
			return tx.Commit()
		},
	} {
		t.Run(name, func(t *testing.T) {
			p.Run(func() error {
				conn, err := google.New()
				if err != nil {
					return err
				}
				return errors.Join(change(conn), conn.Flush())
			})
			w.nodeA.Run(func() error {
				d := w.drivers[w.nodeA]
				if err := d.CheckNode(p.spec); !errors.Is(err, ErrNotWired) {
					t.Errorf("CheckNode() = %v, want ErrNotWired", err)
				}
				return errors.Join(d.Repair(p.spec), d.CheckNode(p.spec))
			})
			compare(t, p, false, neighbour.Host, "eth0", func(_ string, f sent) bool { return f.may })
		})
	}
}

func removeGuards() error {
	conn, err := google.New()
	if err != nil {
		return err
	}
	conn.DelTable(&google.Table{Family: google.TableFamilyNetdev, Name: TableName})
	return conn.Flush()
}
