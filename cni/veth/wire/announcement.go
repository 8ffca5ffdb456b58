// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/frame"
	"github.com/berth-dev/berth/cni/rtnl"
)

// Announce tells the network that the addresses are here now. It sends an unsolicited neighbour
// advertisement, or gratuitous ARP: a request and a reply, because some receivers heed only
// requests and some only replies. It leaves out addresses for which the node does not answer now.
func (w *Wirer) Announce(spec Spec) error {
	if spec.Routed {
		return nil
	}
	var errs []error
	for _, a := range spec.Addresses {
		if a.Routed {
			continue
		}
		link, err := uplinkOf(spec.Uplink, a.VLAN)
		answers := false
		if err == nil {
			answers, err = Answers(link.Attrs().Index, a.Address)
		}
		if answers {
			err = AnnounceOn(link, a.Address, true)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// AnnounceAt is AnnounceOn for a link by its index.
func AnnounceAt(index int, addr netip.Addr, byProxy bool) error {
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return fmt.Errorf("announce %s: %w", addr, err)
	}
	return AnnounceOn(link, addr, byProxy)
}

// AnnounceOn tells the network of a link that the address is at the link's MAC address. byProxy
// says that the node answers for the address there, and not the address's own host. It works in the
// network namespace of the calling thread.
func AnnounceOn(link netlink.Link, addr netip.Addr, byProxy bool) error {
	if err := announce(link, addr, byProxy); err != nil {
		return fmt.Errorf("announce %s: %w", addr, err)
	}
	return nil
}

func announce(link netlink.Link, addr netip.Addr, byProxy bool) error {
	mac := link.Attrs().HardwareAddr
	if len(mac) != 6 {
		return fmt.Errorf("link %s has no Ethernet address", link.Attrs().Name)
	}
	if addr.Is4() {
		return send(link.Attrs().Index, unix.ETH_P_ARP, [][]byte{arpFrame(mac, addr, frame.ARPRequest), arpFrame(mac, addr, frame.ARPReply)})
	}
	source, err := linkLocal(link)
	if err != nil {
		return err
	}
	return send(link.Attrs().Index, unix.ETH_P_IPV6, [][]byte{advertisement(mac, source, addr, byProxy)})
}

// linkLocal returns the link's own link-local address, which routers expect as the source of an
// advertisement. It returns the unspecified address if the link has none.
func linkLocal(link netlink.Link) (netip.Addr, error) {
	addrs, err := rtnl.Addresses(link, unix.AF_INET6)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range addrs {
		if addr, ok := netip.AddrFromSlice(a.IP); ok && addr.IsLinkLocalUnicast() {
			return addr, nil
		}
	}
	return netip.IPv6Unspecified(), nil
}

// arpFrame returns a gratuitous ARP for an IPv4 address (RFC 5227, section 3).
func arpFrame(mac net.HardwareAddr, addr netip.Addr, op uint16) []byte {
	packet := frame.ARP{Operation: op, SenderMAC: mac, Sender: addr, Target: addr}
	if op == frame.ARPReply {
		packet.TargetMAC = mac
	}
	return packet.To(frame.Broadcast())
}

// advertisement returns an unsolicited neighbour advertisement to all nodes (RFC 4861, section
// 7.2.6) with the flag override, and with the flag router if the node answers by proxy: the kernel
// of a forwarding node sets this flag in its answers, the kernel of a container does not.
func advertisement(mac net.HardwareAddr, source, target netip.Addr, byProxy bool) []byte {
	if source.IsUnspecified() {
		source = target
	}
	tgt := target.As16()

	flags := byte(frame.FlagOverride)
	if byProxy {
		flags |= frame.FlagRouter
	}
	icmp := make([]byte, 0, 32)
	icmp = append(icmp, frame.NeighborAdvertisement, 0, 0, 0, flags, 0, 0, 0)
	icmp = append(icmp, tgt[:]...)
	icmp = append(icmp, 2, 1)
	icmp = append(icmp, mac...)
	return toAllNodes(mac, source, icmp)
}

// toAllNodes returns the frame of an ICMPv6 message to all nodes of the link.
func toAllNodes(mac net.HardwareAddr, source netip.Addr, icmp []byte) []byte {
	return frame.ICMPv6(mac, net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, source, netip.IPv6LinkLocalAllNodes(), icmp)
}

func send(link int, protocol uint16, frames [][]byte) error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open packet socket: %w", err)
	}
	defer unix.Close(fd)
	to := &unix.SockaddrLinklayer{Ifindex: link, Protocol: protocol<<8 | protocol>>8, Halen: 6}
	for _, f := range frames {
		copy(to.Addr[:], f[:6])
		if err := unix.Sendto(fd, f, 0, to); err != nil {
			return fmt.Errorf("send on link %d: %w", link, err)
		}
	}
	return nil
}
