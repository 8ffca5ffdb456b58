// SPDX-License-Identifier: Apache-2.0

// Package socket lists the connections of the sockets of a network namespace, and which side began
// each. The kernel tracks connections only on request, in the namespace of a pod from its first
// policy on; the sockets show older connections.
//
// A connection began at the other side if a socket of the namespace listens at its local port, or
// is an unconnected UDP socket there; otherwise at this side. So a connection whose listener is
// closed by now counts as begun by this side. Connections of SCTP, and of unconnected UDP sockets,
// are not known.
package socket

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
)

// Connection is a connection of TCP or UDP.
type Connection struct {
	Protocol byte
	// From began the connection.
	From, To netip.AddrPort
	// Local is the address of this side.
	Local netip.Addr
	// Certain says that a listening socket shows which side began.
	Certain bool
}

// Connections lists the connections that lead out of the network namespace at a path. It blocks for
// the kernel.
func Connections(netns string) ([]Connection, error) {
	var all []Connection
	err := rtnl.InNetNS(netns, func() error {
		for protocol, list := range map[byte]func(family uint8) ([]*netlink.Socket, error){unix.IPPROTO_TCP: netlink.SocketDiagTCP, unix.IPPROTO_UDP: netlink.SocketDiagUDP} {
			// The kernel lists the listening sockets first, and a socket may begin to listen meanwhile. So
			// sockets are listed again.
			var sockets, again []*netlink.Socket
			for _, to := range []*[]*netlink.Socket{&sockets, &again} {
				for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
					some, err := list(family)
					// Connections of sockets that come or go meanwhile are tracked by now, or gone.
					if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
						return fmt.Errorf("list the sockets of network namespace %s (does the kernel have tcp_diag and udp_diag?): %w", netns, err)
					}
					*to = append(*to, some...)
				}
			}
			all = append(all, connections(protocol, sockets, again)...)
		}
		return nil
	})
	return all, err
}

// connections lists the connections of a protocol's sockets; a later list of them shows which
// listen as well.
func connections(protocol byte, sockets, later []*netlink.Socket) []Connection {
	listens := map[uint16]bool{}
	for _, s := range slices.Concat(sockets, later) {
		// For UDP TCP_CLOSE means not connected.
		if s.State == netlink.TCP_LISTEN || protocol == unix.IPPROTO_UDP && s.State == netlink.TCP_CLOSE {
			listens[s.ID.SourcePort] = true
		}
	}
	var all []Connection
	for _, s := range sockets {
		switch s.State {
		case netlink.TCP_ESTABLISHED, netlink.TCP_FIN_WAIT1, netlink.TCP_FIN_WAIT2, netlink.TCP_CLOSE_WAIT, netlink.TCP_LAST_ACK, netlink.TCP_CLOSING:
		default:
			continue
		}
		source, _ := netip.AddrFromSlice(s.ID.Source)
		destination, _ := netip.AddrFromSlice(s.ID.Destination)
		local, remote := netip.AddrPortFrom(source.Unmap(), s.ID.SourcePort), netip.AddrPortFrom(destination.Unmap(), s.ID.DestinationPort)
		if !leaves(local.Addr()) || !leaves(remote.Addr()) || local.Addr() == remote.Addr() || remote.Port() == 0 {
			continue
		}
		c := Connection{Protocol: protocol, From: local, To: remote, Local: local.Addr(), Certain: listens[local.Port()]}
		if c.Certain {
			c.From, c.To = remote, local
		}
		all = append(all, c)
	}
	return all
}

// leaves reports whether packets of an address may leave the namespace; link-local addresses do not
// count.
func leaves(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast()
}
