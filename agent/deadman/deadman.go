// SPDX-License-Identifier: Apache-2.0

// Package deadman makes the kernel of a node fall silent for addresses when the node's agent has
// given no sign of life for a time. It is for addresses for which the node answers by proxy entries
// (package wire): a pod with its own MAC answers itself.
//
//	table arp berth-silence
//	  set watched4    link . address: where the node answers, and falls silent without its agent
//	  set alive4      the same, with the time that is left
//	  chain input:
//	    a request, link . target in watched4 and not in alive4               drop
//
//	table inet berth-silence
//	  set watched6, alive6
//	  chain prerouting (raw):
//	    a neighbour solicitation, link . target in watched6 and not in alive6  drop
//
// One transaction adds an address to both sets, or deletes it from both. A renewal deletes the
// element and adds it again, because kernels before 6.12 do not change the timeout of an element.
// There are no tables while no address is watched.
//
// An element of alive that expired is not renewed: another node may answer by now. The address
// stays silent until its proxy entry is gone, and the node has to ask before it makes a new entry.
package deadman

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-dev/berth/cni/nftables"
	"github.com/berth-dev/berth/cni/veth/wire"
)

const (
	// MinSilence is the least time after which a node may fall silent: an agent takes some seconds to
	// start again.
	MinSilence = 30 * time.Second
	// parked is how long an agent that ends in order may be away, as for an upgrade.
	parked = 10 * time.Minute
)

// Switch is the dead man's switch of a node. Its methods are safe in parallel and block for the
// kernel only.
type Switch struct {
	after, parked time.Duration

	mu sync.Mutex
	// used: the kernel may have tables.
	used bool
	// last is why the last Keep failed.
	last error
}

// New returns a switch by which the node falls silent when Keep was not called for the time after.
// If after is 0 it never does, and Keep removes the tables of an earlier agent.
func New(after time.Duration) *Switch { return newSwitch(after, parked) }

func newSwitch(after, parked time.Duration) *Switch {
	return &Switch{after: after, parked: max(after, parked), used: true}
}

// Interval returns how often Keep has to be called, 0 if the node never falls silent.
func (s *Switch) Interval() time.Duration { return s.after / 3 }

// Err returns the error of the last Keep or Park.
func (s *Switch) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// Keep says that the agent lives: the node continues to answer for the watched addresses, and no
// other address is watched any more. expired are addresses for which the node is silent, because
// Keep was not called for too long, but still has proxy entries: Keep does not change them until
// the entries are gone.
func (s *Switch) Keep(watched map[netip.Addr]bool) (expired []netip.Addr, err error) {
	return s.keep(s.after, watched)
}

// Park is Keep before the agent ends in order: the next agent has ten minutes to start.
func (s *Switch) Park(watched map[netip.Addr]bool) error {
	_, err := s.keep(s.parked, watched)
	return err
}

// attempts is how often a change is tried: meanwhile an element may expire, or a link may be
// renamed.
const attempts = 3

