// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/nftables"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// LeadTable is the name of the tables that lead answers to other nodes, one of each family.
const LeadTable = "berth-egress-lead"

// Lead is an address from whose ports several nodes send, while this node answers for it.
type Lead struct {
	Address netip.Addr
	// Link is the index of the link to its network.
	Link int
	// Size is the number of ports of a block, a power of two, and Nodes has the nodes' own addresses
	// in the network, by the first port of their block. This node is not among them.
	Size  uint16
	Nodes map[uint16]netip.Addr
}

// PutLeads has the kernel lead answers so, without any state, and no others. It is idempotent.
func PutLeads(all []Lead) error {
	for _, ip := range nftables.IPs {
		t := leadTable(ip, all)
		if len(t.Chains) == 0 {
			if err := nftables.RemoveTable(t); err != nil {
				return err
			}
			continue
		}
		if _, err := t.Sync(); err != nil {
			return fmt.Errorf("lead answers to other nodes: %w (does the kernel have nft_dup_ipv4 and nft_dup_ipv6?)", err)
		}
	}
	var errs []error
	for _, family := range rtnl.Families {
		errs = append(errs, putReverse(family, all))
	}
	return errors.Join(errs...)
}

// putReverse has the look-up of the way back to these addresses find the link. Package wire leads
// what arrives by the link nowhere, so that the kernel answers for the addresses.
func putReverse(family int, all []Lead) error {
	rules, err := rtnl.Rules(family)
	if err != nil {
		return err
	}
	rules = slices.DeleteFunc(rules, func(r netlink.Rule) bool { return r.Priority != priorityArrive && r.Priority != priorityReverse })
	var errs []error
	for i := range all {
		if rtnl.FamilyOf(all[i].Address) != family {
			continue
		}
		link, err := netlink.LinkByIndex(all[i].Link)
		if err != nil {
			return fmt.Errorf("find link %d: %w", all[i].Link, err)
		}
		arrive, reverse := rtnl.NewRule(family, priorityArrive, unix.RT_TABLE_UNSPEC), rtnl.NewRule(family, priorityReverse, unix.RT_TABLE_MAIN)
		arrive.IifName, arrive.Goto = link.Attrs().Name, wire.PriorityPods
		for _, want := range []netlink.Rule{arrive, reverse} {
			want.Dst = rtnl.IPNet(rtnl.SinglePrefix(all[i].Address))
			if k := slices.IndexFunc(rules, func(have netlink.Rule) bool { return rtnl.SameRule(want, have) }); k >= 0 {
				rules = slices.Delete(rules, k, k+1)
			} else {
				errs = append(errs, rtnl.AddRule(want))
			}
		}
	}
	for _, r := range rules {
		errs = append(errs, rtnl.DeleteRule(r))
	}
	return errors.Join(errs...)
}

// leadsMap has nodes by address and first port, addressesMap the chains of addresses.
const leadsMap, addressesMap = "leads", "addresses"

func leadTable(ip *nftables.IP, all []Lead) *nftables.Table {
	t := &nftables.Table{Family: map[*nftables.IP]nftables.TableFamily{nftables.V4: nftables.IPv4, nftables.V6: nftables.IPv6}[ip], Name: LeadTable}
	var leads, addresses []nftables.Element
	var arrivals []nftables.Rule
	links := map[int]bool{}
	address := nftables.Vmap(addressesMap, ip.DAddr)
	for i := range all {
		l := &all[i]
		if nftables.IPOf(l.Address) != ip {
			continue
		}
		for first, node := range l.Nodes {
			leads = append(leads, nftables.Element{Key: nftables.AppendPort(l.Address.AsSlice(), first), Data: node.AsSlice()})
		}
		chain := &nftables.Chain{Name: fmt.Sprintf("lead%x", l.Address.AsSlice()), Rules: nftables.Rules(l.rules(ip)...)}
		t.Chains = append(t.Chains, chain)
		addresses = append(addresses, nftables.Element{Key: l.Address.AsSlice(), Goto: chain.Name})
		if !links[l.Link] {
			links[l.Link] = true
			arrivals = append(arrivals, nftables.NewRule("by the link of the addresses", nftables.IIFIndex.IsIndex(l.Link), address))
		}
	}
	if len(t.Chains) == 0 {
		return t
	}
	t.Sets = []*nftables.Set{
		protocolSet(unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP),
		{Name: leadsMap, Key: []nftables.Type{ip.Addr, nftables.InetService}, Data: []nftables.Type{ip.Addr}, Elements: nftables.Elements(leads...)},
		{Name: addressesMap, Key: []nftables.Type{ip.Addr}, Verdicts: true, Elements: nftables.Elements(addresses...)},
	}
	t.Chains = append(t.Chains,
		// Before connections are tracked, and after fragments are put together.
		&nftables.Chain{Name: "arrive", Base: nftables.Filter(nftables.Prerouting, nftables.PriorityRaw), Rules: nftables.Rules(arrivals...)},
		// From a pod of this node with a floating IP: after its part of the connection was tracked.
		&nftables.Chain{Name: "pods", Base: nftables.Filter(nftables.Prerouting, nftables.PriorityMangle), Rules: nftables.Rules(
			// The kernel puts fragments together where a rule asks for connections.
			nftables.NewRule("from a pod, in a connection", nftables.IsReply, address), nftables.NewRule("from a pod", address))})
	return t
}

// rules returns the rules for packets to the address, by the port of the node that sent what they
// answer.
func (l *Lead) rules(ip *nftables.IP) []nftables.Rule {
	mask := ^(l.Size - 1)
	lead := func(offset uint32) nftables.Statement {
		return nftables.Lead(leadsMap, l.Link, ip.DAddr, nftables.Transport(offset, 2).And(byte(mask>>8), byte(mask)))
	}
	// The header of the packet that an error is about is behind the eight bytes of the error's own.
	const ownHeader, portOffset, idOffset = 8, 0, 4
	icmp, echoReply, errs, header, protocol := byte(unix.IPPROTO_ICMP), byte(0), [][2]byte{{3, 3}, {11, 12}}, uint32(20), uint32(9)
	if ip == nftables.V6 {
		icmp, echoReply, errs, header, protocol = unix.IPPROTO_ICMPV6, 129, [][2]byte{{1, 4}}, 40, 6
	}
	inner := nftables.Transport(ownHeader+protocol, 1)
	all := []nftables.Rule{
		nftables.NewRule("to a port", nftables.In(portProtocols, nftables.L4Proto), lead(2)),
		nftables.NewRule("an echo", nftables.L4Proto.Is(icmp), nftables.MessageType.Is(echoReply), lead(idOffset)),
	}
	for _, kinds := range errs {
		isError := nftables.L4Proto.Is(icmp).Then(nftables.MessageType.Between(kinds[:1], kinds[1:]))
		all = append(all,
			nftables.NewRule("an error about a port", isError, nftables.In(portProtocols, inner), lead(ownHeader+header+portOffset)),
			nftables.NewRule("an error about an echo", isError, inner.Is(icmp), lead(ownHeader+header+idOffset)))
	}
	return all
}
