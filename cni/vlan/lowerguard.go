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

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/netfilter"
)

// lowerGuard filters on the node what macvlan and ipvlan links send to the wire: containers
// reach no rule of the node, and every frame to the wire leaves through the node's link, also
// those of sockets that pass the rules in the container by (AF_XDP). Frames from one container
// of the link to another do not.
type lowerGuard struct {
	lower netlink.Link
	// pod is the container's node link.
	pod     string
	speaker speech
	addrs   []api.Address
}

// lowerGuardOf returns nil where there is none: in mode bridge the guard is on the node, and
// in the routed modes the node sends the frames itself.
func lowerGuardOf(spec Spec, g segment, lower netlink.Link) *lowerGuard {
	if spec.Mode != Macvlan && spec.Mode != IPvlan || spec.routed() {
		return nil
	}
	return &lowerGuard{lower: lower, pod: NodeLink(spec.ContainerID, spec.IfName), speaker: guardOf(spec, g, lower).speaker, addrs: g.addrs}
}

// Ends of the names of a lower link's chain and map.
const lowerSuffix, macsSuffix = "-lower", "-macs"

// lowerSets are the sets of a lower link.
type lowerSets struct {
	// macs has the chain of each container by its MAC address.
	macs *nftables.Set
	// gateways4 and gateways6 are the gateways of the pools of the link's containers.
	gateways4, gateways6 *nftables.Set
}

func lowerSetsOf(lower string) lowerSets {
	table := guardTable()
	return lowerSets{
		macs:      &nftables.Set{Table: table, Name: lower + macsSuffix, IsMap: true, KeyType: nftables.TypeEtherAddr, DataType: nftables.TypeVerdict},
		gateways4: &nftables.Set{Table: table, Name: lower + "-gateways4", KeyType: nftables.TypeIPAddr},
		gateways6: &nftables.Set{Table: table, Name: lower + "-gateways6", KeyType: nftables.TypeIP6Addr},
	}
}

func (s lowerSets) all() []*nftables.Set {
	return []*nftables.Set{s.macs, s.gateways4, s.gateways6}
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

// sharesMAC is true for ipvlan links, which no MAC address tells apart.
func (l *lowerGuard) sharesMAC() bool { return l.speaker.sharesMAC }

func (l *lowerGuard) name() string { return podChain(l.pod, l.speaker.mac, l.lower.Attrs().Name) }

// chains returns those of the container and that of the lower link, which all of the link's
// containers share.
func (l *lowerGuard) chains() []netfilter.Chain {
	table, sets := guardTable(), lowerSetsOf(l.lower.Attrs().Name)
	var all []netfilter.Chain
	if !l.sharesMAC() {
		nd, from := inner(table, l.name()+neighbourSuffix), inner(table, l.name())
		l.speaker.addNeighbourRules(&nd)
		l.speaker.addRules(&from, nd.Name)
		from.Add(guardVersion, "nothing else", drop())
		all = append(all, nd, from)
	}
	base := atDevice(table, l.lower.Attrs().Name, lowerSuffix, nftables.ChainHookEgress)
	base.Add(guardVersion, "a container sends from its own addresses", link(6, 6), []expr.Any{&expr.Lookup{SourceRegister: 1, DestRegister: 0, IsDestRegSet: true, SetName: sets.macs.Name}})
	base.Add(guardVersion, "nobody here is a pool's gateway", protocol(unix.ETH_P_ARP), network(14, 4), in(sets.gateways4), drop())
	base.Add(guardVersion, "nobody here is a pool's gateway", ipv6(), icmp6(neighbourAdvertised), transport(8, 16), in(sets.gateways6), drop())
	if isOurs(l.lower) {
		// Only containers and the node send through a link that Berth made. The node is no router
		// there, and no DHCP server.
		base.Add(guardVersion, "no MAC address but those of its containers and its own", link(6, 6), isNot(l.lower.Attrs().HardwareAddr...), drop())
		addNoServer(&base)
	}
	return append(all, base)
}

func in(set *nftables.Set) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: 1, SetName: set.Name}}
}

// gateways lists those of the container's pools, but the node's own addresses.
func (l *lowerGuard) gateways() ([]netip.Addr, error) {
	own, err := netlinksafe.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var all []netip.Addr
	for _, a := range l.addrs {
		isOwn := func(h netlink.Addr) bool { return h.IP.Equal(a.Gateway.AsSlice()) }
		if a.Gateway.IsValid() && !slices.ContainsFunc(own, isOwn) && !slices.Contains(all, a.Gateway) {
			all = append(all, a.Gateway)
		}
	}
	return all, nil
}

// set makes the guard, in one transaction.
func (l *lowerGuard) set() error {
	guardMu.Lock()
	defer guardMu.Unlock()
	gateways, err := l.gateways()
	if err != nil {
		return err
	}
	conn, err := netfilter.Open()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrGuard, err)
	}
	sets := lowerSetsOf(l.lower.Attrs().Name)
	known, err := setKeys(conn, sets.macs)
	if err != nil {
		return err
	}
	conn.AddTable(guardTable())
	for _, s := range sets.all() {
		if err := conn.AddSet(s, nil); err != nil {
			return fmt.Errorf("make nftables set %s: %w", s.Name, err)
		}
	}
	addChains(conn, l.chains())
	var errs []error
	if !l.sharesMAC() {
		errs = append(errs, lead(conn, sets.macs, l.speaker.mac, l.name(), known))
	}
	for _, a := range gateways {
		set := sets.gateways6
		if a.Is4() {
			set = sets.gateways4
		}
		errs = append(errs, conn.SetAddElements(set, []nftables.SetElement{{Key: a.AsSlice()}}))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("add to the nftables sets of %s: %w", l.lower.Attrs().Name, err)
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("%w: write nftables chains for %s on %s (the kernel must be 5.16 or newer, with nf_tables): %w", ErrGuard, l.pod, l.lower.Attrs().Name, err)
	}
	return nil
}

