// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/nftables"
)

const (
	// beforeSourceNAT comes before the source NAT of iptables, kube-proxy and others.
	beforeSourceNAT = 90
	// beforeRouting comes after the chains of other programs, so that their marks do not replace ours.
	beforeRouting = 290
)

// Mark and ArrivalMark are values of the two bits MarkMask of the firewall mark (skb->mark). While
// the node routes them, packets from pods have Mark, and packets that arrive for pods ArrivalMark,
// also for pods of other nodes that this one chose as endpoints of a Service. Package egress has
// values with two more bits, 0x20 and 0x40, for ordinary pods: its rules come before those for Mark
// and ArrivalMark. Routing rules match them: a change of the values must take over the rules of
// earlier versions. No value or mask of the programs that we know sets bit 0x1000 alone or with
// 0x10:
//
//	wg-quick            51820 = 0xca6c, and upward for further tunnels
//	kube-proxy          0x4000, 0x8000
//	flannel             0x4000
//	portmap             0x2000
//	AWS CNI             0x80
//	Cilium              0x0200 to 0x0f00, and identities from 0x10000; with IPsec keys in 0xf000,
//	                    whose packets its own rules route before ours
//	Calico              0xffff0000
//	Tailscale           0xff0000
//	Istio               0x539, 0x111
//	OVN-Kubernetes      0x3f0, 0x1745ec
//	Docker              as given, 0xd0c in its examples
//	small numbers       below 0x1000: many
const (
	Mark        = 0x1000
	ArrivalMark = 0x1010
	MarkMask    = 0x1010
)

// Names of sets; the sets of one family end in 4 or 6.
const (
	linksSet, pastSet, arrivalsSet, routedSet, askedSet = "links", "past", "arrivals", "routed", "asked"
	sourcesSet, floatingSet, hairpinSet                 = "sources", "floating", "hairpin"
	answeredSet, triedSet, hopsSet                      = "answered", "tried", "hops"
)

// refusedCounter counts packets of pods to too many new neighbours.
const refusedCounter = "refused_neighbours"

var inetTable, arpTable = newTables()

// arrival is the key of a link and an IPv4 address whose packets arrive by the link. The kernel has
// no reverse path filter for IPv6.
var arrival = []nftables.Type{nftables.IfName, nftables.IPv4Addr}

func newTables() (inet, arp *nftables.Table) {
	inet = &nftables.Table{
		Family: nftables.INet, Name: TableName, Counters: []string{refusedCounter},
		Sets: []*nftables.Set{
			{Name: linksSet, Key: []nftables.Type{nftables.IfName}},
			{Name: pastSet, Key: []nftables.Type{nftables.IfName}},
			{Name: arrivalsSet, Key: arrival},
			{Name: routedSet, Key: []nftables.Type{nftables.IfName}},
		},
		Chains: []*nftables.Chain{
			{Name: "sources", Base: nftables.Filter(nftables.Prerouting, nftables.PriorityRaw), Rules: nftables.Rules(sourceRules()...)},
			{Name: "mark", Base: nftables.Filter(nftables.Prerouting, beforeRouting), Rules: nftables.Rules(markRules()...)},
			{Name: "keep_source", Base: nftables.NAT(nftables.Postrouting, beforeSourceNAT), Rules: nftables.Rules(keepRules()...)},
			{Name: "neighbours", Base: nftables.Filter(nftables.Forward, afterFilters), Rules: nftables.Rules(neighbourRules()...)},
			{Name: "secluded", Base: nftables.Filter(nftables.Input, nftables.PriorityFilter), Rules: nftables.Rules(secludedRules()...)},
			{Name: "secluded_forward", Base: nftables.Filter(nftables.Forward, nftables.PriorityFilter), Rules: nftables.Rules(secludedForwardRules()...)},
		},
	}
	for _, ip := range nftables.IPs {
		inet.Sets = append(inet.Sets,
			&nftables.Set{Name: sourcesSet + ip.Suffix, Key: []nftables.Type{nftables.IfName, ip.Addr}},
			&nftables.Set{Name: floatingSet + ip.Suffix, Key: []nftables.Type{ip.Addr}},
			&nftables.Set{Name: hairpinSet + ip.Suffix, Key: []nftables.Type{ip.Addr, ip.Addr}},
			&nftables.Set{Name: answeredSet + ip.Suffix, Key: []nftables.Type{ip.Addr}, Timeout: rememberAnswer, Room: 1 << 16},
			&nftables.Set{Name: triedSet + ip.Suffix, Key: []nftables.Type{ip.Addr}, Timeout: rememberTry, Room: mostTried},
			&nftables.Set{Name: hopsSet + ip.Suffix, Key: []nftables.Type{ip.Addr}, Timeout: rememberHop, Room: 1 << 12})
	}
	// The target of an ARP packet of Ethernet and IPv4.
	target := nftables.Network(24, 4)
	arp = &nftables.Table{
		Family: nftables.ARP, Name: TableName,
		Sets: []*nftables.Set{{Name: askedSet, Key: arrival}},
		Chains: []*nftables.Chain{{Name: "mark", Base: nftables.Filter(nftables.ARPInput, nftables.PriorityFilter), Rules: nftables.Rules(
			nftables.NewRule("asks for a pod", nftables.In(askedSet, nftables.IIFName, target), nftables.SetMark(ArrivalMark, MarkMask)),
		)}},
	}
	return inet, arp
}

