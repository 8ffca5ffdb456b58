// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
	"unique"

	"github.com/berth-dev/berth/ipam/sorted"
)

// largeOwner is the number of addresses from which on an owner has a [holding].
const largeOwner = 64

// holding lists the addresses of an owner with many addresses, so that a request of one pod does
// not go through all of them. The book makes the holding when it is first asked about the owner's
// addresses. It drops the holding when the owner has no address any more, or when the pools change.
type holding struct {
	v4, v6 int
	takers takers
	// ready has the addresses that the owner's next pod may use, by kind, the oldest first. An address
	// whose pod is gone becomes ready with [Allocator.Ended].
	ready map[kind][]*entry
}

// kind has the properties of an address, other than the address itself, that decide whether a pod
// may have it.
type kind struct {
	home     *freeSpace // nil: no pool contains it
	is4      bool
	of       unique.Handle[ownerGroup]
	ownerUID string
	policy   Policy
	index    int32
}

func (a *Allocator) kindOf(e *entry) kind {
	s := e.stored
	return kind{home: a.home(e.addr), is4: e.addr.Is4(), of: s.of, ownerUID: s.ownerUID, policy: s.policy, index: s.index}
}

// holding returns the holding of an owner, nil if it has few addresses.
func (a *Allocator) holding(key ownerKey) *holding {
	if known := a.large[key]; known != nil {
		return known
	}
	n := 0
	for range a.ownedBy(key) {
		if n++; n == a.many {
			break
		}
	}
	if n < a.many {
		return nil
	}
	h := &holding{takers: newTakers(), ready: map[kind][]*entry{}}
	a.large[key] = h
	// In the order of the lists, because they grow fastest at their ends.
	for _, e := range slices.SortedFunc(a.ownedBy(key), older) {
		h.count(e.addr, 1)
		a.list(key, e)
	}
	return h
}

func (h *holding) count(addr netip.Addr, more int) {
	if addr.Is4() {
		h.v4 += more
	} else {
		h.v6 += more
	}
}

func (a *Allocator) countLarge(key ownerKey, addr netip.Addr, more int) {
	known := a.large[key]
	if known == nil {
		return
	}
	if known.count(addr, more); known.v4+known.v6 == 0 {
		delete(a.large, key)
	}
}

func (a *Allocator) forgetHoldings() {
	clear(a.large)
	clear(a.byLastPod)
}

// list puts an address into the lists of its owner, if it has many addresses.
func (a *Allocator) list(key ownerKey, e *entry) {
	h := a.large[key]
	if h == nil {
		return
	}
	if e.isReady(a.gone) {
		kind := a.kindOf(e)
		h.ready[kind] = sorted.Insert(h.ready[kind], e, older)
		a.byLastPod.add(podKey{key.namespace, e.stored.lastPod}, e)
	}
	a.countTaker(h, key, e, 1)
}

// unlist undoes list. The entry must be as it was then.
func (a *Allocator) unlist(key ownerKey, e *entry) {
	h := a.large[key]
	if h == nil {
		return
	}
	if e.stored != nil {
		kind := a.kindOf(e)
		h.ready[kind] = sorted.Remove(h.ready[kind], e, older)
		if len(h.ready[kind]) == 0 {
			delete(h.ready, kind)
		}
		a.byLastPod.remove(podKey{key.namespace, e.stored.lastPod}, e)
	}
	a.countTaker(h, key, e, -1)
}

// relist puts an address into the lists of its owner again, because the answer whether its pod is
// gone may have changed.
func (a *Allocator) relist(e *entry) {
	if key, ok := e.owner(); ok {
		a.unlist(key, e)
		a.list(key, e)
	}
}

// Ended notes that [Pods] now says that a pod in a namespace is gone.
func (a *Allocator) Ended(namespace, podUID string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range slices.Clone(a.byPod[podKey{namespace, podUID}]) {
		a.relist(e)
	}
}

// each calls offer with addresses that owner may use for the pod podUID: first the addresses of the
// pod and of its name, then the oldest of each kind, until offer has accepted as many of the kind
// as most says. If most is 0, it offers all. It may offer an address twice.
func (a *Allocator) each(h *holding, owner Owner, podUID, podName string, most int, offer func(*entry) (accepted bool)) {
	key := owner.key()
	for _, e := range slices.Concat(a.byPod[podKey{key.namespace, podUID}], a.byLastPod[podKey{key.namespace, podName}]) {
		if e.isOf(key) && e.usable(owner, podUID, a.gone) {
			offer(e)
		}
	}
	var alive []*entry
	for _, ready := range h.ready {
		if !ready[0].stored.isKeptFor(owner) {
			continue // The pod may have no address of this kind.
		}
		accepted := 0
		for _, e := range ready {
			if !e.usable(owner, podUID, a.gone) {
				alive = append(alive, e)
			} else if offer(e) {
				if accepted++; accepted == most {
					break
				}
			}
		}
	}
	// The pod of such an address may have been missing in the caches when the book saw the record.
	for _, e := range alive {
		a.relist(e)
	}
}

// older compares such that the address whose object is older comes first.
func older(x, y *entry) int {
	return cmp.Or(x.created().Compare(y.created()), x.addr.Compare(y.addr))
}

// created returns when the stored object was created, zero if there is none.
func (e *entry) created() time.Time {
	if e.stored == nil {
		return time.Time{}
	}
	return e.stored.created
}

// isReady says whether the next pod of the address's owner may use it, whichever pod it is.
func (e *entry) isReady(gone func(*entry) bool) bool {
	s := e.stored
	return s != nil && e.promised == nil && s.owned() && !s.isToDetach() && e.isVacant(gone)
}
