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

// LinkPrefix begins the names of all links that Berth makes for pods and Services, and ServicesLink
// is the one of Services. They may never change, as Protocol.
const (
	LinkPrefix   = "bth"
	ServicesLink = LinkPrefix + "services"
)

// isPodLink returns whether Berth made the link for a pod. Its end on the node repeats addresses
// that the node has on other links.
func isPodLink(link string) bool { return strings.HasPrefix(link, LinkPrefix) && link != ServicesLink }

// serviceLinks carry the addresses of Services, so that the node takes packets to them, and are no
// way to the node: of kube-proxy in mode ipvs and of kube-router.
var serviceLinks = []string{"kube-ipvs0", "kube-dummy-if"}

// HasNodeAddresses returns whether addresses of the link are the node's own.
func HasNodeAddresses(link string) bool {
	return !isPodLink(link) && !slices.Contains(serviceLinks, link)
}

// NodeAddress is an address of the node, and the name of a link that has it.
type NodeAddress struct {
	netip.Addr
	Link string
}

// NodeAddresses lists the addresses of the node itself, each once: without the ones of Services, of
// loopback and of one link alone (IPv6 link-local), and without what only pods' links repeat.
func NodeAddresses() ([]NodeAddress, error) {
	found, err := netlinksafe.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	names, seen := map[int]string{}, map[netip.Addr]bool{}
	var all []NodeAddress
	for _, a := range found {
		addr, ok := netip.AddrFromSlice(a.IP)
		addr = addr.Unmap()
		// Most of a node with many pods are repetitions: it looks for the links of the others alone.
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
