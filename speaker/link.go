// SPDX-License-Identifier: Apache-2.0

package speaker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
)

// advertising is the least time between two router advertisements (RFC 4861, section 10). The most
// is resync.
const advertising = 3 * time.Second

// linkLocal has the addresses of one link only.
var linkLocal = netip.MustParsePrefix("fe80::/10")

// resolve finds the router at the peer's interface, says there that the node is one, and returns
// the node's end.
func (p *entry) resolve() (source netip.Addr, err error) {
	if p.session != nil && p.session.Interface == p.Interface {
		p.Peer = p.session.Peer
	}
	link, err := netlinksafe.LinkByName(p.Interface)
	if err != nil {
		return source, fmt.Errorf("find spec.peer.interface, %s: %w", p.Interface, err)
	}
	all, err := rtnl.Addresses(link, netlink.FAMILY_V6)
	if err != nil {
		return source, err
	}
	if source = lowest(all, linkLocal, netlink.SCOPE_LINK).WithZone(p.Interface); !source.IsValid() {
		return source, fmt.Errorf("link %s has no link-local IPv6 address: it must be up, and have IPv6", p.Interface)
	}
	if time.Since(p.advertised) >= advertising {
		p.unadvertised = ""
		if err := advertise(link, source); err != nil {
			p.unadvertised = fmt.Sprintf("; the router may need router advertisements of this node at link %s: %s", p.Interface, err)
		}
		p.advertised = time.Now()
	}
	routers, err := routersAt(link)
	if err != nil {
		return source, err
	}
	if p.Peer = p.next(routers); !p.Peer.IsValid() {
		return source, fmt.Errorf("no router advertises itself at link %s: have the router send router advertisements%s", p.Interface, p.unadvertised)
	}
	return source, nil
}

// next returns the router of the session: the same one until an attempt has failed. The kernel
// knows the address that a router had before until it does not answer there.
func (p *entry) next(routers []netip.Addr) netip.Addr {
	at := slices.Index(routers, p.Peer)
	if p.Peer.IsValid() {
		if state := p.session.State(); state.Established || len(routers) == 0 || at >= 0 && state.Why == "" {
			return p.Peer
		}
	}
	if len(routers) == 0 {
		return netip.Addr{}
	}
	return routers[(at+1)%len(routers)]
}

// routersAt returns the link-local addresses of routers at a link, of which the kernel knows by
// router advertisements or neighbour discovery. It does not know that a neighbour is a router where
// advertisements have no link-layer address: so all are, where none is known to be one.
func routersAt(link netlink.Link) ([]netip.Addr, error) {
	neighbours, err := rtnl.Neighbors(link.Attrs().Index, netlink.FAMILY_V6)
	if err != nil {
		return nil, err
	}
	var all, routers []netip.Addr
	for i := range neighbours {
		addr, _ := netip.AddrFromSlice(neighbours[i].IP)
		if !addr.Is6() || !addr.IsLinkLocalUnicast() || neighbours[i].State&netlink.NUD_FAILED != 0 {
			continue
		}
		addr = addr.WithZone(link.Attrs().Name)
		all = append(all, addr)
		if neighbours[i].Flags&netlink.NTF_ROUTER != 0 {
			routers = append(routers, addr)
		}
	}
	if len(routers) == 0 {
		routers = all
	}
	slices.SortFunc(routers, netip.Addr.Compare)
	return routers, nil
}

// advertise tells a link of the node's link-local address by a router advertisement: routers that
// know a neighbor by its interface learn its address from nothing else. By its lifetime of 0 the
// node is nobody's default router.
func advertise(link netlink.Link, source netip.Addr) error {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var hops, loop error
		err := raw.Control(func(fd uintptr) {
			hops = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255)
			loop = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_LOOP, 0)
		})
		return errors.Join(hops, loop, err)
	}}
	conn, err := config.ListenPacket(context.Background(), "ip6:ipv6-icmp", source.String())
	if errors.Is(err, unix.EPERM) {
		return errors.New("the speaker must have CAP_NET_RAW for that: set the chart's value speaker.unnumbered")
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	// RFC 4861, section 4.2, with the source's link-layer address. The kernel fills the checksum in.
	message := append([]byte{134, 15: 0}, 1, 1)
	_, err = conn.WriteTo(append(message, link.Attrs().HardwareAddr...), &net.IPAddr{IP: net.IPv6linklocalallnodes, Zone: source.Zone()})
	return err
}
