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

// Sighting is what was heard of another node.
type Sighting struct {
	// Control: on each link on which the addresses were asked for, a gateway, or a third node,
	// answered a question of each of their families meanwhile, or of either where no address was asked
	// for.
	Control bool
	// Node: the node's agent answered.
	Node bool
	// MACs answered for the addresses. They are sorted.
	MACs map[netip.Addr][]string
	// Foreign are hosts that are no nodes, and say that they have the addresses.
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

// Seek asks on all links for another node, by its name, and on the links of the addresses who
// answers for these. A host that answers on another link says nothing about their network. It takes
// less than a second, or until ctx ends.
func (a *Answerer) Seek(ctx context.Context, node string, addrs []netip.Addr, links []int) Sighting {
	s := &search{node: node, nonce: nonce(), addrs: addrs, links: links, controls: map[control]bool{}, seen: Sighting{MACs: map[netip.Addr][]string{}}}
	a.mu.Lock()
	loops := slices.Collect(maps.Values(a.loops))
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

// isControlled returns whether questions of the addresses' families were answered on a link: of
// either family where no address is asked for, as others have them all by now.
func (s *search) isControlled(link int) bool {
	if len(s.addrs) == 0 {
		return s.controls[control{link, true}] || s.controls[control{link, false}]
	}
	return !slices.ContainsFunc(s.addrs, func(addr netip.Addr) bool { return !s.controls[control{link, addr.Is4()}] })
}

// see notes all that says something of the node, on a link.
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

// answered notes who answers for an address, if that is asked for.
func (s *search) answered(addr netip.Addr, mac string) {
	if macs := s.seen.MACs[addr]; slices.Contains(s.addrs, addr) && !slices.Contains(macs, mac) {
		s.seen.MACs[addr] = append(macs, mac)
	}
}

// Foreign asks the networks of addresses for hosts outside of the cluster that go on to say that
// they have them, beside the pods that do. It takes a second where nobody does, and else some. Its
// error says which networks could not be asked.
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

// Check returns an error where the hosts of a link cannot be asked; it wraps [ErrNobodyToAsk] where
// they never can.
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
