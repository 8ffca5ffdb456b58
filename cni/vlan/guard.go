// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"bytes"
	"errors"
	"fmt"
	"net"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/api"
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
	mac      net.HardwareAddr
	addrs    []api.Address
}

// ErrGuard is returned where the kernel cannot filter what a container sends.
var ErrGuard = errors.New("cannot filter what the container sends")

// set makes the chains of the guard, complete in one transaction, in the namespace of the
// calling thread.
func (g guard) set() error {
	conn, err := netfilter.Open()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrGuard, err)
	}
	table := guardTable()
	conn.AddTable(table)
	for _, c := range g.chains(table) {
		conn.AddChain(c.Chain)
		conn.FlushChain(c.Chain)
		for _, r := range c.Rules {
			conn.AddRule(r)
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("%w: write nftables chains for %s (the kernel must be 5.16 or newer, with nf_tables): %w", ErrGuard, g.device, err)
	}
	return nil
}

// check returns wire.ErrNotWired where a chain is missing or has other rules.
func (g guard) check() error {
	for _, c := range g.chains(guardTable()) {
		whole, err := c.IsWhole()
		if err != nil {
			return err
		}
		if !whole {
			return fmt.Errorf("%w: nftables chain %s is incomplete", ErrNotWired, c.Name)
		}
	}
	return nil
}

// sweepGuards removes the chains of links that no longer exist from the table of the
// namespace of the calling thread, and the table with its last chain.
func sweepGuards() error {
	conn, err := netfilter.Open()
	if err != nil {
		return err
	}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyNetdev)
	if err != nil {
		return fmt.Errorf("list nftables chains: %w", err)
	}
	left, gone := 0, 0
	for _, c := range chains {
		if c.Table.Name != TableName {
			continue
		}
		link, err := rtnl.LinkOrNil(deviceOf(c.Name))
		if err != nil {
			return err
		}
		if link != nil {
			left++
			continue
		}
		gone++
		conn.FlushChain(c)
		conn.DelChain(c)
	}
	if gone == 0 && left > 0 {
		return nil
	}
	if left == 0 {
		if exists, err := netfilter.Exists(conn, guardTable()); err != nil || !exists {
			return err
		}
		conn.DelTable(guardTable())
	}
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete unused nftables chains: %w", err)
	}
	return nil
}

func guardTable() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyNetdev, Name: TableName}
}

const fromSuffix, toSuffix = "-from", "-to"

// deviceOf returns the device that a chain is for.
func deviceOf(chain string) string {
	for _, suffix := range []string{fromSuffix, toSuffix} {
		if device, ok := bytes.CutSuffix([]byte(chain), []byte(suffix)); ok {
			return string(device)
		}
	}
	return chain
}

// chains returns the chain of the frames from the container, which ends in a drop, and that
// of the frames to it.
func (g guard) chains(table *nftables.Table) []netfilter.Chain {
	from, to := nftables.ChainHookEgress, nftables.ChainHookIngress
	if g.incoming {
		from, to = to, from
	}
	chains := []netfilter.Chain{g.chain(table, fromSuffix, from), g.chain(table, toSuffix, to)}
	drops := nftables.ChainPolicyDrop
	chains[0].Policy = &drops
	g.addFromRules(&chains[0])
	chains[1].Add(guardVersion, "its gateways are those of its pools", protocol(unix.ETH_P_IPV6), icmp6(routerAdvertisement), drop())
	return chains
}

func (g guard) chain(table *nftables.Table, suffix string, hook *nftables.ChainHook) netfilter.Chain {
	c := netfilter.NewChain(table, g.device+suffix, nftables.ChainTypeFilter, hook, *nftables.ChainPriorityFilter)
	c.Device = g.device
	return c
}

// Types of ICMPv6 messages (RFC 4861).
const (
	routerAdvertisement    = 134
	neighbourAdvertisement = 136
	redirect               = 137
)

func (g guard) addFromRules(c *netfilter.Chain) {
	c.Add(guardVersion, "from "+g.mac.String()+" only", link(6, 6), isNot(g.mac...), drop())
	for _, t := range []byte{routerAdvertisement, redirect} {
		c.Add(guardVersion, fmt.Sprintf("no ICMPv6 type %d", t), protocol(unix.ETH_P_IPV6), icmp6(t), drop())
	}
	for _, a := range g.addrs {
		raw := a.Address.AsSlice()
		if a.Address.Is4() {
			c.Add(guardVersion, "from "+a.Address.String(), protocol(unix.ETH_P_IP), network(12, 4), is(raw...), accept())
			// The sender's addresses of ARP (RFC 826).
			c.Add(guardVersion, "ARP of "+a.Address.String(), protocol(unix.ETH_P_ARP), network(8, 6), is(g.mac...), network(14, 4), is(raw...), accept())
			continue
		}
		c.Add(guardVersion, "advertises "+a.Address.String(), protocol(unix.ETH_P_IPV6), icmp6(neighbourAdvertisement), transport(8, 16), is(raw...), accept())
	}
	c.Add(guardVersion, "advertises a link-local address", protocol(unix.ETH_P_IPV6), icmp6(neighbourAdvertisement), transport(8, 2), linkLocal(), accept())
	c.Add(guardVersion, "advertises another address", protocol(unix.ETH_P_IPV6), icmp6(neighbourAdvertisement), drop())
	for _, a := range g.addrs {
		if a.Address.Is6() {
			c.Add(guardVersion, "from "+a.Address.String(), protocol(unix.ETH_P_IPV6), network(8, 16), is(a.Address.AsSlice()...), accept())
		}
	}
	c.Add(guardVersion, "from a link-local address", protocol(unix.ETH_P_IPV6), network(8, 2), linkLocal(), accept())
	// Duplicate address detection and reports of multicast listeners.
	c.Add(guardVersion, "from no address", protocol(unix.ETH_P_IPV6), []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}}, is(unix.IPPROTO_ICMPV6),
		network(8, 16), is(make([]byte, 16)...), accept())
}

func protocol(ethertype uint16) []expr.Any {
	return append([]expr.Any{&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1}}, is(byte(ethertype>>8), byte(ethertype))...)
}

func icmp6(kind byte) []expr.Any {
	match := append([]expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}}, is(unix.IPPROTO_ICMPV6)...)
	return append(append(match, transport(0, 1)...), is(kind)...)
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

// linkLocal compares the first two bytes of an address with fe80::/10.
func linkLocal() []expr.Any {
	return append([]expr.Any{&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 2, Mask: []byte{0xff, 0xc0}, Xor: []byte{0, 0}}}, is(0xfe, 0x80)...)
}

func is(data ...byte) []expr.Any {
	return []expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data}}
}
func isNot(data ...byte) []expr.Any {
	return []expr.Any{&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: data}}
}
func accept() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}} }
func drop() []expr.Any   { return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}} }
