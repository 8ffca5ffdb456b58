// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/frame"
)

// Target is an address that a pod is about to get, or has.
type Target struct {
	Address netip.Addr
	// Link is the index of the node's link to the network of the address.
	Link int
	// Own, if given, is the MAC that the pod's interface has on every node: an answer with it is no
	// conflict.
	Own net.HardwareAddr
}

// Conflict is a host that has an address, or says so.
type Conflict struct {
	Address netip.Addr
	MAC     net.HardwareAddr
	// Link is the name of the link by which the answer came.
	Link string
}

func (c Conflict) String() string {
	return fmt.Sprintf("%s is in use by the host with MAC %s on %s", c.Address, c.MAC, c.Link)
}

// Answer is a host's answer for an address, with its MAC. Owner: the host has the address itself;
// proxies do not answer IPv4 probes, and answer IPv6 probes without the flag "override".
type Answer struct {
	Address netip.Addr
	MAC     net.HardwareAddr
	Owner   bool
}

// segment is a link and a family, with the socket for it.
type segment struct {
	link *net.Interface
	is4  bool
	conn *packet.Conn
}

// ethernet returns a link, nil if it is not Ethernet. Package net would list the links of all pods.
func ethernet(index int) (*net.Interface, error) {
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return nil, fmt.Errorf("find link %d: %w", index, err)
	}
	a := link.Attrs()
	if len(a.HardwareAddr) != 6 || a.Flags&net.FlagBroadcast == 0 {
		return nil, nil
	}
	return &net.Interface{Index: a.Index, MTU: a.MTU, Name: a.Name, HardwareAddr: a.HardwareAddr, Flags: a.Flags}, nil
}

func (s *segment) listen() (*packet.Conn, error) {
	filter, err := s.filter(nil)
	if err != nil {
		return nil, err
	}
	protocol := unix.ETH_P_IPV6
	if s.is4 {
		protocol = unix.ETH_P_ARP
	}
	return packet.Listen(s.link, packet.Raw, protocol, &packet.Config{Filter: filter})
}

func (s *segment) send(f []byte) error {
	if _, err := s.conn.WriteTo(f, &packet.Addr{HardwareAddr: f[:6]}); err != nil {
		return fmt.Errorf("send on link %s: %w", s.link.Name, err)
	}
	return nil
}

// repliesPass lets only ARP replies to a MAC pass a filter: replies to all hosts are announcements
// of other nodes.
func repliesPass(mac net.HardwareAddr, pass bpf.Instruction) []bpf.Instruction {
	const arpOperation = 14 + 6
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: 0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(mac), SkipTrue: 5},
		bpf.LoadAbsolute{Off: 4, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(binary.BigEndian.Uint16(mac[4:])), SkipTrue: 3},
		bpf.LoadAbsolute{Off: arpOperation, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(frame.ARPReply), SkipTrue: 1},
		pass,
	}
}

// answer reads an answer. ok is false for frames of this link itself, and for frames that are no
// answers.
func (s *segment) answer(f []byte) (answer Answer, ok bool) {
	if !s.is4 {
		a, ok := frame.ParseAdvertisement(f)
		return Answer{a.Target, a.MAC, a.Flags&frame.FlagOverride != 0}, ok && !bytes.Equal(a.MAC, s.link.HardwareAddr)
	}
	// Announcements go to all hosts. Nodes of Berth repeat them, maybe a moment too long.
	a, to, ok := frame.ParseARP(f)
	ok = ok && a.Operation == frame.ARPReply && bytes.Equal(to, s.link.HardwareAddr) && !bytes.Equal(a.SenderMAC, s.link.HardwareAddr)
	// A reply has the address of the host that asked as its target (RFC 826), and a probe has none
	// (RFC 5227, section 2.1.1).
	return Answer{a.Sender, a.SenderMAC, ok && (a.Target.IsUnspecified() || a.Target == a.Sender)}, ok
}
