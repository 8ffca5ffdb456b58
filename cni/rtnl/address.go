// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
)

// LinkPrefix begins the names of all links that Berth makes for pods and Services. ServicesLink is
// the link for Services. Like Protocol they must never change.
const (
	LinkPrefix   = "bth"
	ServicesLink = LinkPrefix + "services"
)

// isPodLink reports whether Berth made the link for a pod. Its end on the node repeats addresses of
// other links of the node.
func isPodLink(link string) bool { return strings.HasPrefix(link, LinkPrefix) && link != ServicesLink }

// serviceLinks are the links of kube-proxy in mode ipvs and of kube-router. They have the addresses
// of Services, so that the node accepts packets to them, and are no way to the node.
var serviceLinks = []string{"kube-ipvs0", "kube-dummy-if"}

// HasNodeAddresses reports whether addresses of the link are the node's own.
func HasNodeAddresses(link string) bool {
	return !isPodLink(link) && !slices.Contains(serviceLinks, link)
}

// Addresses lists the addresses of a link, or of all links if link is nil.
func Addresses(link netlink.Link, family int) ([]netlink.Addr, error) {
	all, err := netlinksafe.AddrList(link, family)
	if err != nil && link != nil {
		return nil, fmt.Errorf("list addresses of link %s: %w", link.Attrs().Name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	return all, nil
}

// NodeAddress is an address of the node, and the name of a link with it.
type NodeAddress struct {
	netip.Addr
	Link string
}

// NodeAddresses lists the addresses of the node itself, each once: without addresses of Services,
// loopback and IPv6 link-local addresses, and without addresses that exist only on pods' links.
func NodeAddresses() ([]NodeAddress, error) {
	found, err := Addresses(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	names, seen := map[int]string{}, map[netip.Addr]bool{}
	var all []NodeAddress
	for _, a := range found {
		addr, ok := netip.AddrFromSlice(a.IP)
		addr = addr.Unmap()
		// On a node with many pods most addresses are repetitions: only for others is the link read.
		if !ok || addr.IsLoopback() || addr.Is6() && addr.IsLinkLocalUnicast() || seen[addr] {
			continue
		}
		name, known := names[a.LinkIndex]
		if !known {
			link, err := netlink.LinkByIndex(a.LinkIndex)
			if err != nil && !LinkNotFound(err) {
				return nil, fmt.Errorf("find link %d: %w", a.LinkIndex, err)
			}
			if err == nil {
				name = link.Attrs().Name
			}
			names[a.LinkIndex] = name
		}
		if name != "" && HasNodeAddresses(name) {
			seen[addr] = true
			all = append(all, NodeAddress{addr, name})
		}
	}
	return all, nil
}