var fromPod = nftables.In(linksSet, nftables.IIFName)

// SourceRulesIPv6 returns the rules before the check of a pod's sources, for packets that match
// from: they allow neighbour discovery, and drop all other packets from link-local addresses, which
// no policy knows.
func SourceRulesIPv6(from nftables.Statement) []nftables.Rule {
	v6 := from.Then(nftables.V6.Is)
	return []nftables.Rule{
		nftables.NewRule("no pod is a router", v6, nftables.ICMPv6(nftables.RouterAdvertisement), nftables.Drop),
		nftables.NewRule("ICMPv6 from a link-local address", v6, nftables.FromLinkLocal, nftables.L4Proto.Is(unix.IPPROTO_ICMPV6), nftables.Accept),
		nftables.NewRule("nothing else from a link-local address", v6, nftables.FromLinkLocal, nftables.Drop),
	}
}

func sourceRules() []nftables.Rule {
	all := SourceRulesIPv6(fromPod)
	for _, ip := range nftables.IPs {
		all = append(all, nftables.NewRule("a pod sends from its own addresses", fromPod, ip.Is, nftables.NotIn(sourcesSet+ip.Suffix, nftables.IIFName, ip.SAddr), nftables.Drop))
	}
	return all
}

// secludedRules close the node to the networks of links that Berth made: the node has no address
// there, but would answer for addresses of its other links. They accept neighbour discovery and,
// for ipvlan links in mode l3s, packets of pods.
func secludedRules() []nftables.Rule {
	all := []nftables.Rule{nftables.NewRule("other links", nftables.IIFName.IsNot([]byte(LinkPrefix)...), nftables.Accept)}
	for _, prefix := range []string{VLANPrefix, BridgePrefix} {
		on := nftables.IIFName.Is([]byte(prefix)...)
		for _, kind := range []byte{nftables.ListenerQuery, nftables.NeighborSolicitation, nftables.NeighborAdvertisement} {
			all = append(all, nftables.NewRule(fmt.Sprintf("ICMPv6 type %d", kind), on, nftables.V6.Is, nftables.ICMPv6(kind), nftables.Accept))
		}
		for _, ip := range nftables.IPs {
			all = append(all, nftables.NewRule("to a pod", on, ip.Is, nftables.In(floatingSet+ip.Suffix, ip.DAddr), nftables.Accept))
		}
		all = append(all, nftables.NewRule("the node has no address there", on, nftables.Drop))
	}
	return all
}

// secludedForwardRules let hosts of a VLAN reach only the node's pods through links that Berth made
// there: IPv6 forwards on all links, and IPv4 on links on which the node answers for pods. With
// br_netfilter packets that stay on a bridge come here, too.
//
// If a pod has direct access to its network, the node forwards by the pod's link only replies and
// connections whose destination it translates, such as to a NodePort. Everything else has to use
// the pod's own network, whose gateway may be a firewall.
func secludedForwardRules() []nftables.Rule {
	past := nftables.In(pastSet, nftables.IIFName)
	all := []nftables.Rule{
		nftables.NewRule("other links", nftables.IIFName.IsNot([]byte(LinkPrefix)...), nftables.Accept),
		nftables.NewRule("an answer of a pod", past, nftables.IsReply, nftables.Accept),
		nftables.NewRule("a connection that the node translates", past, nftables.DestinationTranslated, nftables.Accept),
		nftables.NewRule("a pod does not go past its own network", past, nftables.Drop),
		nftables.NewRule("to a port of a bridge", nftables.OIFName.Is([]byte(BridgePrefix)...), nftables.Accept),
	}
	for _, prefix := range []string{VLANPrefix, BridgePrefix} {
		on := nftables.IIFName.Is([]byte(prefix)...)
		for _, ip := range nftables.IPs {
			all = append(all, nftables.NewRule("to a pod", on, ip.Is, nftables.In(floatingSet+ip.Suffix, ip.DAddr), nftables.Accept))
		}
		all = append(all, nftables.NewRule("the node is no router there", on, nftables.Drop))
	}
	return all
}

// The kernel has a single table of neighbours for all networks of a family and all network
// namespaces, by default with 1,024 entries (net.ipv4.neigh.default.gc_thresh3). It keeps a silent
// neighbour for at least three seconds, and adds no neighbour while the table is full. So for
// packets of pods the node looks for at most newNeighbours a second, and for mostTried at a time:
// less than half of the table.
const (
	newNeighbours, mostTried                 = 64, 256
	rememberAnswer, rememberTry, rememberHop = 10 * time.Minute, time.Minute, 10 * time.Second
	// afterFilters comes after the filters of other programs.
	afterFilters = 10
)