func (s *Switch) keep(left time.Duration, watched map[netip.Addr]bool) (expired []netip.Addr, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.after == 0 {
		watched = nil
	}
	if len(watched) == 0 && !s.used {
		s.last = nil
		return nil, nil
	}
	for range attempts {
		expired, err = s.try(left, watched)
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	if err != nil {
		err = fmt.Errorf("renew the time after which the node falls silent without its agent: %w", err)
	}
	s.last = err
	return expired, err
}

// try is one attempt of keep.
func (s *Switch) try(left time.Duration, watched map[netip.Addr]bool) (expired []netip.Addr, err error) {
	var tx nftables.Transaction
	empty := true
	for _, g := range guards {
		now, err := g.read(watched, s.used)
		if err != nil {
			return nil, err
		}
		change := now.change(left)
		expired = append(expired, change.expired...)
		empty = empty && len(change.watched) == 0
		if s.used || len(change.watched) > 0 {
			g.write(&tx, now, change, left)
		}
	}
	if err := tx.Commit(); err != nil {
		return nil, err
	}
	s.used = !empty
	return expired, nil
}

// guard is the part of the switch for one family.
type guard struct {
	family nftables.TableFamily
	ip     *nftables.IP
	base   nftables.Base
	// asks matches a question for an address; target is the address asked for.
	asks   nftables.Statement
	target nftables.Field
}

// tableName may never change; see package netfilter.
const tableName = "berth-silence"

var guards = []guard{
	// The operation, a request, and the target of an ARP packet.
	{nftables.ARP, nftables.V4, *nftables.Filter(nftables.ARPInput, nftables.PriorityRaw), nftables.Network(6, 2).Is(0, 1), nftables.Network(24, 4)},
	{nftables.INet, nftables.V6, *nftables.Filter(nftables.Prerouting, nftables.PriorityRaw), nftables.V6.Is.Then(nftables.ICMPv6(nftables.NeighborSolicitation)), nftables.Transport(8, 16)},
}

func (g *guard) watched() string { return "watched" + g.ip.Suffix }
func (g *guard) alive() string   { return "alive" + g.ip.Suffix }

// table has the watched and the alive addresses; alive elements expire after left.
func (g *guard) table(watched, alive sets.Set[string], left time.Duration) *nftables.Table {
	key := []nftables.Type{nftables.IfName, g.ip.Addr}
	return &nftables.Table{
		Family: g.family, Name: tableName,
		Sets: []*nftables.Set{
			{Name: g.watched(), Key: key, Elements: elements(watched, 0)},
			{Name: g.alive(), Key: key, Timeout: parked, Elements: elements(alive, left)},
		},
		Chains: []*nftables.Chain{{Name: "silence", Base: &g.base, Rules: nftables.Rules(nftables.NewRule("nobody said that the agent lives",
			g.asks, nftables.In(g.watched(), nftables.IIFName, g.target), nftables.NotIn(g.alive(), nftables.IIFName, g.target), nftables.Drop))}},
	}
}

func elements(keys sets.Set[string], left time.Duration) func(yield func(nftables.Element) bool) {
	return func(yield func(nftables.Element) bool) {
		for key := range keys {
			if !yield(nftables.Element{Key: []byte(key), Timeout: left}) {
				return
			}
		}
	}
}

// standing is the kernel's state.
type standing struct {
	// exists: there is a table. whole: it is right, apart from its elements.
	exists, whole bool
	// answered has the keys of the addresses for which the node answers, each with whether to watch
	// it.
	answered map[string]bool
	addrs    map[string]netip.Addr
	watched  sets.Set[string]
	// alive has the remaining time of each element.
	alive map[string]time.Duration
}

// read reads the kernel's state, with the tables if tables is set.
func (g *guard) read(watched map[netip.Addr]bool, tables bool) (*standing, error) {
	now := &standing{answered: map[string]bool{}, addrs: map[string]netip.Addr{}, alive: map[string]time.Duration{}}
	family := unix.AF_INET
	if g.ip == nftables.V6 {
		family = unix.AF_INET6
	}
	links, err := wire.AnsweredOn(family)
	if err != nil {
		return nil, err
	}
	for addr, link := range links {
		key := string(nftables.AppendAddr(nftables.AppendName(nil, link), addr))
		now.answered[key], now.addrs[key] = watched[addr], addr
	}
	if !tables {
		return now, nil
	}
	table := g.table(nil, nil, 0)
	have, err := table.Contents()
	if err != nil {
		return nil, err
	}
	now.exists = have.Exists
	if !now.exists {
		return now, nil
	}
	if err := table.CheckStructure(); err != nil && !errors.Is(err, nftables.ErrDiffers) {
		return nil, err
	} else if err == nil {
		now.whole = true
	}
	keys, err := table.Keys(g.watched())
	if err != nil {
		return nil, err
	}
	now.watched = sets.KeySet(keys)
	err = table.Elements(g.alive(), func(e nftables.Element) { now.alive[string(e.Key)] = e.Timeout })
	return now, err
}

// change is the state that follows.
type change struct {
	expired []netip.Addr
	// watched and alive have all elements; renewed are the elements of alive that get their full time.
	watched, alive, renewed sets.Set[string]
}

// change returns the next state, in which an address gets the time left.
func (now *standing) change(left time.Duration) change {
	c := change{watched: sets.New[string](), alive: sets.New[string](), renewed: sets.New[string]()}
	for key, wanted := range now.answered {
		rest, alive := now.alive[key]
		switch {
		case now.watched.Has(key) && !alive:
			c.expired = append(c.expired, now.addrs[key])
			c.watched.Insert(key)
		case wanted:
			c.watched.Insert(key)
			c.alive.Insert(key)
			// A call soon after another one writes nothing.
			if !alive || rest < left/10*9 || rest > left/10*11 {
				c.renewed.Insert(key)
			}
		}
	}
	return c
}

// write adds the change to a transaction.
func (g *guard) write(tx *nftables.Transaction, now *standing, c change, left time.Duration) {
	table := g.table(c.watched, c.alive, left)
	switch {
	case len(c.watched) == 0 && now.exists:
		tx.DeleteTable(table)
	case len(c.watched) == 0:
	case !now.whole:
		tx.Replace(table)
	default:
		kept := c.alive.Difference(c.renewed)
		tx.DeleteElements(table, g.watched(), elements(now.watched.Difference(c.watched), 0))
		tx.AddElements(table, g.watched(), elements(c.watched.Difference(now.watched), 0))
		tx.DeleteElements(table, g.alive(), elements(sets.KeySet(now.alive).Difference(kept), 0))
		tx.AddElements(table, g.alive(), elements(c.renewed, left))
	}
}
