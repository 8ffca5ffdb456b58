// SPDX-License-Identifier: Apache-2.0

package answerer

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berth-dev/berth/agent/answering"
)

// Sighting is what was heard of another node.
type Sighting struct {
	// Control: on each link on which the addresses were asked for, a gateway, or a third node, answered a question of each of their
	// families meanwhile.
	Control bool
	// Node: the node's agent answered.
	Node bool
	// MACs answered for the addresses. They are sorted.
	MACs map[netip.Addr][]string
}

const (
	// seeks is how often Seek asks, seekInterval apart: each frame may get lost.
	seeks        = 3
	seekInterval = 300 * time.Millisecond
)

// search is a Seek under way.
type search struct {
	node  string
	nonce uint64
	addrs []netip.Addr
	// links are the ones of the addresses.
	links []int

	mu sync.Mutex
	// controls are the links on which another host than the node answered questions of a family.
	controls map[control]bool
	seen     Sighting
}

type control struct {
	link int
	ipv4 bool
}

// Seek asks on all links for another node, by its name, and on the links of the addresses who answers for these. A host that
// answers on another link says nothing about their network. It takes less than a second, or until ctx ends.
func (a *Answerer) Seek(ctx context.Context, node string, addrs []netip.Addr, links []int) Sighting {
	s := &search{node: node, nonce: nonce(), addrs: addrs, links: links, controls: map[control]bool{}, seen: Sighting{MACs: map[netip.Addr][]string{}}}
	a.mu.Lock()
	loops := make([]*loop, 0, len(a.loops))
	for _, l := range a.loops {
		loops = append(loops, l)
	}
	a.mu.Unlock()
	for _, l := range loops {
		l.mu.Lock()
		l.searches = append(l.searches, s)
		l.mu.Unlock()
	}
	tick := time.NewTicker(seekInterval)
	defer tick.Stop()
	for range seeks {
		for _, l := range loops {
			seek := answering.Seek{Node: node, Nonce: s.nonce}
			if slices.Contains(links, l.index) {
				seek.Addresses = addrs
			}
			l.note(seek)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	for _, l := range loops {
		l.mu.Lock()
		l.searches = slices.DeleteFunc(l.searches, func(other *search) bool { return other == s })
		l.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, macs := range s.seen.MACs {
		slices.Sort(macs)
	}
	s.seen.Control = len(links) > 0 && !slices.ContainsFunc(links, func(link int) bool { return !s.isControlled(link) })
	return s.seen
}

// isControlled returns whether questions of the addresses' families were answered on a link.
func (s *search) isControlled(link int) bool {
	return len(s.addrs) > 0 && !slices.ContainsFunc(s.addrs, func(addr netip.Addr) bool { return !s.controls[control{link, addr.Is4()}] })
}

// see notes all that says something of the node, on a link. at returns the node with an address there.
func (s *search) see(inputs []answering.Input, link int, at func(netip.Addr) (answering.Node, bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, in := range inputs {
		switch in := in.(type) {
		case answering.Gateway:
			s.controls[control{link, in.Address.Is4()}] = true
		case answering.Heard:
			s.seen.Node = s.seen.Node || in.Kind == answering.Hello && in.From.Name == s.node && in.Nonce == s.nonce
		case answering.Answered:
			if !slices.Contains(s.addrs, in.Address) {
				node, known := at(in.Address)
				if known && node.Name != s.node {
					s.controls[control{link, in.Address.Is4()}] = true
				}
			} else if macs := s.seen.MACs[in.Address]; !slices.Contains(macs, in.MAC) {
				s.seen.MACs[in.Address] = append(macs, in.MAC)
			}
		}
	}
}
