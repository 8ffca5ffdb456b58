// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/cni/rtnl"
)

// ErrUplink is returned if the link to a pool's network is missing or down.
var ErrUplink = errors.New("uplink missing")

// UplinkFor returns the name of the link with addr, the node's own address.
func UplinkFor(addr netip.Addr) (string, error) {
	link, err := rtnl.LinkWith(addr.Unmap())
	if err != nil {
		return "", err
	}
	if link != nil {
		return link.Attrs().Name, nil
	}
	return "", fmt.Errorf("%w: no link of this node has the node's address %s; name the link with --uplink", ErrUplink, addr)
}

// UplinkOf returns the name of the link that patterns choose: globs (path.Match), separated by
// commas. The first glob that matches a link of the node counts. A single name is returned
// unchanged, because its link may come later.
func UplinkOf(patterns string) (string, error) {
	if !strings.ContainsAny(patterns, ",*?[") {
		return patterns, nil
	}
	links, err := netlinksafe.LinkList()
	if err != nil {
		return "", fmt.Errorf("list links, to find the uplink: %w", err)
	}
	for pattern := range strings.SplitSeq(patterns, ",") {
		var names []string
		for _, l := range links {
			matches, err := path.Match(strings.TrimSpace(pattern), l.Attrs().Name)
			if err != nil {
				return "", fmt.Errorf("%w: the pattern %q of %q: %w", ErrUplink, pattern, patterns, err)
			}
			if matches {
				names = append(names, l.Attrs().Name)
			}
		}
		switch len(names) {
		case 0:
		case 1:
			return names[0], nil
		default:
			slices.Sort(names)
			return "", fmt.Errorf("%w: the pattern %q of %q matches the links %s; write one that matches one of them, or name it before", ErrUplink, pattern, patterns, strings.Join(names, ", "))
		}
	}
	return "", fmt.Errorf("%w: no link of the node matches %q", ErrUplink, patterns)
}

// NetworkLink returns the index of the node's link to the network of an address.
func NetworkLink(uplink string, vlan int) (int, error) {
	link, err := uplinkOf(uplink, vlan)
	if err != nil {
		return 0, err
	}
	return link.Attrs().Index, nil
}

// uplinkOf returns the link for a VLAN on the uplink, and for VLAN 0 the uplink.
func uplinkOf(name string, vlan int) (netlink.Link, error) {
	parent, err := netlinksafe.LinkByName(name)
	if err != nil {
		if rtnl.LinkNotFound(err) {
			return nil, fmt.Errorf("%w: the node has no link %q", ErrUplink, name)
		}
		return nil, fmt.Errorf("find uplink %q: %w", name, err)
	}
	if vlan == 0 {
		return parent, nil
	}
	link, err := rtnl.VLANLink(parent, vlan)
	if err != nil || link != nil {
		return link, err
	}
	return nil, fmt.Errorf("%w: VLAN %d has no link on %s; create it: ip link add link %s name %s.%d type vlan id %d && ip link set %s.%d up",
		ErrUplink, vlan, name, name, name, vlan, vlan, name, vlan)
}

// Ready returns an error if the uplink is missing or down, or if kernel settings make the node
// answer for addresses that are not its pods'. It does not check VLAN links.
func (w *Wirer) Ready(uplink string) error {
	link, err := uplinkOf(uplink, 0)
	if err != nil {
		return err
	}
	if err := CheckUp(link); err != nil {
		return err
	}
	return w.checkAssumed(uplink)
}

// IsCut reports whether the uplink exists, but is down or has no carrier.
func IsCut(uplink string) (bool, error) {
	if uplink == "" {
		return false, nil
	}
	link, err := rtnl.LinkOrNil(uplink)
	return err == nil && link != nil && !rtnl.HasCarrier(link), err
}

// Forwards returns an error if the node's firewall refuses all packets between the uplink and pods.
func (w *Wirer) Forwards(uplink string) error { return w.firewall.Check(uplink) }

// CheckUp returns ErrUplink if a link to a pool's network is down.
func CheckUp(link netlink.Link) error {
	if link.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("%w: link %s is down; ip link set %s up", ErrUplink, link.Attrs().Name, link.Attrs().Name)
	}
	return nil
}
