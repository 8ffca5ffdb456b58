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

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
)

// guardVersion is in the comment of every rule. Whoever changes a rule changes it, so that
// the rules of an older version are replaced.
const guardVersion = "1"

// guard is what one interface of a container may send and receive.
type guard struct {
	// device is the interface, or in mode bridge the node's end of it: there its
	// container's frames come in.
	device   string
	incoming bool
	speaker  speech
}

// speech is what a container may say on a network: it has one MAC address, and speaks for
// its own addresses alone. It is no router (RFC 6105) and no DHCP server (RFC 7610), and sends
// no frames of other VLANs.
type speech struct {
	mac   net.HardwareAddr
	addrs []api.Address
	// sharesMAC is true for ipvlan links, which have the MAC address of the link that they are
	// on.
	sharesMAC bool
}

// ErrGuard is returned where the kernel cannot filter what a container sends.
var ErrGuard = errors.New("cannot filter what the container sends")

// guardMu makes changes of guards one after another: those of the node share a table, which goes
// with its last chain.
var guardMu sync.Mutex

// set makes the chains of the guard, complete in one transaction, in the namespace of the
// calling thread.
func (g guard) set() error { return setChains(g.device, g.chains(guardTable())) }

// setChains makes chains that are complete from their first moment. A chain of the name that
// is of another kind, as a container can make it, is replaced.
func setChains(device string, chains []netfilter.Chain) error {
	guardMu.Lock()
	defer guardMu.Unlock()
	write := func() error {
		conn, err := netfilter.Open()
		if err != nil {
			return err
		}
		conn.AddTable(guardTable())
		addChains(conn, chains)
		return conn.Flush()
	}
	err := write()
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EOPNOTSUPP) {
		if e := deleteChains(func(name string) bool {
			return slices.ContainsFunc(chains, func(c netfilter.Chain) bool { return c.Name == name })
		}); e == nil {
			err = write()
		}
	}
	if err != nil {
		return fmt.Errorf("%w: write nftables chains for %s (the kernel must be 5.16 or newer, with nf_tables): %w", ErrGuard, device, err)
	}
	return nil
}

// addChains adds chains to a transaction. All are there before a rule leads to one.
func addChains(conn *nftables.Conn, chains []netfilter.Chain) {
	for _, c := range chains {
		conn.AddChain(c.Chain)
		conn.FlushChain(c.Chain)
	}
	for _, c := range chains {
		for _, r := range c.Rules {
			conn.AddRule(r)
		}
	}
}

// check returns wire.ErrNotWired where a chain is missing or is not as set made it: a
// container may be able to change it.
func (g guard) check() error { return checkChains(g.chains(guardTable())) }

func checkChains(chains []netfilter.Chain) error {
	conn, err := netfilter.Open()
	if err != nil {
		return err
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyNetdev)
	if err != nil {
		return fmt.Errorf("list nftables tables: %w", err)
	}
	i := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == TableName })
	if i < 0 {
		return fmt.Errorf("%w: nftables table %s of the family netdev is missing", ErrNotWired, TableName)
	}
	if tables[i].Flags != 0 {
		return fmt.Errorf("%w: nftables table %s of the family netdev is switched off", ErrNotWired, TableName)
	}
	have, err := guardChains(conn)
	if err != nil {
		return err
	}
	for _, want := range chains {
		if !slices.ContainsFunc(have, func(c *nftables.Chain) bool { return sameChain(c, want.Chain) }) {
			return fmt.Errorf("%w: nftables chain %s is missing or changed", ErrNotWired, want.Name)
		}
		rules, err := conn.GetRules(want.Table, want.Chain)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("list nftables chain %s: %w", want.Name, err)
		}
		if err != nil || !slices.EqualFunc(rules, want.Rules, sameGuardRule) {
			return fmt.Errorf("%w: nftables chain %s has other rules", ErrNotWired, want.Name)
		}
	}
	return nil
}

func sameChain(have, want *nftables.Chain) bool {
	if have.Name != want.Name || (have.Hooknum == nil) != (want.Hooknum == nil) {
		return false
	}
	if want.Hooknum == nil {
		return true
	}
	return *have.Hooknum == *want.Hooknum && have.Policy != nil && *have.Policy == *want.Policy
}

// sameGuardRule compares the rules' text and, because a container can write the same text on
// a rule of its own, what they do.
func sameGuardRule(have, want *nftables.Rule) bool {
	return bytes.Equal(have.UserData, want.UserData) && slices.EqualFunc(have.Exprs, want.Exprs, func(a, b expr.Any) bool {
		x, errX := expr.Marshal(byte(nftables.TableFamilyNetdev), a)
		y, errY := expr.Marshal(byte(nftables.TableFamilyNetdev), b)
		return errX == nil && errY == nil && bytes.Equal(x, y)
	})
}

