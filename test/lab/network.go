// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
)

// Network is the address plan of a lab. All of it lives inside the lab's
// network namespaces, so it is the same for every lab. Nodes and floating
// addresses share one layer 2 segment.
type Network struct {
	Nodes     netip.Prefix // of router, control plane and nodes
	Nodes6    netip.Prefix
	Out       netip.Prefix // out-of-band, of the nodes' first cards
	Second    netip.Prefix // of router and node2's second uplink
	Second6   netip.Prefix
	Floating  netip.Prefix // of floating addresses, router and client
	Floating6 netip.Prefix
	Pods      netip.Prefix // of the pod network that the nodes come with
	Services  netip.Prefix
}

// DefaultNetwork returns the address plan of every lab.
func DefaultNetwork() Network {
	return Network{
		Nodes:     netip.MustParsePrefix("10.0.60.0/24"),
		Nodes6:    netip.MustParsePrefix("fd00:60::/64"),
		Out:       netip.MustParsePrefix("192.168.60.0/24"),
		Second:    netip.MustParsePrefix("10.0.61.0/24"),
		Second6:   netip.MustParsePrefix("fd00:61::/64"),
		Floating:  netip.MustParsePrefix("10.0.70.0/24"),
		Floating6: netip.MustParsePrefix("fd00:70::/64"),
		Pods:      netip.MustParsePrefix("10.244.0.0/16"),
		Services:  netip.MustParsePrefix("10.96.0.0/16"),
	}
}

// Numbers of the hosts within a subnet. The same number is used in the IPv4
// and in the IPv6 subnet.
const (
	routerNumber    = 1
	controlNumber   = 2
	firstNodeNumber = 11
	clientNumber    = 250

	apiServerPort = 6443
)

// Router returns the router's address among the nodes: their gateway.
func (n Network) Router() netip.Addr { return nth(n.Nodes, routerNumber) }

// FloatingGateway returns the router's address in the floating subnet.
func (n Network) FloatingGateway() netip.Addr { return nth(n.Floating, routerNumber) }

// ControlPlane returns the address of the host that runs the API server.
func (n Network) ControlPlane() netip.Addr { return nth(n.Nodes, controlNumber) }

// Client returns the address of the client host, in the floating subnet.
func (n Network) Client() netip.Addr { return nth(n.Floating, clientNumber) }

// DNS returns the address of the Service that pods ask for names, if a test makes it.
func (n Network) DNS() netip.Addr { return nth(n.Services, 10) }

// Node returns the address of node i, counted from 1.
func (n Network) Node(i int) netip.Addr { return nth(n.Nodes, firstNodeNumber+i-1) }

// NodeAddresses returns the addresses by which all hosts and pods reach node i, counted from 1.
func (n Network) NodeAddresses(i int) []netip.Addr {
	var all []netip.Addr
	for _, c := range n.hostLinks(i)[nodeName(i)].cards {
		if c.name == outCard {
			continue
		}
		for _, a := range c.addrs {
			all = append(all, a.Addr())
		}
	}
	return all
}

// NodePods returns the subnet of the default pod network on node i, counted
// from 1.
func (n Network) NodePods(i int) netip.Prefix {
	a := n.Pods.Addr().As4()
	a[2] = byte(i)
	return netip.PrefixFrom(netip.AddrFrom4(a), 24)
}

// nth returns the address with the given number (below 256) in p, whose
// prefix must leave at least 8 bits.
func nth(p netip.Prefix, number int) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	b[len(b)-1] = byte(number)
	a, _ := netip.AddrFromSlice(b)
	return a
}

// Metric of the routes by node2's second uplink: the other ones are preferred.
const secondMetric = 2048

// route is one static route of a host.
type route struct {
	to     netip.Prefix
	via    netip.Addr
	metric int // 0 is the kernel's default
}

// Names of network cards. Each host has uplinkCard; nodes have outCard before it, so that no
// node's uplink is its first link, and node2 has secondCard besides.
const (
	uplinkCard = "eth0"
	outCard    = "oob0"
	secondCard = "uplink2"
)

// card is a host's link to one of the switch's bridges.
type card struct {
	name  string
	addrs []netip.Prefix
}

// links are the network cards of a host in the order of their indexes, and its routes.
type links struct {
	cards  []card
	routes []route
}

// Names of the hosts that are not nodes. switchHost has the bridge and
// nothing else.
const (
	switchHost  = "switch"
	routerHost  = "router"
	clientHost  = "client"
	controlHost = "control"
)

// nodeName returns the name of node i, counted from 1.
func nodeName(i int) string { return fmt.Sprintf("node%d", i) }

// hostLinks returns the links of every host but the switch in a lab with the
// given number of nodes.
func (n Network) hostLinks(nodes int) map[string]links {
	default4, default6 := netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")
	addrs := func(p4, p6 netip.Prefix, number int) []netip.Prefix {
		return []netip.Prefix{
			netip.PrefixFrom(nth(p4, number), p4.Bits()),
			netip.PrefixFrom(nth(p6, number), p6.Bits()),
		}
	}
	by := func(gateway4, gateway6 netip.Addr, metric int) []route {
		return []route{{default4, gateway4, metric}, {default6, gateway6, metric}}
	}
	upstream := by(n.Router(), nth(n.Nodes6, routerNumber), 0)
	// podsExcept are the routes to the pods of all nodes but node i.
	podsExcept := func(i int) []route {
		var rs []route
		for j := 1; j <= nodes; j++ {
			if j != i {
				rs = append(rs, route{to: n.NodePods(j), via: n.Node(j)})
			}
		}
		return rs
	}

	all := map[string]links{
		routerHost: {
			cards: []card{
				{uplinkCard, append(addrs(n.Nodes, n.Nodes6, routerNumber), addrs(n.Floating, n.Floating6, routerNumber)...)},
				{secondCard, addrs(n.Second, n.Second6, routerNumber)},
			},
			routes: podsExcept(0),
		},
		controlHost: {
			cards:  []card{{uplinkCard, addrs(n.Nodes, n.Nodes6, controlNumber)}},
			routes: append(upstream[:2:2], podsExcept(0)...),
		},
		clientHost: {
			cards:  []card{{uplinkCard, addrs(n.Floating, n.Floating6, clientNumber)}},
			routes: by(n.FloatingGateway(), nth(n.Floating6, routerNumber), 0),
		},
	}
	for i := 1; i <= nodes; i++ {
		number := firstNodeNumber + i - 1
		l := links{
			cards: []card{
				{outCard, []netip.Prefix{netip.PrefixFrom(nth(n.Out, number), n.Out.Bits())}},
				{uplinkCard, addrs(n.Nodes, n.Nodes6, number)},
			},
			routes: append(upstream[:2:2], podsExcept(i)...),
		}
		if i == 2 {
			l.cards = append(l.cards, card{secondCard, addrs(n.Second, n.Second6, number)})
			l.routes = append(l.routes, by(nth(n.Second, routerNumber), nth(n.Second6, routerNumber), secondMetric)...)
		}
		all[nodeName(i)] = l
	}
	return all
}
