// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/nftables"
	"github.com/berth-dev/berth/ipam/iprange"
)

// TableName is the name of the table, in the family inet.
const TableName = "berth-overlay"

// Spec describes the table.
type Spec struct {
	// Bridge is flannel's bridge if the node's pods are on it. Otherwise each pod has a link of its
	// own (package podlink).
	Bridge string
	// Subnets are the node's own pod CIDRs.
	Subnets []netip.Prefix
	// Inside are the destinations that are not masqueraded. They may overlap.
	Inside []iprange.Range
	// Masquerade is false if another program masquerades.
	Masquerade bool
	// Tunnel is the UDP port by which packets come from other nodes, 0 without a tunnel. Peers are the
	// addresses of these nodes.
	Tunnel uint16
	Peers  []netip.Addr
}

// Put makes the table as the Spec says, in one transaction, and reports whether something was
// missing or different. It is idempotent; the caller makes calls one after another.
func Put(spec Spec) (changed bool, err error) {
	changed, err = tableOf(spec).Sync()
	if err != nil {
		return false, fmt.Errorf("%w (does the kernel have nf_tables, nft_masq, nft_fib_inet and nft_set_rbtree?)", err)
	}
	return changed, nil
}

// Remove deletes the table, if there is one.
func Remove() error {
	return nftables.RemoveTable(&nftables.Table{Family: nftables.INet, Name: TableName})
}

func tableOf(spec Spec) *nftables.Table {
	t := &nftables.Table{Family: nftables.INet, Name: TableName, Chains: []*nftables.Chain{
		{Name: "sources", Base: nftables.Filter(nftables.Prerouting, nftables.PriorityRaw), Rules: nftables.Rules(sourceRules(spec)...)},
	}}
	if spec.Masquerade {
		t.Chains = append(t.Chains, &nftables.Chain{Name: "masquerade", Base: nftables.NAT(nftables.Postrouting, nftables.PrioritySrcNAT), Rules: nftables.Rules(masqueradeRules(spec)...)})
	}
	if spec.Tunnel != 0 {
		t.Chains = append(t.Chains,
			&nftables.Chain{Name: "tunnel", Base: nftables.Filter(nftables.Input, nftables.PriorityFilter), Rules: nftables.Rules(tunnelRules(spec.Tunnel)...)},
			&nftables.Chain{Name: "to_tunnels", Base: nftables.Filter(nftables.Forward, nftables.PriorityFilter), Rules: nftables.Rules(wrappedRules(spec.Tunnel)...)})
	}
	var subnets, peers []iprange.Range
	for _, p := range spec.Subnets {
		subnets = append(subnets, iprange.OfPrefix(p.Masked()))
	}
	for _, a := range spec.Peers {
		peers = append(peers, iprange.Range{First: a, Last: a})
	}
	for _, ip := range nftables.IPs {
		t.Sets = append(t.Sets, intervals("subnets", ip, subnets), intervals("inside", ip, spec.Inside))
		if spec.Tunnel != 0 {
			t.Sets = append(t.Sets, intervals("peers", ip, peers))
		}
	}
	return t
}

// intervals returns the set with the ranges of one family: for each range its first address and, as
// the end, the address after its last.
func intervals(name string, ip *nftables.IP, ranges []iprange.Range) *nftables.Set {
	var of []iprange.Range
	for _, r := range ranges {
		if nftables.IPOf(r.First) == ip {
			of = append(of, r)
		}
	}
	var elements []nftables.Element
	for _, r := range iprange.SetOf(of...) {
		elements = append(elements, nftables.Element{Key: r.First.AsSlice()})
		if end := r.Last.Next(); end.IsValid() {
			elements = append(elements, nftables.Element{Key: end.AsSlice(), End: true})
		}
	}
	return &nftables.Set{Name: name + ip.Suffix, Key: []nftables.Type{ip.Addr}, Interval: true, Elements: nftables.Elements(elements...)}
}

func sourceRules(spec Spec) []nftables.Rule {
	from := nftables.IIFName.Is([]byte(netfilter.OverlayPrefix)...)
	if spec.Bridge != "" {
		from = nftables.IIFName.IsLink(spec.Bridge)
	}
	all := append(netfilter.SourceRulesIPv6(from),
		nftables.NewRule("a pod looks for duplicates of its address", from, nftables.V6.Is, nftables.V6.SAddr.Is(make([]byte, 16)...), nftables.Accept))
	if spec.Bridge == "" {
		return append(all, nftables.NewRule("a pod sends from its own addresses", from, nftables.NoWayBack, nftables.Drop))
	}
	for _, ip := range nftables.IPs {
		all = append(all, nftables.NewRule("a pod sends from the node's pod CIDRs", from, ip.Is, nftables.NotIn("subnets"+ip.Suffix, ip.SAddr), nftables.Drop))
	}
	return all
}

// toTunnel matches packets to the UDP port of a tunnel.
func toTunnel(port uint16) nftables.Statement {
	return nftables.L4Proto.Is(unix.IPPROTO_UDP).Then(nftables.DPort.Is(byte(port>>8), byte(port)))
}

func tunnelRules(port uint16) (all []nftables.Rule) {
	for _, ip := range nftables.IPs {
		all = append(all, nftables.NewRule("only other nodes wrap packets", ip.Is, toTunnel(port), nftables.NotIn("peers"+ip.Suffix, ip.SAddr), nftables.Drop))
	}
	return all
}

// wrappedRules keep the node from forwarding packets of strangers into the tunnels of other nodes:
// if it masqueraded them, the other nodes would take this node for the sender. The node may be the
// router of other nodes.
func wrappedRules(port uint16) (all []nftables.Rule) {
	for _, ip := range nftables.IPs {
		all = append(all, nftables.NewRule("only nodes wrap packets", ip.Is, toTunnel(port), nftables.In("peers"+ip.Suffix, ip.DAddr), nftables.NotIn("peers"+ip.Suffix, ip.SAddr), nftables.Drop))
	}
	return all
}

func masqueradeRules(spec Spec) (all []nftables.Rule) {
	outside := nftables.OIFName.IsNot([]byte(netfilter.OverlayPrefix)...)
	if spec.Bridge != "" {
		outside = nftables.OIFName.IsNotLink(spec.Bridge)
	}
	notMulticast := map[*nftables.IP]nftables.Statement{
		nftables.V4: nftables.V4.DAddr.And(0xf0).IsNot(224),  // 224.0.0.0/4
		nftables.V6: nftables.V6.DAddr.And(0xff).IsNot(0xff), // ff00::/8
	}
	for _, ip := range nftables.IPs {
		// Connections of two pods must not get the same port.
		all = append(all, nftables.NewRule("the network outside does not know the pods of this network", ip.Is, nftables.In("subnets"+ip.Suffix, ip.SAddr),
			outside, nftables.NotIn("inside"+ip.Suffix, ip.DAddr), notMulticast[ip], nftables.MasqueradeRandom))
	}
	return all
}