// sweepGuards removes the chains of links that no longer exist from the table of the
// namespace of the calling thread, and the table with its last chain. It leaves those of lower
// links to sweepLowers.
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
	conn, err := netfilter.Open()
	if err != nil {
		return err
	}
	chains, err := guardChains(conn)
	if err != nil {
		return err
	}
	gone := slices.DeleteFunc(slices.Clone(chains), func(c *nftables.Chain) bool { return !match(c.Name) })
	switch {
	case len(gone) == len(chains):
		if exists, err := netfilter.Exists(conn, guardTable()); err != nil || !exists {
			return err
		}
		conn.DelTable(guardTable())
	case len(gone) == 0:
		return nil
	default:
		// Rules of one lead to another.
		for _, c := range gone {
			conn.FlushChain(c)
		}
		for _, c := range gone {
			conn.DelChain(c)
		}
	}
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete unused nftables chains: %w", err)
	}
	return nil
}

// guardChains lists the chains of the table.
func guardChains(conn *nftables.Conn) ([]*nftables.Chain, error) {
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyNetdev)
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", err)
	}
	return slices.DeleteFunc(chains, func(c *nftables.Chain) bool { return c.Table.Name != TableName }), nil
}

func guardTable() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyNetdev, Name: TableName}
}

// Ends of the names of chains, after the name of their device.
const fromSuffix, toSuffix, neighbourSuffix = "-from", "-to", "-nd"

// deviceOf returns the device that a chain is for; ok is false for chains of lower links.
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

// chains returns the chain of the frames from the container, which ends in a drop, the chain
// of its IPv6 packets, and the chain of the frames to it.
func (g guard) chains(table *nftables.Table) []netfilter.Chain {
	out, in := nftables.ChainHookEgress, nftables.ChainHookIngress
	if g.incoming {
		out, in = in, out
	}
	drops := nftables.ChainPolicyDrop
	nd := inner(table, g.device+neighbourSuffix)
	g.speaker.addNeighbourRules(&nd)
	from, to := atDevice(table, g.device, fromSuffix, out), atDevice(table, g.device, toSuffix, in)
	from.Policy = &drops
	g.speaker.addRules(&from, nd.Name)
	to.Add(guardVersion, "its gateways are those of its pools", ipv6(), icmp6(routerAdvertisement), drop())
	return []netfilter.Chain{nd, from, to}
}

// inner returns a chain to which rules of others lead.
func inner(table *nftables.Table, name string) netfilter.Chain {
	return netfilter.Chain{Chain: &nftables.Chain{Table: table, Name: name}}
}

// atDevice returns a chain that sees the frames of a device.
func atDevice(table *nftables.Table, device, suffix string, hook *nftables.ChainHook) netfilter.Chain {
	c := netfilter.NewChain(table, device+suffix, nftables.ChainTypeFilter, hook, *nftables.ChainPriorityFilter)
	c.Device = device
	return c
}

// Types of ICMP (RFC 792) and ICMPv6 messages (RFC 4861, RFC 2710, RFC 3810), and ports that
// answers of DHCP servers go to.
const (
	icmpRedirect          = 5
	listenerReport1       = 131
	listenerDone          = 132
	routerSolicitation    = 133
	routerAdvertisement   = 134
	neighbourSolicitation = 135
	neighbourAdvertised   = 136
	redirect              = 137
	listenerReport2       = 143

	dhcp4Client, dhcp6Client = 68, 546
)

// addRules adds rules that accept what the container may send; the caller drops the rest. IPv6 packets from its
// addresses go on to the chain nd.
//
// The Ethernet header alone says what a frame is to its receiver: a socket can claim another
// protocol to the kernel, whose reading of the headers follows the claim, and the kernel takes
// a VLAN tag out of the protocol. So every rule wants both to be the same.
func (s speech) addRules(c *netfilter.Chain, nd string) {
	c.Add(guardVersion, "from "+s.mac.String()+" only", link(6, 6), isNot(s.mac...), drop())
	addNoServer(c)
	// ARP (RFC 826) of Ethernet and IPv4.
	arp := slices.Concat(protocol(unix.ETH_P_ARP), network(0, 6), is(0, 1, 0x08, 0x00, 6, 4), network(8, 6), is(s.mac...))
	for _, a := range s.addrs {
		raw := a.Address.AsSlice()
		if a.Address.Is4() {
			c.Add(guardVersion, "from "+a.Address.String(), ipv4(), network(12, 4), is(raw...), accept())
			c.Add(guardVersion, "ARP of "+a.Address.String(), arp, network(14, 4), is(raw...), accept())
			c.Add(guardVersion, "ARP probe for "+a.Address.String(), arp, network(14, 4), is(0, 0, 0, 0), network(24, 4), is(raw...), accept())
			continue
		}
		c.Add(guardVersion, "from "+a.Address.String(), ipv6(), network(8, 16), is(raw...), goTo(nd))
		c.Add(guardVersion, "detects duplicates of "+a.Address.String(), s.unspecified(), icmp6(neighbourSolicitation), transport(8, 16), is(raw...), accept())
	}
	// Receivers ignore neighbour discovery in fragments (RFC 6980), but a setting of Linux.
	c.Add(guardVersion, "no fragments from its link-local address", ipv6(), s.linkLocal(network), fragmented(), drop())
	c.Add(guardVersion, "from its link-local address", ipv6(), s.linkLocal(network), goTo(nd))
	c.Add(guardVersion, "detects duplicates of its link-local address", s.unspecified(), icmp6(neighbourSolicitation), s.linkLocalTarget(), accept())
	for _, t := range []byte{routerSolicitation, listenerReport1, listenerDone, listenerReport2} {
		c.Add(guardVersion, fmt.Sprintf("ICMPv6 type %d before it has an address", t), s.unspecified(), icmp6(t), accept())
	}
}

