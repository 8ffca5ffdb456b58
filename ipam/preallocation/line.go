// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"

	"github.com/berth-dev/berth/ipam"
)

// supply has the methods of ipam.IPAM that a line uses. No method blocks.
type supply interface {
	// Helps returns a function that says whether a change may help a request. The
	// caller must use it at once and not keep it.
	Helps(change ipam.Change) func(request *ipam.Request, lack ipam.Lack) bool
	IsFree(addr netip.Addr) bool
}

// line is the owners whose last attempt found too few addresses, in the order of their turn: the one that
// has got none for the longest comes first. It decides which owner a change wakes. Safe for
// concurrent use; no method blocks.
//
// A change is offered to the first owner that it may help: it serves one. The owner answers
// the offer by its next look, whether it makes an attempt in it or not; if not, it has a time
// of its own for the next. If the change still stands after the look, the offer goes to the
// next owner, so that one that cannot use it does not keep it from another. No owner is woken
// for a change that one of its looks has seen, so an offer ends.
//
// An owner that makes an attempt is woken after it, and only if it found too few: the change
// may be an address that the attempt itself reserved in vain, because the API server refused
// it, and gave back. It is for the others then; the owner tries again after a pause.
type line struct {
	supply supply
	// wake has an owner looked at. It is called under the line's lock and does not block.
	wake func(Key)

	mu sync.Mutex
	// changes counts all changes; it numbers the offers.
	changes uint64
	// turns counts the turns that were given.
	turns   uint64
	waiters map[Key]*waiter
	// order has the waiters by turn.
	order []*waiter
}

type waiter struct {
	key      Key
	turn     uint64
	requests []ipam.Request
	// seen is line.changes when the last look began.
	seen uint64
	// offer is the one that the waiter was woken for and that no look has answered; nil: none.
	offer *offer
	// trying: an attempt is under way. missed is the last change that may help and came since
	// it began; nil: none.
	trying bool
	missed *offer
}

// offer is a change that an owner is woken for.
type offer struct {
	ipam.Change
	number uint64
}

func newLine(supply supply, wake func(Key)) *line {
	return &line{supply: supply, wake: wake, waiters: map[Key]*waiter{}}
}

func byTurn(a, b *waiter) int { return cmp.Compare(a.turn, b.turn) }

// begin is called when a look at an owner begins. It returns the offer that the look answers;
// nil if there is none.
func (l *line) begin(key Key) *offer {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.waiters[key]
	if w == nil {
		return nil
	}
	w.seen = l.changes
	o := w.offer
	w.offer = nil
	return o
}

// end is called when the look has ended that answers an offer.
func (l *line) end(answered *offer) {
	if answered == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pass(answered)
}

// try notes that an owner begins an attempt to get addresses for these requests. The caller
// calls wait when the attempt has ended.
func (l *line) try(key Key, requests []ipam.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.waiters[key]
	if w == nil {
		w = &waiter{key: key, seen: l.changes}
		l.waiters[key] = w
		l.append(w)
	}
	w.requests, w.trying = requests, true
}

// wait notes the requests for which an owner found too few addresses; without any it leaves
// the line. got: it just got some, so all others of the line come before it now.
func (l *line) wait(key Key, requests []ipam.Request, got bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.waiters[key]
	if w == nil {
		return
	}
	missed := w.missed
	w.requests, w.trying, w.missed = requests, false, nil
	switch {
	case len(requests) == 0:
		l.drop(w)
		delete(l.waiters, key)
		l.pass(w.offer)
	case got:
		l.drop(w)
		l.append(w)
	}
	l.pass(missed)
}

// changed offers a change to the line.
func (l *line) changed(change ipam.Change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changes++
	l.pass(&offer{Change: change, number: l.changes})
}

// pass gives an offer, if the change still stands, to the next owner that it may help and
// that has not been woken yet: an owner that has been will see this change, too.
func (l *line) pass(o *offer) {
	if o == nil || len(l.order) == 0 || o.Addr.IsValid() && !l.supply.IsFree(o.Addr) {
		return
	}
	if w := l.offered(o.Addr); w != nil {
		if w.offer.number < o.number {
			w.offer = o
		}
		return
	}
	helps := l.supply.Helps(o.Change)
	for _, w := range l.order {
		if w.offer != nil || w.seen >= o.number || !slices.ContainsFunc(w.requests, func(r ipam.Request) bool { return helps(&r, ipam.LackAddress) }) {
			continue
		}
		if w.trying {
			w.missed = o
			continue
		}
		w.offer = o
		l.wake(w.key)
		return
	}
}

// offered returns the owner that was woken for an address, nil if none was.
func (l *line) offered(addr netip.Addr) *waiter {
	at := slices.IndexFunc(l.order, func(w *waiter) bool { return addr.IsValid() && w.offer != nil && w.offer.Addr == addr })
	if at < 0 {
		return nil
	}
	return l.order[at]
}

func (l *line) append(w *waiter) {
	l.turns++
	w.turn = l.turns
	l.order = append(l.order, w)
}

func (l *line) drop(w *waiter) {
	if at, found := slices.BinarySearchFunc(l.order, w, byTurn); found {
		l.order = slices.Delete(l.order, at, at+1)
	}
}
