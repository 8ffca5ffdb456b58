// SPDX-License-Identifier: Apache-2.0

// Package port guards the bridge ports of pods that policies select. The rules of policies see IP
// packets that a bridge passes on (br_netfilter), and identify pods by their addresses. So the
// table here lets nothing else pass from port to port:
//
//	table bridge berth-policy
//	  set ports                  the guarded ports
//	  set addresses4, addresses6 port . address: the addresses of the pod behind it
//
//	  chain from_pods (prerouting), of frames from ports:
//	    ARP, sender not in addresses          drop, except a probe from 0.0.0.0
//	    IP, source not in addresses           drop, except a search for duplicates from ::
//	    neighbour advertisement,
//	    target not in addresses               drop
//	    neither ARP nor IP, or tagged         drop
//
//	  chain to_pods (forward), of frames to ports:
//	    IP, destination not in addresses      drop, except neighbour discovery
//	    neither ARP nor IP, or tagged         drop
//
// The kernel's isolated ports would be simpler. But they separate pods on a bridge even if policies
// allow the connection, and let them reach ports that are not isolated. The table does not affect
// packets that the node itself sends to a port.
package port

import (
	"fmt"
	"iter"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/policy/place"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/cni/nftables"
)

// Guard makes the table for the ports, without repeats, and removes the table if there are no
// ports. It blocks for the kernel and is idempotent; the caller makes calls one after another.
func Guard(ports []place.Port) error {
	t := tableOf(ports)
	if len(ports) == 0 {
		return nftables.RemoveTable(t)
	}
	if _, err := t.Sync(); err != nil {
		return fmt.Errorf("guard the ports of bridges: %w (does the kernel have nf_tables for bridges?)", err)
	}
	return nil
}

const (
	portsSet, addressesSet = "ports", "addresses"
	// beforeIP comes before the bridge shows IP packets to the rules of policies.
	beforeIP = -250
)

func tableOf(ports []place.Port) *nftables.Table {
	t := &nftables.Table{
		Family: nftables.Bridge, Name: ruleset.TableName,
		Sets: []*nftables.Set{{Name: portsSet, Key: []nftables.Type{nftables.IfName}, Elements: func(yield func(nftables.Element) bool) {
			for _, p := range ports {
				if !yield(nftables.Element{Key: nftables.AppendName(nil, p.Name)}) {
					return
				}
			}
		}}},
		Chains: []*nftables.Chain{
			{Name: "from_pods", Base: nftables.Filter(nftables.Prerouting, beforeIP), Rules: nftables.Rules(fromPods()...)},
			{Name: "to_pods", Base: nftables.Filter(nftables.Forward, beforeIP), Rules: nftables.Rules(toPods()...)},
		},
	}
	for _, ip := range nftables.IPs {
		t.Sets = append(t.Sets, &nftables.Set{Name: addressesSet + ip.Suffix, Key: []nftables.Type{nftables.IfName, ip.Addr}, Elements: addressesOf(ports, ip)})
	}
	return t
}

func addressesOf(ports []place.Port, ip *nftables.IP) iter.Seq[nftables.Element] {
	return func(yield func(nftables.Element) bool) {
		for _, p := range ports {
			for _, a := range p.Addresses {
				if nftables.IPOf(a) == ip && !yield(nftables.Element{Key: nftables.AppendAddr(nftables.AppendName(nil, p.Name), a)}) {
					return
				}
			}
		}
	}
}

// kind matches frames by their type; a tagged frame has the type of its tag.
func kind(t uint16) nftables.Statement { return nftables.Link(12, 2).Is(byte(t>>8), byte(t)) }

var (
	arp  = kind(unix.ETH_P_ARP)
	ipv4 = kind(unix.ETH_P_IP)
	ipv6 = kind(unix.ETH_P_IPV6)
	// arpSender is the sender address of an ARP packet of Ethernet and IPv4 (RFC 826); advertised is
	// the target address of a neighbour advertisement (RFC 4861 §4.4).
	arpSender  = nftables.Network(14, 4)
	advertised = nftables.Transport(8, 16)
)

func fromPods() []nftables.Rule {
	addresses4, addresses6 := addressesSet+nftables.V4.Suffix, addressesSet+nftables.V6.Suffix
	unspecified := make([]byte, netip.IPv6Unspecified().BitLen()/8)
	return []nftables.Rule{
		nftables.NewRule("other ports", nftables.NotIn(portsSet, nftables.IIFName), nftables.Accept),
		nftables.NewRule("a pod looks for duplicates of its address", arp, arpSender.Is(0, 0, 0, 0), nftables.Accept),
		nftables.NewRule("a pod answers for its own addresses", arp, nftables.In(addresses4, nftables.IIFName, arpSender), nftables.Accept),
		nftables.NewRule("a pod sends from its own addresses", ipv4, nftables.In(addresses4, nftables.IIFName, nftables.V4.SAddr), nftables.Accept),
		nftables.NewRule("a pod looks for duplicates of its address", ipv6, nftables.V6.SAddr.Is(unspecified...), nftables.ICMPv6(nftables.NeighborSolicitation), nftables.Accept),
		nftables.NewRule("a pod answers for its own addresses", ipv6, nftables.ICMPv6(nftables.NeighborAdvertisement), nftables.NotIn(addresses6, nftables.IIFName, advertised), nftables.Drop),
		nftables.NewRule("a pod sends from its own addresses", ipv6, nftables.In(addresses6, nftables.IIFName, nftables.V6.SAddr), nftables.Accept),
		nftables.NewRule("policies judge nothing else", nftables.Drop),
	}
}

func toPods() []nftables.Rule {
	addresses4, addresses6 := addressesSet+nftables.V4.Suffix, addressesSet+nftables.V6.Suffix
	all := []nftables.Rule{
		nftables.NewRule("other ports", nftables.NotIn(portsSet, nftables.OIFName), nftables.Accept),
		nftables.NewRule("ARP", arp, nftables.Accept),
		nftables.NewRule("to the pod", ipv4, nftables.In(addresses4, nftables.OIFName, nftables.V4.DAddr), nftables.Accept),
		nftables.NewRule("to the pod", ipv6, nftables.In(addresses6, nftables.OIFName, nftables.V6.DAddr), nftables.Accept),
	}
	for _, message := range []byte{nftables.RouterAdvertisement, nftables.NeighborSolicitation, nftables.NeighborAdvertisement} {
		all = append(all, nftables.NewRule(fmt.Sprintf("ICMPv6 type %d", message), ipv6, nftables.ICMPv6(message), nftables.Accept))
	}
	return append(all, nftables.NewRule("policies judge nothing else", nftables.Drop))
}
