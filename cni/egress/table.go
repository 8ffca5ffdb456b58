// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/nftables"
)

// TableName is the name of the table, in the family inet.
const TableName = "berth-egress"

const (
	// beforeRouting comes after the chains of other programs, so that a mark that they give a packet
	// does not replace ours.
	beforeRouting = 290
	// beforeSourceNAT comes before the source NAT of all others, also Berth's.
	beforeSourceNAT = 80
	// afterSourceNAT comes after it.
	afterSourceNAT = 120
)

// refusedCounter counts packets that did not leave, because they would have had another source.
const refusedCounter = "refused"

// podsMap leads from a pod's address to the chain of its Way.
const podsMap = "pods"

type table struct{ nftables.Table }

func (t *table) remove() error { return nftables.RemoveTable(&t.Table) }

// sourcesMap leads from a pod's address to the chain with the source of its Way.
const sourcesMap = "sources"

// portProtocols is the set of protocols with ports or ids, by which answers are told apart.
const portProtocols = "port-protocols"

func protocolSet(protocols ...byte) *nftables.Set {
	var keys [][]byte
	for _, p := range protocols {
		keys = append(keys, []byte{p})
	}
	return &nftables.Set{Name: portProtocols, Key: []nftables.Type{nftables.InetProto}, Constant: true, Elements: nftables.Keys(keys...)}
}

// tableOf returns the table. Its chains have the rules of all families, as one family may have
// none.
func tableOf(all []Way) *table {
	t := &table{nftables.Table{Family: nftables.INet, Name: TableName, Counters: []string{refusedCounter}}}
	t.Sets = append(t.Sets, protocolSet(unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6))
	var mark, source, check, refuse []nftables.Rule
	pods, sources := map[*nftables.IP][]nftables.Element{}, map[*nftables.IP][]nftables.Element{}
	for i := range all {
		w := &all[i]
		ip := nftables.IPOf(w.Subnet.Addr())
		suffix := fmt.Sprintf("%d_%s", i+1, ip.Suffix)
		chain := &nftables.Chain{Name: "way" + suffix, Rules: nftables.Rules(w.choose(ip)...)}
		if w.Number == 0 {
			chain.Name = "toomany" + suffix
		}
		t.Chains = append(t.Chains, chain)
		for _, pod := range w.Pods {
			pods[ip] = append(pods[ip], nftables.Element{Key: pod.AsSlice(), Goto: chain.Name})
		}
		if w.Number == 0 {
			continue
		}
		leaves := ip.Is.Then(nftables.HasMark(leaving(w.Number), markMask))
		if w.IsOpen() {
			if !w.Ports.isAll() {
				mark = append(mark, nftables.NewRule("an answer to nobody here", ip.Is, nftables.IIFIndex.IsIndex(w.Link), ip.DAddr.Is(w.Address.AsSlice()...), nftables.Drop))
			}
			if ip == nftables.V4 { // IPv6 has no reverse path filter in the kernel.
				mark = append(mark, nftables.NewRule("an answer", ip.Is, nftables.IsReply, nftables.IIFIndex.IsIndex(w.Link),
					ip.CTReplyDAddr().Is(w.Address.AsSlice()...), nftables.SetMark(answer(w.Number), markMask)))
			}
			from := &nftables.Chain{Name: "source" + suffix, Rules: nftables.Rules(nftables.NewRule("leaves with the address", leaves, w.translate(ip)))}
			t.Chains = append(t.Chains, from)
			for _, pod := range w.Pods {
				sources[ip] = append(sources[ip], nftables.Element{Key: pod.AsSlice(), Goto: from.Name})
			}
			check = append(check, nftables.NewRule("has the address, and so may the node", leaves, ip.SAddr.Is(w.Address.AsSlice()...), w.owns(), nftables.Accept))
		}
		refuse = append(refuse, nftables.NewRule("has another address, or the node has lost it", leaves, nftables.CounterNamed(refusedCounter), nftables.Drop))
	}
	mark = append(mark,
		nftables.NewRule("answers go where the questions came from", nftables.IsReply, nftables.Accept),
		nftables.NewRule("connections that the node translates stay", nftables.DestinationTranslated, nftables.Accept),
		nftables.NewRule("to the node", nftables.ToNode, nftables.Accept))
	for _, ip := range nftables.IPs {
		for name, elements := range map[string][]nftables.Element{podsMap: pods[ip], sourcesMap: sources[ip]} {
			t.Sets = append(t.Sets, &nftables.Set{Name: name + ip.Suffix, Key: []nftables.Type{ip.Addr}, Verdicts: true, Elements: nftables.Elements(elements...)})
		}
		mark = append(mark, nftables.NewRule("from a pod", ip.Is, nftables.Vmap(podsMap+ip.Suffix, ip.SAddr)))
		source = append(source, nftables.NewRule("from a pod", ip.Is, nftables.Vmap(sourcesMap+ip.Suffix, ip.SAddr)))
	}
	t.Chains = append(t.Chains,
		&nftables.Chain{Name: "mark", Base: nftables.Filter(nftables.Prerouting, beforeRouting), Rules: nftables.Rules(mark...)},
		&nftables.Chain{Name: "source", Base: nftables.NAT(nftables.Postrouting, beforeSourceNAT), Rules: nftables.Rules(source...)},
		&nftables.Chain{Name: "check", Base: nftables.Filter(nftables.Postrouting, afterSourceNAT), Rules: nftables.Rules(append(check, refuse...)...)})
	return t
}

