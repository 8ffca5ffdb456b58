// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/nftables"
	"github.com/berth-dev/berth/cni/rtnl"
)

// guard filters the packets of an interface of a container.
type guard struct {
	// device is the interface, or in mode bridge the node's end of it: there its
	// container's frames come in.
	device   string
	incoming bool
	speaker  speech
}

// speech lists the MAC address and the addresses in whose name a container may send on a network.
// The container is no router (RFC 6105) and no DHCP server (RFC 7610), and sends no frames of other
// VLANs.
type speech struct {
	mac   net.HardwareAddr
	addrs []api.Address
	// sharesMAC is true for ipvlan links, which have the MAC address of the link below.
	sharesMAC bool
}

// ErrGuard is returned if the kernel cannot filter a container's packets.
var ErrGuard = errors.New("cannot filter the container's packets")

// guardMu serializes changes of guards: the node's guards share a table, which goes with its last
// nftables chain.
var guardMu sync.Mutex

// set makes the chains of the guard, complete in one transaction, in the namespace of the
// calling thread.
func (g guard) set() error { return setChains(g.device, g.chains()) }

// guardTable returns the table with some of its chains. All guards of a namespace share it.
func guardTable(chains ...*nftables.Chain) *nftables.Table {
	return &nftables.Table{Family: nftables.NetDev, Name: TableName, Chains: chains}
}

// setChains makes nftables chains that are complete from their first moment. It replaces a chain of
// the same name but another kind, which a container can make.
func setChains(device string, chains []*nftables.Chain) error {
	guardMu.Lock()
	defer guardMu.Unlock()
	write := func() error {
		var tx nftables.Transaction
		tx.AddTable(guardTable())
		addChains(&tx, chains)
		return tx.Commit()
	}
	err := write()
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EOPNOTSUPP) {
		if e := deleteChains(func(name string) bool {
			return slices.ContainsFunc(chains, func(c *nftables.Chain) bool { return c.Name == name })
		}); e == nil {
			err = write()
		}
	}
	if err != nil {
		return fmt.Errorf("%w: write nftables chains for %s (the kernel must be 5.16 or newer, with nf_tables): %w", ErrGuard, device, err)
	}
	return nil
}

// addChains adds nftables chains to a transaction, all of them before rules that lead to them.
func addChains(tx *nftables.Transaction, chains []*nftables.Chain) {
	for _, c := range chains {
		tx.AddChain(guardTable(), c)
		tx.FlushChain(guardTable(), c.Name)
	}
	for _, c := range chains {
		tx.AddRules(guardTable(), c)
	}
}

// check returns wire.ErrNotWired if an nftables chain is missing or changed: a container may be
// able to change it.
func (g guard) check() error { return checkChains(g.chains()) }

func checkChains(chains []*nftables.Chain) error {
	err := guardTable(chains...).CheckRules()
	if errors.Is(err, nftables.ErrDiffers) {
		return fmt.Errorf("%w: %w", ErrNotWired, err)
	}
	return err
}

// sweepGuards removes the chains of links that no longer exist from the table of the namespace of
// the calling thread, and the table with its last chain. It leaves chains of lower links to
// sweepLowers.
func sweepGuards() error {
	guardMu.Lock()
	defer guardMu.Unlock()
	exists := map[string]bool{}
	var errs []error
	err := deleteChains(func(name string) bool {
		device, ok := deviceOf(name)
		if !ok {
			return false
		}
		if _, known := exists[device]; !known {
			link, err := rtnl.LinkOrNil(device)
			errs = append(errs, err)
			exists[device] = link != nil || err != nil
		}
		return !exists[device]
	})
	return errors.Join(append(errs, err)...)
}

// deleteChains removes the chains that match selects, and the table with the last chain. Its
// caller holds guardMu.
func deleteChains(match func(name string) bool) error {
	have, err := guardTable().Contents()
	if err != nil || !have.Exists {
		return err
	}
	var tx nftables.Transaction
	gone := slices.DeleteFunc(slices.Clone(have.Chains), func(c *nftables.Chain) bool { return !match(c.Name) })
	if len(gone) == len(have.Chains) {
		tx.DeleteTable(guardTable())
		gone = nil
	}
	// Rules of a chain lead to other chains.
	for _, c := range gone {
		tx.FlushChain(guardTable(), c.Name)
	}
	for _, c := range gone {
		tx.DeleteChain(guardTable(), c.Name)
	}
	if err := tx.Commit(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete unused nftables chains: %w", err)
	}
	return nil
}

