// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
)

const (
	// floatingMetric is worse than the metric of a floating IP's route on its own node: 0, and for
	// IPv6 1024.
	floatingMetric = 2048
	// unreachableMetric is worse than the metrics of routes of other programs.
	unreachableMetric = 1 << 20
)

// ways are the indexes of the links to other nodes, 0 for a family without a link.
type ways struct {
	link4, link6 int
	// vtep says that the links are VTEPs.
	vtep bool
}

func (w ways) link(addr netip.Addr) int {
	if addr.Is4() {
		return w.link4
	}
	return w.link6
}

// plan has the entries of the kernel for the other nodes.
type plan struct {
	routes []netlink.Route
	// neighs are the addresses and forwarding entries of VTEPs.
	neighs []netlink.Neigh
}

// planFor computes the plan. floating maps floating IPs to the names of their nodes. If nodes have
// overlapping pod CIDRs, which the control plane prevents, the first node by name counts.
func planFor(w ways, peers []peer, floating map[netip.Addr]string) plan {
	var p plan
	peers = slices.Clone(peers)
	slices.SortFunc(peers, func(a, b peer) int { return cmp.Compare(a.node, b.node) })
	var taken []netip.Prefix
	byName := map[string]peer{}
	for _, peer := range peers {
		kept := peer
		kept.ends = nil
		for _, e := range peer.ends {
			link := w.link(e.subnet.Addr())
			if link == 0 || slices.ContainsFunc(taken, e.subnet.Overlaps) {
				continue
			}
			taken = append(taken, e.subnet)
			kept.ends = append(kept.ends, e)
			p.routes = append(p.routes, route(w, e, e.subnet, 0))
			if w.vtep {
				p.neighs = append(p.neighs, neighbours(link, e)...)
			}
		}
		byName[peer.node] = kept
	}
	for _, addr := range slices.SortedFunc(maps.Keys(floating), netip.Addr.Compare) {
		if e, ok := byName[floating[addr]].end(addr); ok {
			p.routes = append(p.routes, route(w, e, rtnl.SinglePrefix(addr), floatingMetric))
		}
	}
	return p
}

// unreachable returns the route for unused addresses of a pod CIDR of this node: packets for them
// do not leave the node.
func unreachable(subnet netip.Prefix) netlink.Route {
	r := netlink.Route{
		Dst: rtnl.IPNet(subnet), Type: unix.RTN_UNREACHABLE, Protocol: rtnl.Protocol, Table: unix.RT_TABLE_MAIN, Family: rtnl.FamilyOf(subnet.Addr()), Priority: unreachableMetric,
	}
	if subnet.Addr().Is6() {
		r.LinkIndex = 1 // the kernel lists such routes of IPv6 with lo
	}
	return r
}

// route returns the route through a peer's end.
func route(w ways, e end, to netip.Prefix, metric int) netlink.Route {
	r := netlink.Route{
		LinkIndex: w.link(to.Addr()), Dst: rtnl.IPNet(to), Gw: e.public.AsSlice(), Protocol: rtnl.Protocol, Table: unix.RT_TABLE_MAIN,
		Family: rtnl.FamilyOf(to.Addr()), Priority: metric,
	}
	if w.vtep {
		r.Gw, r.Flags = e.subnet.Addr().AsSlice(), int(netlink.FLAG_ONLINK)
	}
	return r
}

// neighbours returns the entries for a peer's VTEP: its MAC, and the node with this MAC.
func neighbours(link int, e end) []netlink.Neigh {
	return []netlink.Neigh{
		rtnl.Neigh(link, e.subnet.Addr(), e.mac),
		{LinkIndex: link, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF, IP: e.public.AsSlice(), HardwareAddr: e.mac},
	}
}
