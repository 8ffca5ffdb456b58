// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/sorted"
)

// supply has the methods of ipam.IPAM that a line uses. No method blocks.
type supply interface {
	// Helps returns a function that says whether a change may help a request. The
	// caller must use it at once and not keep it.
	Helps(change ipam.Change) func(request *ipam.Request, lack ipam.Lack) bool
	IsFree(addr netip.Addr) bool
}

// line has the owners whose last attempt found too few addresses, in the order of their turns: the
// owner that got no address for the longest time comes first. It decides which owner a change
// wakes. Safe for concurrent use; no method blocks.
//
// A change is offered to one owner at a time: the first owner that it may help, that is not woken
// already, and that has not looked since. When this owner has looked and the change is still there,
// it is the next owner's turn. So an owner that cannot use a change does not keep it from others.
// An owner is not woken during its look: the change may be an address that its own attempt reserved
// and gave back because the API server refused it. The owner is woken after the look if it still
// waits in the line.
type line struct {
	supply supply
	// wake makes the Loop look at an owner. It is called under the line's lock and does not block.
	wake func(Key)

	mu sync.Mutex
	// changes counts all changes; it numbers the offers.
	changes uint64
	// turns counts the given turns.
	turns   uint64
	waiters map[Key]*waiter
	// order has the waiters in the order of their turns.
	order  []*waiter
	offers []*offer
}

type waiter struct {
	key      Key
	turn     uint64
	requests []ipam.Request
	// seen is line.changes when the last look began.
	seen uint64
	// woken says that the owner was woken and its look has not begun, looking that a look is in
	// progress, stays that the owner said in this look that it waits.
	woken, looking, stays bool
}

// offer is a change that may help a waiter that has not looked since.
type offer struct {
	ipam.Change
	number uint64
	// to is the waiter that was last woken for it; nil: none.
	to *waiter
}

func newLine(supply supply, wake func(Key)) *line {
	return &line{supply: supply, wake: wake, waiters: map[Key]*waiter{}}
}

func byTurn(a, b *waiter) int { return cmp.Compare(a.turn, b.turn) }

// begin is called when a look at an owner begins, end when the look has ended. If the owner did not
// say in the look that it waits, it leaves the line.
func (l *line) begin(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.waiters[key]; w != nil {
		w.seen, w.woken, w.looking, w.stays = l.changes, false, true, false
	}
}

func (l *line) end(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.waiters[key]; w != nil {
		w.looking = false
		if !w.stays {
			l.order = sorted.Remove(l.order, w, byTurn)
			delete(l.waiters, key)
		}
	}
	l.offers = slices.DeleteFunc(l.offers, func(o *offer) bool { return !l.pass(o) })
}

// stay notes in a look at an owner that the owner still waits, if it waited before.
func (l *line) stay(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.waiters[key]; w != nil {
		w.stays = true
	}
}

// try notes in a look that the owner begins an attempt to get addresses for these requests. The
// caller calls wait when the attempt has ended.
func (l *line) try(key Key, requests []ipam.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.waiters[key]
	if w == nil {
		w = &waiter{key: key, seen: l.changes, looking: true}
		l.waiters[key] = w
		l.append(w)
	}
	w.requests, w.stays = requests, true
}

// wait notes in a look the requests for which the owner found too few addresses. Without such
// requests the owner leaves the line. got says that the owner just got some addresses: then all
// others of the line come before it.
func (l *line) wait(key Key, requests []ipam.Request, got bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.waiters[key]
	w.requests, w.stays = requests, len(requests) > 0
	if got {
		l.order = sorted.Remove(l.order, w, byTurn)
		l.append(w)
	}
}

func (l *line) append(w *waiter) {
	l.turns++
	w.turn = l.turns
	l.order = append(l.order, w)
}

// changed offers a change to the line.
func (l *line) changed(change ipam.Change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.order) == 0 {
		return
	}
	l.changes++
	o := &offer{Change: change, number: l.changes}
	// An address that becomes free again while it is offered has only one offer.
	if at := slices.IndexFunc(l.offers, func(o *offer) bool { return o.Addr.IsValid() && o.Addr == change.Addr }); at >= 0 {
		o.to = l.offers[at].to
		l.offers = slices.Delete(l.offers, at, at+1)
	}
	if l.pass(o) {
		l.offers = append(l.offers, o)
	}
}

// pass wakes the next owner for an offer. It returns false if the offer is over: the address is not
// free any more, or there is no owner left to wake.
func (l *line) pass(o *offer) bool {
	if o.to != nil && (o.to.woken || o.to.looking) {
		return true
	}
	if o.Addr.IsValid() && !l.supply.IsFree(o.Addr) {
		return false
	}
	helps, later := l.supply.Helps(o.Change), false
	for _, w := range l.order {
		if w.woken || w.seen >= o.number || !slices.ContainsFunc(w.requests, func(r ipam.Request) bool { return helps(&r, ipam.LackAddress) }) {
			continue
		}
		if !w.looking {
			o.to, w.woken = w, true
			l.wake(w.key)
			return true
		}
		later = true
	}
	return later
}