// Ends of the names of chains, after the name of their device.
const fromSuffix, toSuffix, neighbourSuffix = "-from", "-to", "-nd"

// deviceOf returns the device of an nftables chain; ok is false for chains of lower links.
func deviceOf(chain string) (device string, ok bool) {
	if _, _, _, lower := parsePodChain(strings.TrimSuffix(chain, neighbourSuffix)); lower {
		return "", false
	}
	for _, suffix := range []string{fromSuffix, toSuffix, neighbourSuffix} {
		if device, ok := strings.CutSuffix(chain, suffix); ok {
			return device, true
		}
	}
	return "", false
}

// chains returns the nftables chains for frames from the container, which ends in a drop, for its
// IPv6 packets, and for frames to it.
func (g guard) chains() []*nftables.Chain {
	out, in := nftables.Egress, nftables.Ingress
	if g.incoming {
		out, in = in, out
	}
	nd := inner(g.device+neighbourSuffix, g.speaker.neighbourRules())
	from := atDevice(g.device, fromSuffix, out, g.speaker.rules(nd.Name))
	from.Base.Drops = true
	to := atDevice(g.device, toSuffix, in, []nftables.Rule{
		nftables.NewRule("gateways come from its pools only", ipv6, nftables.ICMPv6(nftables.RouterAdvertisement), nftables.Drop),
	})
	return []*nftables.Chain{nd, from, to}
}

// inner returns a chain to which rules of others lead.
func inner(name string, rules []nftables.Rule) *nftables.Chain {
	return &nftables.Chain{Name: name, Rules: nftables.Rules(rules...)}
}

// atDevice returns a chain that sees the frames of a device.
func atDevice(device, suffix string, hook nftables.Hook, rules []nftables.Rule) *nftables.Chain {
	c := &nftables.Chain{Name: device + suffix, Base: nftables.Filter(hook, nftables.PriorityFilter), Rules: nftables.Rules(rules...)}
	c.Base.Device = device
	return c
}

// Destination ports of replies of DHCP servers.
const dhcp4Client, dhcp6Client = 68, 546

// frames matches untagged frames whose protocol is the same in the Ethernet header and in the
// kernel.
func frames(ethertype uint16) nftables.Statement {
	value := []byte{byte(ethertype >> 8), byte(ethertype)}
	return nftables.Link(12, 2).Is(value...).Then(nftables.EtherType.Is(value...))
}

// Frames of the protocols, and fields of their headers.
var (
	ipv4, ipv6, arp = frames(unix.ETH_P_IP), frames(unix.ETH_P_IPV6), frames(unix.ETH_P_ARP)
	// arpSender and arpTarget are addresses in ARP (RFC 826) of Ethernet and IPv4.
	arpSender, arpTarget = nftables.Network(14, 4), nftables.Network(24, 4)
	// ndTarget is the target address of a message of neighbour discovery.
	ndTarget = nftables.Transport(8, 16)
	// unspecified matches IPv6 packets without a source.
	unspecified = ipv6.Then(nftables.V6.SAddr.Is(make([]byte, 16)...))
)

