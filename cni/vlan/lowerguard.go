// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/nftables"
	"github.com/berth-dev/berth/cni/rtnl"
)

// lowerGuard filters, on the node, the frames of macvlan and ipvlan links to the wire. Containers
// cannot change rules of the node. Every frame to the wire leaves through the node's link, even
// from sockets that bypass the rules in the container (AF_XDP), but frames between containers of
// the link do not.
type lowerGuard struct {
	lower netlink.Link
	// pod is the container's node link.
	pod     string
	speaker speech
	addrs   []api.Address
}

// lowerGuardOf returns nil for modes without a lowerGuard: in mode bridge the guard is on the node,
// and in the routed modes the node sends the frames itself.
func lowerGuardOf(spec Spec, g segment, lower netlink.Link) *lowerGuard {
	if spec.Mode != Macvlan && spec.Mode != IPvlan || spec.routed() {
		return nil
	}
	return &lowerGuard{lower: lower, pod: NodeLink(spec.ContainerID, spec.IfName), speaker: guardOf(spec, g, lower).speaker, addrs: g.addrs}
}

// Ends of the names of a lower link's chain and map.
const lowerSuffix, macsSuffix = "-lower", "-macs"

type lowerSets struct {
	// macs has the chain of each container by its MAC address.
	macs *nftables.Set
	// gateways are the gateways of the pools of the link's containers.
	gateways map[*nftables.IP]*nftables.Set
	// closed are the addresses of the link's containers that Close keeps silent.
	closed map[*nftables.IP]*nftables.Set
}

func lowerSetsOf(lower string) lowerSets {
	s := lowerSets{
		macs:     &nftables.Set{Name: lower + macsSuffix, Key: []nftables.Type{nftables.EtherAddr}, Verdicts: true},
		gateways: map[*nftables.IP]*nftables.Set{}, closed: map[*nftables.IP]*nftables.Set{},
	}
	for _, ip := range nftables.IPs {
		s.gateways[ip] = &nftables.Set{Name: lower + "-gateways" + ip.Suffix, Key: []nftables.Type{ip.Addr}}
		s.closed[ip] = &nftables.Set{Name: lower + "-closed" + ip.Suffix, Key: []nftables.Type{ip.Addr}}
	}
	return s
}

func (s lowerSets) all() []*nftables.Set {
	return []*nftables.Set{s.macs, s.gateways[nftables.V4], s.gateways[nftables.V6], s.closed[nftables.V4], s.closed[nftables.V6]}
}

// podChain returns the name of a container's chain: parsePodChain reads it.
func podChain(node string, mac net.HardwareAddr, lower string) string {
	return node + "-" + hex.EncodeToString(mac) + "-" + lower
}

// parsePodChain returns ok false for other chains.
func parsePodChain(name string) (node string, mac net.HardwareAddr, lower string, ok bool) {
	fields := strings.SplitN(name, "-", 3)
	if len(fields) != 3 || !strings.HasPrefix(name, nodeLinkPrefix) || strings.HasSuffix(name, neighbourSuffix) {
		return "", nil, "", false
	}
	mac, err := hex.DecodeString(fields[1])
	return fields[0], mac, fields[2], err == nil && len(mac) == 6
}

// sharesMAC is true for ipvlan links, which have no MAC addresses of their own.
func (l *lowerGuard) sharesMAC() bool { return l.speaker.sharesMAC }

func (l *lowerGuard) name() string { return podChain(l.pod, l.speaker.mac, l.lower.Attrs().Name) }

// chains returns the nftables chains of the container, and of the lower link, which all containers
// of the link share.
func (l *lowerGuard) chains() (all []*nftables.Chain) {
	lower := l.lower.Attrs()
	sets := lowerSetsOf(lower.Name)
	if !l.sharesMAC() {
		nd := inner(l.name()+neighbourSuffix, l.speaker.neighbourRules())
		from := inner(l.name(), append(l.speaker.rules(nd.Name), nftables.NewRule("nothing else", nftables.Drop)))
		all = append(all, nd, from)
	}
	rules := append(sets.stopsAddress(),
		nftables.NewRule("a container sends from its own addresses", nftables.Vmap(sets.macs.Name, nftables.EtherSAddr)),
		nftables.NewRule("nobody here is a pool's gateway", arp, nftables.In(sets.gateways[nftables.V4].Name, arpSender), nftables.Drop),
		nftables.NewRule("nobody here is a pool's gateway", ipv6, nftables.ICMPv6(nftables.NeighborAdvertisement), nftables.In(sets.gateways[nftables.V6].Name, ndTarget), nftables.Drop),
	)
	if isOurs(l.lower) {
		// Only containers and the node send through a link that Berth made. The node is no router
		// there, and no DHCP server.
		rules = append(rules, nftables.NewRule("no MAC address but its own and its containers'", nftables.EtherSAddr.IsNot(lower.HardwareAddr...), nftables.Drop))
		rules = append(rules, noServer()...)
	}
	return append(all, atDevice(lower.Name, lowerSuffix, nftables.Egress, rules))
}

