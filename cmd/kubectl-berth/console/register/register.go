// SPDX-License-Identifier: Apache-2.0

// Package register is the console's copy of Berth's objects: a row of some 300 bytes for each
// FloatingIP, in the order of the addresses, the pools, claims, BGPPeers, the nodes that carry
// Services' addresses, the pods that wait for an address, and the nodes. It answers each question
// from memory, for a [Scope]: the part of the cluster that the asker may see. It asks nobody:
// package console feeds it from watches.
//
// A Register is safe for concurrent use.
package register

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berth-dev/berth/cmd/kubectl-berth/pool/poolmap"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

type Register struct {
	mu     sync.RWMutex
	orders map[Sort][]*Row
	// Objects are the others. Feeds change them.
	Objects Objects
	// compiled is made of the pools when it is asked for. stale: they changed since.
	compiled *compiled
	stale    bool
	changes  changes
	// missing are the kinds that cannot be read, and why.
	missing map[string]string
	// listed are the kinds of which there is a list.
	listed map[string]bool

	subscribers map[chan<- struct{}]bool
}

type compiled struct {
	all      []*v1alpha1.IPPool // by name
	snapshot *pools.Snapshot
	counts   []poolmap.Counts
}

func New() *Register {
	r := &Register{
		orders: map[Sort][]*Row{}, stale: true,
		missing: map[string]string{}, listed: map[string]bool{}, subscribers: map[chan<- struct{}]bool{},
	}
	r.Objects = newObjects(r)
	for _, by := range Sorts {
		r.orders[by] = nil
	}
	return r
}

const (
	FloatingIPs     = "FloatingIPs"
	IPPools         = "IPPools"
	IPClaims        = "IPClaims"
	NodeAssignments = "NodeAssignments"
	BGPPeers        = "BGPPeers"
	Pods            = "pods"
	Nodes           = "nodes"
)

var kinds = []string{FloatingIPs, IPPools, IPClaims, NodeAssignments, BGPPeers, Pods, Nodes}

// Missing says that a kind cannot be read, and why; empty: it can. Rows that are there stay.
func (r *Register) Missing(kind, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.missing[kind] == why {
		return
	}
	if r.missing[kind] = why; why == "" {
		delete(r.missing, kind)
	}
	r.changed()
}

func (r *Register) Unreadable() map[string]string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return maps.Clone(r.missing)
}

// Ready says whether each kind is listed, or cannot be read.
func (r *Register) Ready() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return !slices.ContainsFunc(kinds, func(kind string) bool { return !r.listed[kind] && r.missing[kind] == "" })
}

// Unlisted returns the kinds of which there was no list yet.
func (r *Register) Unlisted() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.DeleteFunc(slices.Clone(kinds), func(kind string) bool { return r.listed[kind] })
}

func (r *Register) Namespaces() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	seen := map[string]bool{}
	for rows := r.orders[ByNamespace]; len(rows) > 0; {
		namespace := rows[0].namespace.String()
		seen[namespace] = true
		rows = rows[len(with(rows, ByNamespace, namespace)):]
	}
	for of := range r.Objects.Waiting.all {
		seen[of.namespace] = true
	}
	for of := range r.Objects.Claims.all {
		seen[of.namespace] = true
	}
	for i := range r.changes.ring {
		for _, namespace := range r.changes.ring[i].namespaces {
			seen[namespace] = true
		}
	}
	delete(seen, "")
	return slices.Sorted(maps.Keys(seen))
}

// Subscribe returns a channel that gets a signal after each change; signals that nobody has
// received yet are one. The caller must call stop.
func (r *Register) Subscribe() (changed <-chan struct{}, stop func()) {
	channel := make(chan struct{}, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.subscribers[channel] = true
	return channel, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.subscribers, channel)
	}
}

// changed tells the subscribers. The caller holds the lock.
func (r *Register) changed() {
	for channel := range r.subscribers {
		select {
		case channel <- struct{}{}:
		default:
		}
	}
}

// ReplaceFloatingIPs makes the rows of a list all that there are.
func (r *Register) ReplaceFloatingIPs(all []*Row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all = slices.Clone(all)
	slices.Reverse(all) // of rows with one address the last counts
	slices.SortStableFunc(all, func(a, b *Row) int { return a.addr.Compare(b.addr) })
	all = slices.CompactFunc(all, func(a, b *Row) bool { return a.addr == b.addr })
	if r.listed[FloatingIPs] {
		r.noteAll(r.rows(), all)
	} else {
		r.recall(all)
	}
	for _, by := range Sorts {
		r.orders[by] = slices.Clone(all)
		sortBy(by, r.orders[by])
	}
	if r.compiled != nil {
		r.count(r.compiled)
	}
	r.listed[FloatingIPs] = true
	r.changed()
}

func (r *Register) PutFloatingIP(ip *v1alpha1.FloatingIP) {
	if row, ok := RowOf(ip); ok {
		r.put(row.addr, row)
	}
}

func (r *Register) DeleteFloatingIP(name string) {
	if addr, err := v1alpha1.AddrOf(name); err == nil {
		r.put(addr, nil)
	}
}

// put replaces the row of an address; nil is none.
func (r *Register) put(addr netip.Addr, next *Row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.row(addr)
	if before == nil && next == nil {
		return
	}
	r.recount(before, next)
	r.replace(before, next)
	r.note(before, next)
	r.changed()
}

func (r *Register) pools() *compiled {
	r.mu.RLock()
	compiled, stale := r.compiled, r.stale
	r.mu.RUnlock()
	if !stale {
		return compiled
	}
	return r.compile()
}

func (r *Register) compile() *compiled {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.stale {
		return r.compiled
	}
	r.stale = false
	next := &compiled{all: r.Objects.Pools.seen(Everything)}
	if before := r.compiled; before != nil && slices.EqualFunc(before.all, next.all, func(a, b *v1alpha1.IPPool) bool {
		return a.Name == b.Name && a.UID == b.UID && a.Generation == b.Generation
	}) {
		// The status of a pool changes often, and nothing else of it.
		next.snapshot, next.counts = before.snapshot, before.counts
	} else {
		next.snapshot = pools.Compile(next.all)
		r.count(next)
	}
	r.compiled = next
	return next
}

// now is the present, for a test to replace.
var now = time.Now