// addNoServer adds rules that drop what makes hosts use a router or another address.
func addNoServer(c *netfilter.Chain) {
	c.Add(guardVersion, "no DHCP server", ipv4(), l4(unix.IPPROTO_UDP), transport(2, 2), is(dhcp4Client>>8, dhcp4Client&0xff), drop())
	c.Add(guardVersion, "no DHCPv6 server", ipv6(), l4(unix.IPPROTO_UDP), transport(2, 2), is(dhcp6Client>>8, dhcp6Client&0xff), drop())
	c.Add(guardVersion, "no redirects", ipv4(), l4(unix.IPPROTO_ICMP), transport(0, 1), is(icmpRedirect), drop())
	for _, t := range []byte{routerAdvertisement, redirect} {
		c.Add(guardVersion, fmt.Sprintf("no ICMPv6 type %d", t), ipv6(), icmp6(t), drop())
	}
}

// addNeighbourRules adds rules that accept IPv6 packets from the container's own addresses, but advertisements
// of others' addresses.
func (s speech) addNeighbourRules(c *netfilter.Chain) {
	for _, a := range s.addrs {
		if a.Address.Is6() {
			c.Add(guardVersion, "advertises "+a.Address.String(), icmp6(neighbourAdvertised), transport(8, 16), is(a.Address.AsSlice()...), accept())
		}
	}
	c.Add(guardVersion, "advertises its link-local address", icmp6(neighbourAdvertised), s.linkLocalTarget(), accept())
	c.Add(guardVersion, "advertises another address", icmp6(neighbourAdvertised), drop())
	c.Add(guardVersion, "other packets", accept())
}

// unspecified matches IPv6 packets without a source.
func (s speech) unspecified() []expr.Any {
	return slices.Concat(ipv6(), network(8, 16), is(make([]byte, 16)...))
}

func (s speech) linkLocalTarget() []expr.Any {
	return s.linkLocal(func(_, length uint32) []expr.Any { return transport(8, length) })
}

// linkLocal compares the source, or what header reads, with the link-local address that the
// kernel makes of the MAC address (RFC 4291, appendix A). ipvlan links, which share one,
// have a number of their own in the middle, and the U/L bit as it is.
func (s speech) linkLocal(header func(offset, length uint32) []expr.Any) []expr.Any {
	m := s.mac
	want := []byte{0xfe, 0x80, 0, 0, 0, 0, 0, 0, m[0] ^ 0x02, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]}
	if !s.sharesMAC {
		return slices.Concat(header(8, 16), is(want...))
	}
	mask := bytes.Repeat([]byte{0xff}, 16)
	mask[8], mask[11], mask[12] = 0xfd, 0, 0
	for i := range want {
		want[i] &= mask[i]
	}
	masked := []expr.Any{&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 16, Mask: mask, Xor: make([]byte, 16)}}
	return slices.Concat(header(8, 16), masked, is(want...))
}

// protocol matches frames without a tag that are what their sender says to the kernel.
func protocol(ethertype uint16) []expr.Any {
	value := is(byte(ethertype>>8), byte(ethertype))
	return slices.Concat(link(12, 2), value, []expr.Any{&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1}}, value)
}

func ipv4() []expr.Any { return protocol(unix.ETH_P_IP) }
func ipv6() []expr.Any { return protocol(unix.ETH_P_IPV6) }

func l4(protocol byte) []expr.Any {
	return slices.Concat([]expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}}, is(protocol))
}

func icmp6(kind byte) []expr.Any {
	return slices.Concat(l4(unix.IPPROTO_ICMPV6), transport(0, 1), is(kind))
}

// fragmented matches IPv6 packets with a fragment header.
func fragmented() []expr.Any {
	const present = 1 // NFT_EXTHDR_F_PRESENT
	return append([]expr.Any{&expr.Exthdr{DestRegister: 1, Type: unix.IPPROTO_FRAGMENT, Len: 1, Flags: present, Op: expr.ExthdrOpIpv6}}, is(1)...)
}

func link(offset, length uint32) []expr.Any {
	return payload(expr.PayloadBaseLLHeader, offset, length)
}
func network(offset, length uint32) []expr.Any {
	return payload(expr.PayloadBaseNetworkHeader, offset, length)
}
func transport(offset, length uint32) []expr.Any {
	return payload(expr.PayloadBaseTransportHeader, offset, length)
}

func payload(base expr.PayloadBase, offset, length uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: base, Offset: offset, Len: length}}
}

func is(data ...byte) []expr.Any {
	return []expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data}}
}
func isNot(data ...byte) []expr.Any {
	return []expr.Any{&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: data}}
}
func accept() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}} }
func goTo(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}
}
func drop() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}} }
