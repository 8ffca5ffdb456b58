// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/conntrack"
	"github.com/berth-dev/berth/cni/rtnl"
)

// EndConnections ends the connections of these pods that began before Put and do not leave as the
// Ways now say: the kernel translates the packets of a connection as it did the first one. former
// are the addresses of the node that Ways had before. Connections within the cluster go on.
func EndConnections(all []Way, pods, former []netip.Addr) error {
	if len(pods) == 0 {
		return nil
	}
	ways := map[netip.Addr]*Way{}
	for i := range all {
		for _, pod := range all[i].Pods {
			ways[pod] = &all[i]
		}
	}
	known := map[netip.Addr]bool{}
	isOutside := func(w *Way, to netip.Addr) bool {
		outside, ok := known[to]
		if !ok {
			outside = w.leads(to)
			known[to] = outside
		}
		return outside
	}
	return conntrack.EndWhere(rtnl.Families, func(f *conntrack.Flow) bool {
		pod, to, source := f.Original.Source.Addr(), f.Original.Destination.Addr(), f.Reply.Destination
		// Destinations that the node translates are none of it.
		if !slices.Contains(pods, pod) || f.Reply.Source.Addr() != to {
			return false
		}
		w := ways[pod]
		return w == nil && slices.Contains(former, source.Addr()) || w != nil && !w.sends(source) && isOutside(w, to)
	})
}

// sends returns whether packets of the Way can have a source. An ICMP id is none.
func (w *Way) sends(from netip.AddrPort) bool {
	port := from.Port()
	return from.Addr() == w.Address && (w.Ports.isAll() || port == 0 || w.Ports.First <= port && port <= w.Ports.Last)
}

// Full returns how many ports the connections of the Ways have to the destination and port to which
// they have most, for each Way.
func Full(all []Way) ([]int, error) {
	type to struct {
		way, protocol int
		netip.AddrPort
	}
	used, most := map[to]int{}, make([]int, len(all))
	return most, conntrack.List(rtnl.Families, func(f *conntrack.Flow) bool {
		i := slices.IndexFunc(all, func(w Way) bool { return !w.Ports.isAll() && w.sends(f.Reply.Destination) })
		if i >= 0 {
			at := to{i, int(f.Protocol), f.Original.Destination}
			used[at]++
			most[i] = max(most[i], used[at])
		}
		return true
	})
}

// leads returns whether packets to a destination leave by the Way, as the rules of choose say.
func (w *Way) leads(to netip.Addr) bool {
	contains := func(p netip.Prefix) bool { return p.Contains(to) }
	if slices.ContainsFunc(notRouted, contains) || slices.ContainsFunc(w.Except, contains) {
		return false
	}
	if w.Subnet.Contains(to) {
		return true
	}
	// The kernel's own look-up is from the loopback link, too.
	_, err := netlink.RouteGetWithOptions(rtnl.IPNet(rtnl.SinglePrefix(to)).IP, &netlink.RouteGetOptions{Mark: leaving(w.Number)})
	return errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH)
}
