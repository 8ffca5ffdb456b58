// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cni/conntrack"
	"github.com/berth-dev/berth/cni/rtnl"
)

// Reader reads the counters of many links. Its functions work in the network namespace of the
// caller's thread as the node's, and block for the kernel only.
type Reader struct{ ends map[string]netlink.Link }

// Read lists the links of the node.
func Read() (*Reader, error) {
	links, err := rtnl.Links()
	if err != nil {
		return nil, err
	}
	r := &Reader{ends: make(map[string]netlink.Link, len(links))}
	for _, l := range links {
		r.ends[l.Attrs().Name] = l
	}
	return r, nil
}

// ErrNotCounted is returned for a link that is not there, or is another one: a program in the
// container can put a link of its own in its place.
var ErrNotCounted = errors.New("link not found")

// Of returns the counters of a link in the network namespace at a path. end is the name of its end
// on the node; empty if it has none.
func (r *Reader) Of(netns, link, end string) (Counters, error) {
	if end != "" {
		l := r.ends[end]
		if l == nil {
			return Counters{}, fmt.Errorf("%w: %s, the node's end of %s", ErrNotCounted, end, link)
		}
		c := countersOf(l)
		c.ReceivedPackets, c.ReceivedBytes, c.SentPackets, c.SentBytes = c.SentPackets, c.SentBytes, c.ReceivedPackets, c.ReceivedBytes
		return c, nil
	}
	inside, err := rtnl.FindContainerNS(netns)
	if err == nil && inside == nil {
		err = fmt.Errorf("%w: the network namespace %s is gone", ErrNotCounted, netns)
	}
	if err != nil {
		return Counters{}, err
	}
	defer inside.Close()
	var c Counters
	err = inside.Do(func(ns.NetNS) error {
		l, err := rtnl.LinkOrNil(link)
		switch {
		case err != nil:
			return err
		case l == nil:
			return fmt.Errorf("%w: %s in the container", ErrNotCounted, link)
		case slices.Contains(placeholders, l.Type()):
			return fmt.Errorf("%w: the container has a %s in the place of %s", ErrNotCounted, l.Type(), link)
		}
		c = countersOf(l)
		return nil
	})
	return c, err
}

// placeholders are kinds of links that a container makes itself: KubeVirt gives a machine the pod's
// interface, and leaves one of these under its name.
var placeholders = []string{"dummy", "bridge", "tuntap"}

func countersOf(l netlink.Link) Counters {
	c := Counters{Index: l.Attrs().Index}
	if s := l.Attrs().Statistics; s != nil {
		c.ReceivedPackets, c.ReceivedBytes, c.SentPackets, c.SentBytes = s.RxPackets, s.RxBytes, s.TxPackets, s.TxBytes
	}
	return c
}

// The limits of Peers: an address may have a hundred thousand clients.
const (
	mostPeers = 100
	mostSeen  = 10_000
)

// Peers lists the hosts with which the node tracks connections of addresses, those with most
// connections first. more counts hosts that are left out and, beyond mostSeen hosts, connections.
func Peers(addresses []netip.Addr) (peers []inquiry.InspectedPeer, more int, err error) {
	own, err := rtnl.NodeAddresses()
	if err != nil {
		return nil, 0, err
	}
	counts := map[inquiry.InspectedPeer]int{}
	note := func(peer inquiry.InspectedPeer) {
		if _, seen := counts[peer]; seen || len(counts) < mostSeen {
			counts[peer]++
		} else {
			more++
		}
	}
	err = conntrack.List(conntrack.Families(slices.Values(addresses)), func(f *conntrack.Flow) bool {
		// Both ends as the packets have them on the pod's link, after a Service's address is translated.
		client, server := f.Original.Source.Addr(), f.Reply.Source.Addr()
		if slices.Contains(addresses, client) {
			note(inquiry.InspectedPeer{Address: client, Peer: server, Outgoing: true})
		}
		if slices.Contains(addresses, server) {
			note(inquiry.InspectedPeer{Address: server, Peer: client})
		}
		return true
	})
	for peer, n := range counts {
		peer.Connections = n
		peer.OwnNode = slices.ContainsFunc(own, func(a rtnl.NodeAddress) bool { return a.Addr == peer.Peer })
		peers = append(peers, peer)
	}
	slices.SortFunc(peers, func(a, b inquiry.InspectedPeer) int {
		return cmp.Or(cmp.Compare(b.Connections, a.Connections), a.Address.Compare(b.Address), a.Peer.Compare(b.Peer))
	})
	listed := min(mostPeers, len(peers))
	return peers[:listed], more + len(peers) - listed, err
}
