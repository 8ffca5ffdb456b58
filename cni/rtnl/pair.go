// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// NameOf returns the name of a link of the node for a container's interface, with a prefix. It must
// never change: by it a new version finds the links of an old version.
func NameOf(prefix, containerID, ifName string) string {
	sum := sha256.Sum256([]byte(containerID + "\x00" + ifName))
	return prefix + hex.EncodeToString(sum[:])[:unix.IFNAMSIZ-1-len(prefix)]
}

// MACOf returns a MAC address that follows from a text. Each link gets such a MAC when it is made,
// because udev may change a MAC of the kernel's choice after others have learned it. Each caller
// has its own second byte, which differs from the byte for pods.
func MACOf(second byte, text string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(text))
	return append(net.HardwareAddr{0x0a, second}, sum[:4]...)
}

// Pair is a veth pair with one end on the node and the other in a container's namespace.
type Pair struct {
	// Host is the name of the node's end, Inside of the container's end.
	Host, Inside       string
	HostMAC, InsideMAC net.HardwareAddr
	// KeepMAC keeps a pair whose container's end has another MAC address than InsideMAC.
	KeepMAC bool
	MTU     int
}

// Ensure makes the pair, if it is missing, and returns the node's end. It replaces a pair
// whose other end is not in the namespace.
func (p Pair) Ensure(netns ns.NetNS) (netlink.Link, error) {
	host, err := LinkOrNil(p.Host)
	if err != nil {
		return nil, err
	}
	if host != nil {
		inside, err := LinkInside(netns, p.Inside)
		if err != nil {
			return nil, err
		}
		if inside != nil && IsPair(host, inside) && (p.KeepMAC || bytes.Equal(inside.Attrs().HardwareAddr, p.InsideMAC)) {
			return host, nil
		}
		if err := DeleteLink(host); err != nil {
			return nil, err
		}
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = p.Host, p.MTU, p.HostMAC
	pair := netlink.NewVeth(attrs)
	pair.PeerName, pair.PeerHardwareAddr, pair.PeerMTU = p.Inside, p.InsideMAC, uint32(p.MTU)
	pair.PeerNamespace = netlink.NsFd(int(netns.Fd()))
	if err := netlink.LinkAdd(pair); err != nil {
		return nil, fmt.Errorf("create veth pair %s, %s in %s: %w", p.Host, p.Inside, netns.Path(), err)
	}
	if host, err = netlinksafe.LinkByName(p.Host); err != nil {
		return nil, fmt.Errorf("find link %s just created: %w", p.Host, err)
	}
	return host, nil
}

// IsPair reports whether two links of different namespaces are the ends of a veth pair.
func IsPair(a, b netlink.Link) bool {
	return a.Type() == "veth" && b.Type() == "veth" && a.Attrs().ParentIndex == b.Attrs().Index && b.Attrs().ParentIndex == a.Attrs().Index
}

// LinkInside returns a link of a namespace, nil if it does not exist.
func LinkInside(netns ns.NetNS, name string) (link netlink.Link, err error) {
	err = netns.Do(func(ns.NetNS) (err error) {
		link, err = LinkOrNil(name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for %s in %s: %w", name, netns.Path(), err)
	}
	return link, nil
}
