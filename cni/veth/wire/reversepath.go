// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
)

// acceptReversePath accepts packets to the pods of a network that the node's reverse path filter
// would drop, because the node reaches their senders by another link: the pool's link is a VLAN or
// a second uplink. Then the filter looks up the way back with the mark that package netfilter gives
// these packets (and ARP requests for the pods), and finds the network's table. It stays unchanged
// for all other packets.
func (w *Wirer) acceptReversePath(uplink netlink.Link, n poolNetwork) error {
	drops, err := w.reversePathDrops(uplink, n)
	if err != nil || !drops {
		return err
	}
	if err := w.Settings.Keep(srcValidMark(uplink), "1"); err != nil {
		return err
	}
	return rtnl.SetIPv4(uplink, rtnl.Devconf{rtnl.SrcValidMark: 1})
}

// AcceptAnswers accepts replies that come by a link from a subnet or through its gateway, for
// connections that the node forwards by this link although its own routes differ: by the mark of
// these replies the filter finds the link. It does nothing if the kernel accepts the replies
// already.
func (w *Wirer) AcceptAnswers(link int, subnet netip.Prefix, gateway netip.Addr) error {
	on, err := netlink.LinkByIndex(link)
	if err != nil {
		return fmt.Errorf("find link %d: %w", link, err)
	}
	if !subnet.Addr().Is4() {
		return nil
	}
	return errors.Join(w.forwardUplink(on), w.acceptReversePath(on, poolNetwork{on.Attrs().Name, link, subnet, gateway}))
}

func srcValidMark(link netlink.Link) string {
	return "net/ipv4/conf/" + link.Attrs().Name + "/src_valid_mark"
}

// checkReversePath returns ErrSysctl if acceptReversePath would change something.
func (w *Wirer) checkReversePath(uplink netlink.Link, n poolNetwork) error {
	drops, err := w.reversePathDrops(uplink, n)
	if err == nil && drops {
		return fmt.Errorf("%w: %s must be 1, or reverse path filtering drops packets to pods of %s", ErrSysctl, srcValidMark(uplink), n.subnet)
	}
	return err
}

// Values of net.ipv4.conf.*.rp_filter; the greater one of "all" and the link counts.
const (
	strict = "1"
	loose  = "2"
)

func (w *Wirer) reversePathDrops(uplink netlink.Link, n poolNetwork) (bool, error) {
	if !n.subnet.Addr().Is4() {
		return false, nil
	}
	name := uplink.Attrs().Name
	marks, err := w.greatest("src_valid_mark", name)
	if err != nil || marks != "0" {
		return false, err
	}
	return w.filterDrops(uplink, n)
}

// filterDrops reports whether the filter drops packets without a mark from hosts of the network, or
// through its gateway.
func (w *Wirer) filterDrops(uplink netlink.Link, n poolNetwork) (bool, error) {
	if !n.subnet.Addr().Is4() {
		return false, nil
	}
	name := uplink.Attrs().Name
	filter, err := w.greatest("rp_filter", name)
	if err != nil || filter != strict && filter != loose {
		return false, err
	}
	addrs, err := rtnl.Addresses(uplink, unix.AF_INET)
	if err != nil {
		return false, err
	}
	// The senders are a host of the subnet, its gateway, which may be outside of it, and a host behind
	// the gateway.
	senders := []netip.Addr{n.subnet.Addr().Next(), elsewhere}
	if n.gateway.IsValid() {
		senders = append(senders, n.gateway)
	}
	for _, sender := range senders {
		link, err := wayTo(sender)
		if err != nil {
			return false, err
		}
		// A loose filter is satisfied with any route, but only on links with addresses.
		if link != n.index && (filter == strict || len(addrs) == 0 || link == 0) {
			return true, nil
		}
	}
	return false, nil
}

// greatest returns the greater value of an IPv4 setting of all links and of a link.
func (w *Wirer) greatest(key, link string) (string, error) {
	all, err := w.Sysctl("net/ipv4/conf/all/" + key)
	if err != nil {
		return "", err
	}
	one, err := w.Sysctl("net/ipv4/conf/" + link + "/" + key)
	return max(all, one), err
}

// elsewhere is an address that only the default route reaches (RFC 5737).
var elsewhere = netip.AddrFrom4([4]byte{192, 0, 2, 1})

// wayTo returns the index of the link by which the node sends its own packets to an address, 0
// without a route.
func wayTo(addr netip.Addr) (int, error) {
	routes, err := netlink.RouteGet(net.IP(addr.AsSlice()))
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EACCES), errors.Is(err, unix.EINVAL):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("find the route to %s: %w", addr, err)
	case len(routes) == 0:
		return 0, nil
	}
	return routes[0].LinkIndex, nil
}