// translate gives a packet the source of the Way. Without ports, no answer to a protocol would find
// the node: it is refused.
func (w *Way) translate(ip *nftables.IP) nftables.Statement {
	if w.Ports.isAll() {
		return ip.SNAT(w.Address)
	}
	return nftables.In(portProtocols, nftables.L4Proto).Then(ip.SNAT(w.Address, w.Ports.First, w.Ports.Last))
}

// owns matches packets while the node may send from the address of the Way.
func (w *Way) owns() nftables.Statement {
	if w.Ports.isAll() {
		return nftables.FromNode
	}
	return nftables.In(portProtocols, nftables.L4Proto)
}

// notRouted are groups and link-local addresses, to which no gateway leads.
var notRouted = []netip.Prefix{
	netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("ff00::/8"),
}

// choose returns the rules for packets of the Way's pods: after them a packet has the mark, or goes
// as without us.
func (w *Way) choose(ip *nftables.IP) []nftables.Rule {
	var all []nftables.Rule
	for _, p := range notRouted {
		if nftables.IPOf(p.Addr()) == ip {
			all = append(all, nftables.NewRule("not routed", to(ip, p), nftables.Accept))
		}
	}
	for _, p := range w.Except {
		all = append(all, nftables.NewRule("an exception", to(ip, p), nftables.Accept))
	}
	all = append(all, nftables.NewRule("a question to the routes", nftables.SetMark(leaving(w.Number), markMask)))
	ends := nftables.Accept
	if w.Number == 0 {
		ends = nftables.CounterNamed(refusedCounter).Then(nftables.Drop)
	}
	toSubnet := to(ip, w.Subnet)
	if w.IsOpen() {
		toSubnet = toSubnet.Then(nftables.WayOut.IsIndex(w.Link))
	}
	return append(all,
		nftables.NewRule("the network of the address", toSubnet, ends),
		nftables.NewRule("the node has a route of its own", nftables.WayOut.IsNotIndex(0), nftables.SetMark(0, markMask), nftables.Accept),
		nftables.NewRule("outside", ends))
}

func to(ip *nftables.IP, p netip.Prefix) nftables.Statement {
	all := make([]byte, ip.Addr.Size())
	for i := range p.Bits() {
		all[i/8] |= 0x80 >> (i % 8)
	}
	return ip.DAddr.And(all...).Is(p.Masked().Addr().AsSlice()...)
}

// Pods returns the addresses of pods that the kernel has leave so, with the name of their Way's
// chain.
func Pods() (map[netip.Addr]string, error) {
	t := tableOf(nil)
	contents, err := t.Contents()
	if err != nil || !contents.Exists {
		return nil, err
	}
	state, err := t.Read()
	if err != nil {
		return nil, err
	}
	found := map[netip.Addr]string{}
	for _, ip := range nftables.IPs {
		for _, e := range state.Elements(podsMap + ip.Suffix) {
			if addr, ok := netip.AddrFromSlice(e.Key); ok {
				found[addr] = e.Goto
			}
		}
	}
	return found, nil
}