// lead adds to a transaction that frames from a MAC address go to a chain. known are the
// addresses that the set has.
func lead(conn *nftables.Conn, set *nftables.Set, mac net.HardwareAddr, chain string, known [][]byte) error {
	if slices.ContainsFunc(known, func(k []byte) bool { return bytes.Equal(k, mac) }) {
		if err := conn.SetDeleteElements(set, []nftables.SetElement{{Key: mac}}); err != nil {
			return err
		}
	}
	return conn.SetAddElements(set, []nftables.SetElement{{Key: mac, VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}})
}

// check returns wire.ErrNotWired where a piece is missing.
func (l *lowerGuard) check() error {
	if err := checkChains(l.chains()); err != nil {
		return err
	}
	conn, err := netfilter.Open()
	if err != nil {
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
		if a.Is4() {
			want[sets.gateways4] = append(want[sets.gateways4], a.AsSlice())
		} else {
			want[sets.gateways6] = append(want[sets.gateways6], a.AsSlice())
		}
	}
	for set, elements := range want {
		have, err := setKeys(conn, set)
		if err != nil {
			return err
		}
		for _, e := range elements {
			if !slices.ContainsFunc(have, func(k []byte) bool { return bytes.Equal(k, e) }) {
				return fmt.Errorf("%w: nftables set %s lacks an element", ErrNotWired, set.Name)
			}
		}
	}
	return nil
}

// setKeys lists the keys of a set, none where it does not exist.
func setKeys(conn *nftables.Conn, set *nftables.Set) ([][]byte, error) {
	elements, err := conn.GetSetElements(set)
	if netfilter.NotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list nftables set %s: %w", set.Name, err)
	}
	var all [][]byte
	for _, e := range elements {
		all = append(all, e.Key)
	}
	return all, nil
}

// sweepLowers removes the guards of containers whose node link no longer exists, and of lower
// links that no node link names.
func sweepLowers() error {
	guardMu.Lock()
	defer guardMu.Unlock()
	links, err := netlinksafe.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
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
	conn, err := netfilter.Open()
	if err != nil {
		return err
	}
	chains, err := guardChains(conn)
	if err != nil {
		return err
	}
	for _, c := range chains {
		node, mac, lower, ok := parsePodChain(c.Name)
		if !ok || nodes[node] || !used[lower] {
			continue
		}
		if err := forgetMAC(conn, chains, nodes, mac, lower); err != nil {
			return err
		}
	}
	sets, err := conn.GetSets(guardTable())
	if err != nil && !netfilter.NotFound(err) {
		return fmt.Errorf("list nftables sets: %w", err)
	}
	// The kernel removes the chain of a link with the link, and leaves the sets.
	gone := map[string]bool{}
	for _, s := range sets {
		if lower, ok := strings.CutSuffix(s.Name, macsSuffix); ok && !used[lower] {
			gone[lower] = true
		}
	}
	if err := deleteLowers(conn, gone, chains, sets); err != nil {
		return err
	}
	return deleteChains(func(name string) bool {
		node, _, _, ok := parsePodChain(strings.TrimSuffix(name, neighbourSuffix))
		return ok && !nodes[node]
	})
}

// forgetMAC ends that frames from a MAC address go to the chain of a container that is gone. A
// newer container may have the address.
func forgetMAC(conn *nftables.Conn, chains []*nftables.Chain, nodes map[string]bool, mac net.HardwareAddr, lower string) error {
	set := lowerSetsOf(lower).macs
	known, err := setKeys(conn, set)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(known, func(k []byte) bool { return bytes.Equal(k, mac) }) {
		return nil
	}
	newer := slices.IndexFunc(chains, func(c *nftables.Chain) bool {
		n, m, l, ok := parsePodChain(c.Name)
		return ok && nodes[n] && bytes.Equal(m, mac) && l == lower
	})
	if newer >= 0 {
		err = lead(conn, set, mac, chains[newer].Name, known)
	} else {
		err = conn.SetDeleteElements(set, []nftables.SetElement{{Key: mac}})
	}
	if err == nil {
		err = conn.Flush()
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("take %s from nftables set %s: %w", mac, set.Name, err)
	}
	return nil
}

// deleteLowers removes the chains and sets of lower links.
func deleteLowers(conn *nftables.Conn, lowers map[string]bool, chains []*nftables.Chain, sets []*nftables.Set) error {
	if len(lowers) == 0 {
		return nil
	}
	for lower := range lowers {
		for _, c := range chains {
			if c.Name == lower+lowerSuffix {
				conn.FlushChain(c)
				conn.DelChain(c)
			}
		}
		for _, s := range lowerSetsOf(lower).all() {
			if slices.ContainsFunc(sets, func(h *nftables.Set) bool { return h.Name == s.Name }) {
				conn.DelSet(s)
			}
		}
	}
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete unused nftables chains: %w", err)
	}
	return nil
}
