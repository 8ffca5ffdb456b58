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
	// Control: on each link on which the addresses were asked for, a gateway, or a third node, answered a question meanwhile.
	Control bool
	// Node: the node's agent said something.
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
	addrs []netip.Addr
	// links are the ones of the addresses.
	links []int

	mu sync.Mutex
	// controls are the links on which another host than the node answered.
	controls map[int]bool
	seen     Sighting
}

// Seek asks on all links for another node, by its name, and on the links of the addresses who answers for these. A host that
// answers on another link says nothing about their network. It takes less than a second, or until ctx ends.
func (a *Answerer) Seek(ctx context.Context, node string, addrs []netip.Addr, links []int) Sighting {
	s := &search{node: node, addrs: addrs, links: links, controls: map[int]bool{}, seen: Sighting{MACs: map[netip.Addr][]string{}}}
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
			seek := answering.Seek{Node: node}
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
	s.seen.Control = len(links) > 0 && !slices.ContainsFunc(links, func(link int) bool { return !s.controls[link] })
	return s.seen
}

// see notes all that says something of the node, on a link. at returns the node with an address there.
func (s *search) see(inputs []answering.Input, link int, at func(netip.Addr) (answering.Node, bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, in := range inputs {
		switch in := in.(type) {
		case answering.Gateway:
			s.controls[link] = true
		case answering.Heard:
			s.seen.Node = s.seen.Node || in.From.Name == s.node
		case answering.Answered:
			if !slices.Contains(s.addrs, in.Address) {
				node, known := at(in.Address)
				s.controls[link] = s.controls[link] || known && node.Name != s.node
			} else if macs := s.seen.MACs[in.Address]; !slices.Contains(macs, in.MAC) {
				s.seen.MACs[in.Address] = append(macs, in.MAC)
			}
		}
	}
}