// neighbourRules limit the number of silent neighbours for which the node looks because of pods'
// packets. The next hop of a packet is its destination in a network of the node, otherwise a
// router. The set of next hops shows which, because a rule can compare the next hop only with a
// set.
func neighbourRules() (all []nftables.Rule) {
	toPod := nftables.In(linksSet, nftables.OIFName)
	for _, ip := range nftables.IPs {
		answered, tried := answeredSet+ip.Suffix, triedSet+ip.Suffix
		all = append(all, nftables.NewRule("a neighbour answers", toPod, ip.Is, nftables.In(tried, ip.SAddr), nftables.IsReply, nftables.Update(answered, ip.SAddr), nftables.Delete(tried, ip.SAddr)))
	}
	all = append(all,
		nftables.NewRule("not from a pod", nftables.NotIn(linksSet, nftables.IIFName), nftables.Accept),
		nftables.NewRule("of a connection that the other side knows", nftables.Established, nftables.Accept),
		nftables.NewRule("to a pod of this node", nftables.OIFName.Is([]byte(LinkPrefix)...), nftables.Accept))
	for _, ip := range nftables.IPs {
		answered, tried, hops := answeredSet+ip.Suffix, triedSet+ip.Suffix, hopsSet+ip.Suffix
		all = append(all,
			nftables.NewRule("to a neighbour that answered", ip.Is, nftables.In(answered, ip.DAddr), nftables.Update(answered, ip.DAddr), nftables.Accept),
			nftables.NewRule("to a neighbour that was tried", ip.Is, nftables.In(tried, ip.DAddr), nftables.Update(tried, ip.DAddr), nftables.Accept),
			nftables.NewRule("by a router", ip.Is, nftables.Update(hops, ip.NextHop()), nftables.NotIn(hops, ip.DAddr), nftables.Accept),
			nftables.NewRule("to too many new neighbours", ip.Is, nftables.MoreThan(newNeighbours), nftables.CounterNamed(refusedCounter), nftables.Drop),
			nftables.NewRule("to a new neighbour", ip.Is, nftables.Update(tried, ip.DAddr)))
	}
	return all
}

// RefusedNeighbours returns how many packets of pods to too many new neighbours were dropped since
// the table was made.
func RefusedNeighbours() (uint64, error) { return inetTable.Counted(refusedCounter) }

func markRules() []nftables.Rule {
	return []nftables.Rule{
		nftables.NewRule("replies that get the node's address back", fromPod, nftables.IsReply, nftables.DestinationTranslated, nftables.Accept),
		nftables.NewRule("from a pod", fromPod, nftables.SetMark(Mark, MarkMask)),
		nftables.NewRule("to a pod", nftables.V4.Is, nftables.In(arrivalsSet, nftables.IIFName, nftables.V4.DAddr), nftables.SetMark(ArrivalMark, MarkMask)),
		nftables.NewRule("to an address that the node chose", nftables.In(routedSet, nftables.IIFName), nftables.DestinationTranslated, nftables.SetMark(ArrivalMark, MarkMask)),
	}
}

func keepRules() (all []nftables.Rule) {
	for _, ip := range nftables.IPs {
		all = append(all, nftables.NewRule("a pod that calls itself", ip.Is, nftables.In(hairpinSet+ip.Suffix, ip.Addresses), nftables.Accept))
		for _, link := range []nftables.Field{nftables.IIFName, nftables.OIFName} {
			all = append(all, nftables.NewRule("answers must pass the node, which translates them back", ip.Is, nftables.DestinationTranslated, nftables.In(pastSet, link), nftables.Masquerade))
		}
		all = append(all, nftables.NewRule("a floating IP stays the source", ip.Is, nftables.In(floatingSet+ip.Suffix, ip.SAddr), ip.KeepSource()))
	}
	return all
}

type element struct {
	table *nftables.Table
	set   string
	key   []byte
}

func elements(s Source) []element {
	suffix := nftables.IPOf(s.Address).Suffix
	link := nftables.AppendName(nil, s.Link)
	all := append(addressElements(s.Address), element{inetTable, linksSet, link}, element{inetTable, sourcesSet + suffix, sourceKey(s.Link, s.Address)})
	if s.Past {
		all = append(all, element{inetTable, pastSet, link})
	}
	if s.Uplink != "" && s.Routed {
		return append(all, element{inetTable, routedSet, nftables.AppendName(nil, s.Uplink)})
	}
	if s.Uplink != "" && s.Address.Is4() {
		arrival := sourceKey(s.Uplink, s.Address)
		all = append(all, element{arpTable, askedSet, arrival})
		if !s.Past {
			all = append(all, element{inetTable, arrivalsSet, arrival})
		}
	}
	return all
}

func addressElements(a netip.Addr) []element {
	suffix, key := nftables.IPOf(a).Suffix, a.AsSlice()
	return []element{{inetTable, floatingSet + suffix, key}, {inetTable, hairpinSet + suffix, slices.Concat(key, key)}}
}

func sourceKey(link string, a netip.Addr) []byte {
	return nftables.AppendAddr(nftables.AppendName(nil, link), a)
}

func parseSource(key []byte) (Source, bool) {
	link, rest, ok := nftables.CutName(key)
	addr, isAddr := netip.AddrFromSlice(rest)
	return Source{Link: link, Address: addr}, ok && isAddr
}
