// SPDX-License-Identifier: Apache-2.0

package allocator

// taker is a pod that has or is promised addresses which a workload keeps, or the last pod of an
// address that must be detached from its node.
type taker struct{ ownerUID, podUID, detachedFrom string }

type taking struct {
	addresses, promises int
}

// takers are the pods that count for a fixed set: alive pods by the owner's UID, and pods that are
// gone or lost, because a cache that is behind may show them as alive again. Made by newTakers.
type takers struct {
	all   map[taker]*taking
	alive map[string]int
	ended map[string]map[taker]bool
}

func newTakers() takers {
	return takers{all: map[taker]*taking{}, alive: map[string]int{}, ended: map[string]map[taker]bool{}}
}

// taker returns the pod that has an address of a fixed set; ok is false if no pod has the address,
// or no policy keeps it.
func (e *entry) taker() (t taker, ok bool) {
	if p := e.promised; p != nil {
		return taker{ownerUID: p.ownerUID, podUID: p.podUID}, e.stored == nil || e.promisedFromRest() || e.stored.policy != PodDeleted
	}
	t = taker{ownerUID: e.stored.ownerUID, podUID: e.stored.podUID}
	if t.podUID == "" {
		t.detachedFrom = e.stored.lastPod
	}
	return t, e.stored.policy != PodDeleted && (t.podUID != "" || e.stored.attached)
}

// count notes that the taker of an address got it (by: 1) or lost it (-1). ended says whether a pod
// is gone or lost.
func (s *takers) count(e *entry, by int, ended func(taker) bool) {
	t, ok := e.taker()
	if !ok {
		return
	}
	now := s.all[t]
	if now == nil {
		now = &taking{}
		s.all[t] = now
		s.alive[t.ownerUID]++
	}
	now.addresses += by
	if e.promised != nil {
		now.promises += by
	}
	s.end(t, now.addresses > 0 && now.promises == 0 && ended(t))
	if now.addresses == 0 {
		delete(s.all, t)
		if s.alive[t.ownerUID]--; s.alive[t.ownerUID] == 0 {
			delete(s.alive, t.ownerUID)
		}
	}
}

func (s *takers) end(t taker, ended bool) {
	of := s.ended[t.ownerUID]
	switch {
	case of[t] == ended:
	case ended:
		if of == nil {
			of = map[taker]bool{}
			s.ended[t.ownerUID] = of
		}
		of[t] = true
		s.alive[t.ownerUID]--
	default:
		if delete(of, t); len(of) == 0 {
			delete(s.ended, t.ownerUID)
		}
		s.alive[t.ownerUID]++
	}
}

// leaveRoom says whether fewer than MaxPods pods, without the claimant's, have addresses. It asks
// ended only about as many pods as the answer depends on.
func (s *takers) leaveRoom(c Claimant, ended func(taker) bool) bool {
	self := taker{ownerUID: c.Owner.UID, podUID: c.PodUID}
	of := s.ended[self.ownerUID]
	room, unasked := c.MaxPods-s.alive[self.ownerUID], len(of)
	if of[self] {
		unasked--
	} else if s.all[self] != nil {
		room++
	}
	for t := range of {
		if room <= 0 || unasked < room {
			break
		}
		if t == self {
			continue
		}
		if unasked--; !ended(t) {
			s.end(t, false)
			room--
		}
	}
	return room > 0
}

// hasEnded says whether the pod that a taken address records is gone or lost. A twin counts when it
// has the address itself.
func (a *Allocator) hasEnded(e *entry) bool {
	if e.stored.podUID == "" || a.pods == nil {
		return false
	}
	record := e.record()
	record.TwinName, record.TwinUID = "", ""
	return a.pods.Gone(&record) || a.pods.Lost(&record)
}

// countTaker notes in the holding of an owner that the owner got an address (by: 1) or loses it
// (-1).
func (a *Allocator) countTaker(h *holding, key ownerKey, e *entry, by int) {
	h.takers.count(e, by, func(t taker) bool { return a.endedOf(key, t) })
}

// endedOf says whether a taker of an owner with a holding is gone or lost.
func (a *Allocator) endedOf(key ownerKey, t taker) bool {
	if t.podUID == "" {
		return false
	}
	for _, e := range a.byPod[podKey{key.namespace, t.podUID}] {
		if e.promised == nil && e.stored.podUID == t.podUID && e.isOf(key) {
			return a.hasEnded(e)
		}
	}
	return false
}

// setHasRoom says whether fewer than MaxPods other pods have addresses of the owner. Pods that are
// gone or lost do not count.
func (a *Allocator) setHasRoom(c Claimant) bool {
	if c.SetWasFull {
		return false
	}
	key := c.Owner.key()
	if h := a.holding(key); h != nil {
		return h.takers.leaveRoom(c, func(t taker) bool { return a.endedOf(key, t) })
	}
	// It first counts addresses, and asks about pods only if there are too many.
	var taken []*entry
	for e := range a.ownedBy(key) {
		if t, ok := e.taker(); ok && t.ownerUID == c.Owner.UID && t.podUID != c.PodUID {
			taken = append(taken, e)
		}
	}
	if len(taken) < c.MaxPods {
		return true
	}
	few := newTakers()
	for _, e := range taken {
		few.count(e, 1, func(taker) bool { return a.hasEnded(e) })
	}
	return few.alive[c.Owner.UID] < c.MaxPods
}