// rules returns rules that accept the packets that the container may send; the caller drops all
// others. IPv6 packets from its addresses continue in the chain nd.
//
// The receiver takes the protocol only from the Ethernet header. But a socket can give the kernel
// another protocol, by which the kernel parses the headers, and the kernel removes a VLAN tag from
// the protocol. So every rule requires that both are the same.
func (s speech) rules(nd string) []nftables.Rule {
	all := append([]nftables.Rule{nftables.NewRule("from "+s.mac.String()+" only", nftables.EtherSAddr.IsNot(s.mac...), nftables.Drop)}, noServer()...)
	add := func(comment string, statements ...nftables.Statement) {
		all = append(all, nftables.NewRule(comment, statements...))
	}
	// Of Ethernet and IPv4.
	ownARP := arp.Then(nftables.Network(0, 6).Is(0, 1, 0x08, 0x00, 6, 4), nftables.Network(8, 6).Is(s.mac...))
	for _, a := range s.addrs {
		raw := a.Address.AsSlice()
		if a.Address.Is4() {
			add("from "+a.Address.String(), ipv4, nftables.V4.SAddr.Is(raw...), nftables.Accept)
			add("ARP of "+a.Address.String(), ownARP, arpSender.Is(raw...), nftables.Accept)
			add("ARP probe for "+a.Address.String(), ownARP, arpSender.Is(0, 0, 0, 0), arpTarget.Is(raw...), nftables.Accept)
			continue
		}
		add("from "+a.Address.String(), ipv6, nftables.V6.SAddr.Is(raw...), nftables.Goto(nd))
		add("detects duplicates of "+a.Address.String(), unspecified, nftables.ICMPv6(nftables.NeighborSolicitation), ndTarget.Is(raw...), nftables.Accept)
	}
	// Receivers ignore neighbour discovery in fragments (RFC 6980), except with a setting of Linux.
	add("no fragments from its link-local address", ipv6, s.isLinkLocal(nftables.V6.SAddr), nftables.IPv6Fragment, nftables.Drop)
	add("from its link-local address", ipv6, s.isLinkLocal(nftables.V6.SAddr), nftables.Goto(nd))
	add("detects duplicates of its link-local address", unspecified, nftables.ICMPv6(nftables.NeighborSolicitation), s.isLinkLocal(ndTarget), nftables.Accept)
	for _, t := range []byte{nftables.RouterSolicitation, nftables.ListenerReport1, nftables.ListenerDone, nftables.ListenerReport2} {
		add(fmt.Sprintf("ICMPv6 type %d before it has an address", t), unspecified, nftables.ICMPv6(t), nftables.Accept)
	}
	return all
}

// noServer returns rules that drop packets that would make hosts use a router or another address.
func noServer() []nftables.Rule {
	udp := nftables.L4Proto.Is(unix.IPPROTO_UDP)
	all := []nftables.Rule{
		nftables.NewRule("no DHCP server", ipv4, udp, nftables.DPort.Is(dhcp4Client>>8, dhcp4Client&0xff), nftables.Drop),
		nftables.NewRule("no DHCPv6 server", ipv6, udp, nftables.DPort.Is(dhcp6Client>>8, dhcp6Client&0xff), nftables.Drop),
		nftables.NewRule("no redirects", ipv4, nftables.L4Proto.Is(unix.IPPROTO_ICMP), nftables.MessageType.Is(nftables.ICMPRedirect), nftables.Drop),
	}
	for _, t := range []byte{nftables.RouterAdvertisement, nftables.Redirect} {
		all = append(all, nftables.NewRule(fmt.Sprintf("no ICMPv6 type %d", t), ipv6, nftables.ICMPv6(t), nftables.Drop))
	}
	return all
}

// neighbourRules returns rules that accept IPv6 packets from the container's own addresses, except
// advertisements of other addresses.
func (s speech) neighbourRules() (all []nftables.Rule) {
	advertises := nftables.ICMPv6(nftables.NeighborAdvertisement)
	for _, a := range s.addrs {
		if a.Address.Is6() {
			all = append(all, nftables.NewRule("advertises "+a.Address.String(), advertises, ndTarget.Is(a.Address.AsSlice()...), nftables.Accept))
		}
	}
	return append(all,
		nftables.NewRule("advertises its link-local address", advertises, s.isLinkLocal(ndTarget), nftables.Accept),
		nftables.NewRule("advertises another address", advertises, nftables.Drop),
		nftables.NewRule("other packets", nftables.Accept))
}

// isLinkLocal compares an address with the link-local address that the kernel makes from the MAC
// address (RFC 4291, appendix A). ipvlan links share a MAC address; their link-local addresses have
// a number of their own in the middle, and the unchanged U/L bit.
func (s speech) isLinkLocal(address nftables.Field) nftables.Statement {
	m := s.mac
	want := []byte{0xfe, 0x80, 0, 0, 0, 0, 0, 0, m[0] ^ 0x02, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]}
	if !s.sharesMAC {
		return address.Is(want...)
	}
	mask := bytes.Repeat([]byte{0xff}, 16)
	mask[8], mask[11], mask[12] = 0xfd, 0, 0
	for i := range want {
		want[i] &= mask[i]
	}
	return address.And(mask...).Is(want...)
}
