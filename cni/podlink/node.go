// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// aliasPrefix begins the alias of a host end; the addresses follow.
const aliasPrefix = "berth overlay"

func aliasOf(addresses []netip.Addr) string {
	words := []string{aliasPrefix}
	for _, a := range addresses {
		words = append(words, a.String())
	}
	return strings.Join(words, " ")
}

func addressesOf(host netlink.Link) []netip.Addr {
	text, _ := strings.CutPrefix(host.Attrs().Alias, aliasPrefix)
	var all []netip.Addr
	for field := range strings.FieldsSeq(text) {
		if a, err := netip.ParseAddr(field); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// way is an address and the link that leads to it.
type way struct {
	address netip.Addr
	link    int
}

type node struct {
	routes map[way]bool
	neighs map[way][]byte
}

func readNode() (node, error) {
	n := node{routes: map[way]bool{}, neighs: map[way][]byte{}}
	for _, family := range rtnl.Families {
		routes, err := netlinksafe.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN, Protocol: unix.RTPROT_STATIC}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			return n, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			if to := rtnl.PrefixOf(r.Dst); to.IsSingleIP() && r.Gw == nil {
				n.routes[way{to.Addr(), r.LinkIndex}] = true
			}
		}
		neighs, err := rtnl.Neighbors(0, family)
		if err != nil {
			return n, err
		}
		for _, e := range neighs {
			if a, ok := netip.AddrFromSlice(e.IP); ok && e.State&netlink.NUD_PERMANENT != 0 {
				n.neighs[way{a.Unmap(), e.LinkIndex}] = e.HardwareAddr
			}
		}
	}
	return n, nil
}

// leads reports whether the node routes packets for the address to the pod behind a host end.
func (n node) leads(host netlink.Link, a netip.Addr) bool {
	to := way{a, host.Attrs().Index}
	_, mac := macs(host.Attrs().Name)
	return n.routes[to] && bytes.Equal(n.neighs[to], mac)
}

// lead makes the node route packets to the pod behind a host end, and returns for how many
// addresses this was missing.
func (n node) lead(host netlink.Link) (changed int, err error) {
	if err := rtnl.SetIPv4(host, rtnl.Devconf{rtnl.Forwarding: 1, rtnl.RPFilter: 1}); err != nil {
		return 0, err
	}
	if err := rtnl.SetUp(host); err != nil {
		return 0, err
	}
	_, mac := macs(host.Attrs().Name)
	for _, a := range addressesOf(host) {
		if n.leads(host, a) {
			continue
		}
		family, index := rtnl.FamilyOf(a), host.Attrs().Index
		plan := wire.Plan{Neighs: []netlink.Neigh{rtnl.Neigh(index, a, mac)}, Routes: []netlink.Route{{
			LinkIndex: index, Dst: rtnl.IPNet(rtnl.SinglePrefix(a)), Scope: rtnl.LinkScope(family), Protocol: unix.RTPROT_STATIC, Table: unix.RT_TABLE_MAIN, Family: family,
		}}}
		if err := plan.Apply(host); err != nil {
			return changed, err
		}
		changed++
	}
	return changed, nil
}

// Repair makes missing pieces of the node's side, and returns the number of addresses concerned.
func Repair() (changed int, err error) {
	links, err := Links()
	if err != nil || len(links) == 0 {
		return 0, err
	}
	n, err := readNode()
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, l := range links {
		some, err := n.lead(l)
		if rtnl.IsGone(err) {
			err = nil // its pod ended
		}
		changed += some
		errs = append(errs, err)
	}
	return changed, errors.Join(errs...)
}
