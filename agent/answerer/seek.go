// SPDX-License-Identifier: Apache-2.0

package answerer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/cni/conflict"
)

// Sighting is the result of a search for another node.
type Sighting struct {
	// Control: on each link of the search, a gateway or a third node answered a question of each
	// family of the addresses or, without addresses, a question of either family.
	Control bool
	// Node: the node's agent answered.
	Node bool
	// MACs are the MACs by which hosts answered for the addresses, sorted.
	MACs map[netip.Addr][]string
	// Foreign are hosts outside of the cluster that say that they have the addresses.
	Foreign []conflict.Conflict
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
	// links are the links of the addresses.
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

// Seek asks for another node by its name on all links, and for the addresses on their links only.
// An answer on another link says nothing about the network of the addresses. Seek takes less than a
// second, or ends with ctx.
func (a *Answerer) Seek(ctx context.Context, node string, addrs []netip.Addr, links []int) Sighting {
	s := &search{node: node, nonce: nonce(), addrs: addrs, links: links, controls: map[control]bool{}, seen: Sighting{MACs: map[netip.Addr][]string{}}}
	a.mu.Lock()
	loops := slices.Collect(maps.Values(a.loops))
	a.mu.Unlock()
	for _, l := range loops {
		l.begin(s)
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
		l.end(s)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, macs := range s.seen.MACs {
		slices.Sort(macs)
	}
	s.seen.Control = len(links) > 0 && !slices.ContainsFunc(links, func(link int) bool { return !s.isControlled(link) })
	return s.seen
}

// isControlled reports whether questions of all families of the addresses were answered on a link.
// Without addresses, because other nodes have them all by now, an answer of either family is
// enough.
func (s *search) isControlled(link int) bool {
	if len(s.addrs) == 0 {
		return s.controls[control{link, true}] || s.controls[control{link, false}]
	}
	return !slices.ContainsFunc(s.addrs, func(addr netip.Addr) bool { return !s.controls[control{link, addr.Is4()}] })
}

// see notes inputs of a link that say something about the node.
func (s *search) see(inputs []answering.Input, l *loop) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, in := range inputs {
		switch in := in.(type) {
		case answering.Gateway:
			s.controls[control{l.index, in.Address.Is4()}] = true
			s.answered(in.Address, in.MAC)
		case answering.Heard:
			s.seen.Node = s.seen.Node || in.Kind == answering.Hello && in.From.Name == s.node && in.Nonce == s.nonce
		case answering.Answered:
			if !slices.Contains(s.addrs, in.Address) {
				node, known := l.link.At(in.Address)
				if known && node.Name != s.node {
					s.controls[control{l.index, in.Address.Is4()}] = true
				}
				continue
			}
			s.answered(in.Address, in.MAC)
			if is := func(c conflict.Conflict) bool { return c.Address == in.Address && c.MAC.String() == in.MAC }; in.Owner && !l.link.IsNodes(in.MAC, answering.Node{}) && !slices.ContainsFunc(s.seen.Foreign, is) {
				s.seen.Foreign = append(s.seen.Foreign, l.conflict(in.Address, in.MAC))
			}
		}
	}
}

// answered notes a MAC that answers for an address of the search.
func (s *search) answered(addr netip.Addr, mac string) {
	if macs := s.seen.MACs[addr]; slices.Contains(s.addrs, addr) && !slices.Contains(macs, mac) {
		s.seen.MACs[addr] = append(macs, mac)
	}
}

// Ask asks once for addresses on a link: the host with the MAC or, where that is empty, all hosts.
// It returns the MACs that answered within a time. The node must have joined the link.
func (a *Answerer) Ask(ctx context.Context, link int, whom map[netip.Addr]string, within time.Duration) map[netip.Addr][]string {
	a.mu.Lock()
	l := a.loops[link]
	a.mu.Unlock()
	if l == nil {
		return nil
	}
	s := &search{addrs: slices.Collect(maps.Keys(whom)), controls: map[control]bool{}, seen: Sighting{MACs: map[netip.Addr][]string{}}}
	l.begin(s)
	l.mu.Lock()
	l.asks = append(l.asks, whom)
	l.mu.Unlock()
	l.signal.Send()
	select {
	case <-ctx.Done():
	case <-time.After(within):
	}
	l.end(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen.MACs
}

func (l *loop) begin(s *search) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.searches = append(l.searches, s)
}

func (l *loop) end(s *search) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.searches = slices.DeleteFunc(l.searches, func(other *search) bool { return other == s })
}

// Foreign asks the networks of addresses for hosts outside of the cluster that keep saying that
// they have an address of a pod. It takes a second if there is no such host, and otherwise some
// seconds. Its error names the networks that could not be asked.
func (a *Answerer) Foreign(ctx context.Context, targets []conflict.Target) ([]conflict.Conflict, error) {
	var found []conflict.Conflict
	var errs []error
	byLink := map[int][]netip.Addr{}
	for _, t := range targets {
		byLink[t.Link] = append(byLink[t.Link], t.Address)
	}
	for link, addrs := range byLink {
		of, err := a.foreignOn(ctx, link, addrs)
		errs = append(errs, err)
		for _, c := range of {
			if !slices.ContainsFunc(targets, func(t conflict.Target) bool { return t.Address == c.Address && bytes.Equal(t.Own, c.MAC) }) {
				found = append(found, c)
			}
		}
	}
	return found, errors.Join(errs...)
}

func (a *Answerer) foreignOn(ctx context.Context, link int, addrs []netip.Addr) ([]conflict.Conflict, error) {
	switch err := a.Check(link); {
	case errors.Is(err, ErrNobodyToAsk):
		return nil, nil
	case err != nil:
		return nil, err
	}
	before := a.Seek(ctx, "", addrs, []int{link}).Foreign
	if len(before) == 0 {
		return nil, ctx.Err()
	}
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(answering.ConflictAfter):
	}
	return slices.DeleteFunc(a.Seek(ctx, "", addrs, []int{link}).Foreign, func(c conflict.Conflict) bool {
		return !slices.ContainsFunc(before, func(b conflict.Conflict) bool { return b.String() == c.String() })
	}), ctx.Err()
}

// Check returns an error if the hosts of a link cannot be asked; it wraps [ErrNobodyToAsk] if they
// can never be asked.
func (a *Answerer) Check(link int) error {
	a.mu.Lock()
	l := a.loops[link]
	a.mu.Unlock()
	if l == nil {
		return fmt.Errorf("ask for addresses on link %d: the node does not hear others there", link)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.link.Up():
		return fmt.Errorf("ask for addresses on link %d: it has no carrier", link)
	case l.broken != nil:
		return fmt.Errorf("ask for addresses on link %d: %w", link, l.broken)
	}
	return nil
}