// gateways lists the gateways of the container's pools, except the node's own addresses.
func (l *lowerGuard) gateways() ([]netip.Addr, error) {
	own, err := rtnl.Addresses(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	var all []netip.Addr
	for _, a := range l.addrs {
		isOwn := func(h netlink.Addr) bool {
			// Another link, such as a container engine's bridge, may have the router's link-local address,
			// too.
			elsewhere := a.Gateway.Is6() && a.Gateway.IsLinkLocalUnicast() && h.LinkIndex != l.lower.Attrs().Index
			return h.IP.Equal(a.Gateway.AsSlice()) && !elsewhere
		}
		if a.Gateway.IsValid() && !slices.ContainsFunc(own, isOwn) && !slices.Contains(all, a.Gateway) {
			all = append(all, a.Gateway)
		}
	}
	return all, nil
}

func (l *lowerGuard) set() error {
	guardMu.Lock()
	defer guardMu.Unlock()
	gateways, err := l.gateways()
	if err != nil {
		return err
	}
	sets := lowerSetsOf(l.lower.Attrs().Name)
	known, err := setKeys(sets.macs)
	if err != nil {
		return err
	}
	var tx nftables.Transaction
	tx.AddTable(guardTable())
	for _, s := range sets.all() {
		tx.AddSet(guardTable(), s)
	}
	addChains(&tx, l.chains())
	if !l.sharesMAC() {
		lead(&tx, sets.macs, l.speaker.mac, l.name(), known)
	}
	for _, a := range gateways {
		tx.AddElements(guardTable(), sets.gateways[nftables.IPOf(a)].Name, nftables.Keys(a.AsSlice()))
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("%w: write nftables chains for %s on %s (the kernel must be 5.16 or newer, with nf_tables): %w", ErrGuard, l.pod, l.lower.Attrs().Name, err)
	}
	return nil
}

// lead adds an element to a transaction that leads frames from a MAC address to an nftables chain.
// known are the addresses in the set.
func lead(tx *nftables.Transaction, set *nftables.Set, mac net.HardwareAddr, chain string, known map[string]bool) {
	if known[string(mac)] {
		tx.DeleteElements(guardTable(), set.Name, nftables.Keys(mac))
	}
	tx.AddElements(guardTable(), set.Name, nftables.Elements(nftables.Element{Key: mac, Goto: chain}))
}

// check returns wire.ErrNotWired if a piece is missing.
func (l *lowerGuard) check() error {
	if err := checkChains(l.chains()); err != nil {
		return err
	}
	gateways, err := l.gateways()
	if err != nil {
		return err
	}
	sets := lowerSetsOf(l.lower.Attrs().Name)
	want := map[*nftables.Set][][]byte{}
	if !l.sharesMAC() {
		want[sets.macs] = [][]byte{l.speaker.mac}
	}
	for _, a := range gateways {
		set := sets.gateways[nftables.IPOf(a)]
		want[set] = append(want[set], a.AsSlice())
	}
	for set, elements := range want {
		have, err := setKeys(set)
		if err != nil {
			return err
		}
		for _, e := range elements {
			if !have[string(e)] {
				return fmt.Errorf("%w: nftables set %s lacks an element", ErrNotWired, set.Name)
			}
		}
	}
	return nil
}

func setKeys(set *nftables.Set) (map[string]bool, error) { return guardTable().Keys(set.Name) }

// sweepLowers removes the guards of containers whose node link no longer exists, and of lower
// links that no node link names.
func sweepLowers() error {
	guardMu.Lock()
	defer guardMu.Unlock()
	links, err := rtnl.Links()
	if err != nil {
		return err
	}
	nodes, used := map[string]bool{}, map[string]bool{}
	for _, l := range links {
		if mode, uses, ok := parseAlias(l.Attrs().Alias); ok && isNodeLink(l) && (mode == Macvlan || mode == IPvlan) {
			nodes[l.Attrs().Name] = true
			for _, u := range uses {
				used[u.lower] = true
			}
		}
	}
	have, err := guardTable().Contents()
	if err != nil {
		return err
	}
	for _, c := range have.Chains {
		node, mac, lower, ok := parsePodChain(c.Name)
		if !ok || nodes[node] || !used[lower] {
			continue
		}
		if err := forgetMAC(have.Chains, nodes, mac, lower); err != nil {
			return err
		}
	}
	// The kernel removes the nftables chain of a link with the link, but not the sets.
	for _, s := range have.Sets {
		if lower, ok := strings.CutSuffix(s.Name, macsSuffix); ok && !used[lower] {
			if err := deleteLower(lower, have); err != nil {
				return err
			}
		}
	}
	return deleteChains(func(name string) bool {
		node, _, _, ok := parsePodChain(strings.TrimSuffix(name, neighbourSuffix))
		return ok && !nodes[node]
	})
}

// forgetMAC removes the element that leads frames from a MAC address to the nftables chain of a
// container that is gone. A newer container may have the address.
func forgetMAC(chains []*nftables.Chain, nodes map[string]bool, mac net.HardwareAddr, lower string) error {
	set := lowerSetsOf(lower).macs
	known, err := setKeys(set)
	if err != nil || !known[string(mac)] {
		return err
	}
	newer := slices.IndexFunc(chains, func(c *nftables.Chain) bool {
		n, m, l, ok := parsePodChain(c.Name)
		return ok && nodes[n] && bytes.Equal(m, mac) && l == lower
	})
	var tx nftables.Transaction
	if newer >= 0 {
		lead(&tx, set, mac, chains[newer].Name, known)
	} else {
		tx.DeleteElements(guardTable(), set.Name, nftables.Keys(mac))
	}
	if err := tx.Commit(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("take %s from nftables set %s: %w", mac, set.Name, err)
	}
	return nil
}

func deleteLower(lower string, have *nftables.Contents) error {
	var tx nftables.Transaction
	for _, c := range have.Chains {
		if c.Name == lower+lowerSuffix {
			tx.FlushChain(guardTable(), c.Name)
			tx.DeleteChain(guardTable(), c.Name)
		}
	}
	for _, s := range lowerSetsOf(lower).all() {
		if slices.ContainsFunc(have.Sets, func(h *nftables.Set) bool { return h.Name == s.Name }) {
			tx.DeleteSet(guardTable(), s.Name)
		}
	}
	if err := tx.Commit(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete unused nftables chains: %w", err)
	}
	return nil
}
