// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// State is the objects at one moment of a history, and what must be remembered of
// its past. Not safe for concurrent use.
type State struct {
	// ClockError is how far the clock of a program may be wrong, in either direction.
	ClockError time.Duration

	pods      map[string]*Pod      // by UID
	addresses map[string]*tenure   // by name
	workloads map[string]*Workload // by UID
	claims    map[string]*Claim    // by UID
	pools     map[string]*Pool
	nodes     map[string]*Node

	// runners are the live pods that were bound with an address while it was
	// recorded for them, by address.
	runners map[string]*Pod
	// running are these pods, by UID.
	running map[string]*Pod
	index   index
	// spans are the ranges of the pools, by pool.
	spans map[string][]span
	// events is how many there were.
	events int
	// pardoned are UIDs of FloatingIPs that an administrator may delete.
	pardoned map[string]bool
}

// tenure is the life of one FloatingIP.
type tenure struct {
	Address
	addr netip.Addr
	// used: it was made for its owner, or a pod was bound with it since it was made.
	// Others were claimed for a pod that was then bound with another, or not at all.
	used bool
	// ran: a pod was bound with it since it was made.
	ran bool
	// owned is since when it has this owner, by name.
	owned time.Time
	// written is the time of the last write, as a number of events. Each field below is
	// true if its condition held at any moment since.
	written int
	// unwanted: its owner did not want the pod that it stands for.
	unwanted bool
	// superseded: a live pod of the name that it stands for was bound with others.
	superseded bool
	// unasked: no claim preallocated it.
	unasked bool
	// least is the smallest number of addresses like it that its owner wanted, and
	// worst its lowest rank among them.
	least, worst int
	// rest is the shortest cooldown of its pool.
	rest time.Duration
}

// New returns the state of a cluster without objects.
func New() *State {
	return &State{
		pods: map[string]*Pod{}, addresses: map[string]*tenure{}, workloads: map[string]*Workload{}, claims: map[string]*Claim{},
		pools: map[string]*Pool{}, nodes: map[string]*Node{},
		runners: map[string]*Pod{}, running: map[string]*Pod{}, index: newIndex(), spans: map[string][]span{}, pardoned: map[string]bool{},
	}
}

// Now returns the state of a cluster of which nothing but its present objects is known,
// in no order. [State.AtRest] and [State.Attached] are all that it is for.
func Now(objects iter.Seq[any]) *State {
	s := New()
	var addresses []*Address
	for object := range objects {
		switch object := object.(type) {
		case *Pod:
			s.pods[object.UID] = object
		case *Address:
			addresses = append(addresses, object)
		case *Workload:
			s.workloads[object.UID] = object
		case *Claim:
			s.claims[object.UID] = object
		case *Pool:
			s.putPool(object, false)
		case *Node:
			s.nodes[object.Name] = object
		}
	}
	for _, a := range addresses {
		t := &tenure{used: true}
		t.set(a)
		s.addresses[a.Name] = t
		s.index.add(t, s.keepsOldest(a))
		if a.Spec.Pod == nil {
			continue
		}
		if pod := s.pods[string(a.Spec.Pod.UID)]; pod != nil && pod.Node != "" && !pod.finished() && slices.Contains(pod.Addresses, a.Name) {
			s.runners[a.Name] = pod
		}
	}
	return s
}

// From returns the state of a cluster of which nothing but its present objects is known at a time,
// in no order. [State.Apply] goes on from there.
func From(objects iter.Seq[any], at time.Time) *State {
	s := Now(objects)
	for name, t := range s.addresses {
		rank := t.worst
		s.observe(t, true)
		t.worst, t.owned = rank, at
		if pod := s.runners[name]; pod != nil {
			t.ran = true
			s.running[pod.UID] = pod
		}
	}
	return s
}

// Pardon allows an administrator to delete the FloatingIP with this UID.
func (s *State) Pardon(uid string) { s.pardoned[uid] = true }

// Apply takes the next event and returns what is wrong with it. Events come in the
// order of their versions.
func (s *State) Apply(e Event) []string {
	s.events++
	switch object := e.Object.(type) {
	case *Pod:
		return s.applyPod(object, e.Deleted, e.At)
	case *Address:
		if e.Deleted {
			return s.forgetAddress(object, e.At)
		}
		return s.applyAddress(object, e.At)
	case *Workload:
		put(s.workloads, object.UID, object, e.Deleted)
		s.index.reorder(object.UID, object.OldestFirst && !e.Deleted)
		s.ownerChanged(object.UID)
	case *Claim:
		put(s.claims, object.UID, object, e.Deleted)
		s.ownerChanged(object.UID)
	case *Pool:
		before := s.pools[object.Name]
		s.putPool(object, e.Deleted)
		if e.Deleted || before == nil || before.Generation != object.Generation {
			for _, t := range s.addresses {
				s.observe(t, false)
			}
		}
	case *Node:
		put(s.nodes, object.Name, object, e.Deleted)
		s.nodeChanged(object.Name)
	}
	return nil
}

func put[T any](all map[string]*T, key string, object *T, deleted bool) {
	if deleted {
		delete(all, key)
	} else {
		all[key] = object
	}
}

func (s *State) putPool(pool *Pool, deleted bool) {
	put(s.pools, pool.Name, pool, deleted)
	delete(s.spans, pool.Name)
	if deleted {
		return
	}
	for _, text := range pool.Spec.Ranges {
		if span, err := spanOf(text); err == nil {
			s.spans[pool.Name] = append(s.spans[pool.Name], span)
		}
	}
}

func (s *State) applyPod(pod *Pod, deleted bool, at time.Time) []string {
	before := s.pods[pod.UID]
	put(s.pods, pod.UID, pod, deleted)
	if deleted || pod.finished() {
		if ran := s.running[pod.UID]; ran != nil {
			delete(s.running, pod.UID)
			for _, name := range ran.Addresses {
				if s.runners[name] == ran {
					delete(s.runners, name)
				}
			}
		}
		if deleted {
			s.ownerChanged(pod.UID)
		}
		return nil
	}
	if pod.Node == "" || before != nil && before.Node != "" {
		return nil
	}
	return s.bound(pod, at)
}

// bound looks at a pod at the moment when it is bound.
func (s *State) bound(pod *Pod, at time.Time) []string {
	var wrong []string
	if len(pod.Addresses) != pod.Asks {
		wrong = append(wrong, fmt.Sprintf("pod %s asks for %d addresses and is bound with %q", pod, pod.Asks, pod.Addresses))
	} else if !pod.suits() {
		wrong = append(wrong, fmt.Sprintf("pod %s asks for %v and is bound with %q", pod, pod.Parts, pod.Addresses))
	} else if name := s.wrongFamily(pod, at); name != "" {
		wrong = append(wrong, fmt.Sprintf("pod %s asks for no family and is bound with %s, though IPv4 addresses are for it", pod, name))
	}
	for i, name := range pod.Addresses {
		t := s.addresses[name]
		switch runner := s.runners[name]; {
		case slices.Contains(pod.Addresses[:i], name):
			wrong = append(wrong, fmt.Sprintf("pod %s is bound with %s twice", pod, name))
		case runner != nil:
			wrong = append(wrong, fmt.Sprintf("DUPLICATE: pod %s is bound with %s, which live pod %s has", pod, name, runner))
		case t == nil:
			wrong = append(wrong, fmt.Sprintf("pod %s is bound with %s, of which there is no FloatingIP", pod, name))
		case t.Spec.Pod == nil || string(t.Spec.Pod.UID) != pod.UID:
			wrong = append(wrong, fmt.Sprintf("pod %s is bound with %s, which is %s", pod, name, t))
		default:
			t.used, t.ran = true, true
			s.runners[name], s.running[pod.UID] = pod, pod
		}
	}
	// Other addresses of its name are given up.
	for _, name := range pod.Addresses {
		if t := s.addresses[name]; t != nil && t.Spec.Owner != nil {
			for _, other := range s.index.ofPod(t.Spec.Owner) {
				s.observe(other, false)
			}
		}
	}
	return wrong
}

func (s *State) applyAddress(next *Address, at time.Time) []string {
	t := s.addresses[next.Name]
	var wrong []string
	if t != nil {
		s.index.remove(t)
	}
	if t != nil && t.UID == next.UID {
		wrong = s.judgeChange(t, next, at)
	} else {
		t = &tenure{}
		s.addresses[next.Name] = t
		if next.Spec.Pod == nil && next.Spec.Owner != nil {
			t.used = true
		}
	}
	if before, after := t.Spec.Owner, next.Spec.Owner; before == nil || after == nil || before.Kind != after.Kind || before.Namespace != after.Namespace || before.Name != after.Name {
		t.owned = at
	}
	t.set(next)
	t.written = s.events
	s.observe(t, true)
	s.index.add(t, s.keepsOldest(next))
	return wrong
}

func (t *tenure) set(a *Address) {
	t.Address = *a
	t.addr, _ = netip.ParseAddr(a.Spec.Address) // the API server admits nothing else
}

// keepsOldest says whether the owner of an address keeps the oldest first.
func (s *State) keepsOldest(a *Address) bool {
	if a.Spec.Owner == nil {
		return false
	}
	w := s.workloads[string(a.Spec.Owner.UID)]
	return w != nil && w.OldestFirst
}

// judgeChange says what is wrong with a change of a FloatingIP.
func (s *State) judgeChange(t *tenure, next *Address, at time.Time) []string {
	var wrong []string
	if runner := s.runners[t.Name]; runner != nil && (next.Spec.Pod == nil || string(next.Spec.Pod.UID) != runner.UID) {
		wrong = append(wrong, fmt.Sprintf("%s is taken from live pod %s: it was %s, now it is %s", t.Name, runner, t, next))
	}
	if t.Spec.ExternallyAssigned && t.Spec.Pod == nil && next.Spec.Pod != nil {
		wrong = append(wrong, fmt.Sprintf("%s is given away before it is detached: it was %s, now it is %s", t.Name, t, next))
	}
	if t.Spec.ExternallyAssigned && t.Spec.Pod != nil && !next.Spec.ExternallyAssigned {
		wrong = append(wrong, fmt.Sprintf("%s was never to be detached: it was %s, now it is %s", t.Name, t, next))
	}
	before, after := t.Spec.Owner, next.Spec.Owner
	switch {
	case t.Spec.Reserved || next.Spec.Reserved:
	case before != nil && after != nil && !s.sameOwner(t, next):
		if reason := s.keeps(t, at); reason != "" {
			wrong = append(wrong, fmt.Sprintf("%s is given to another owner: it was %s and %s; now it is %s", t.Name, t, reason, next))
		}
	case before != nil && after == nil:
		if reason := s.keeps(t, at); reason != "" {
			wrong = append(wrong, fmt.Sprintf("LOST: %s is freed: it was %s and %s", t.Name, t, reason))
		}
	case before == nil && after != nil && t.Spec.LastOwner != nil && t.Spec.LastOwner.NamespaceUID != after.NamespaceUID:
		wrong = append(wrong, fmt.Sprintf("%s is given to another namespace while its last node may carry it: it was %s; now it is %s", t.Name, t, next))
	case before == nil && after != nil:
		if reason := s.keeps(t, at); reason != "" {
			wrong = append(wrong, fmt.Sprintf("%s is given away: it was %s and %s; now it is %s", t.Name, t, reason, next))
		}
	}
	return wrong
}

func (s *State) forgetAddress(last *Address, at time.Time) []string {
	t := s.addresses[last.Name]
	if t == nil || t.UID != last.UID {
		return nil
	}
	var wrong []string
	if runner := s.runners[t.Name]; runner != nil {
		wrong = append(wrong, fmt.Sprintf("%s is freed, but live pod %s has it: it was %s", t.Name, runner, t))
	} else if reason := s.keeps(t, at); reason != "" {
		wrong = append(wrong, fmt.Sprintf("LOST: %s is freed: it was %s and %s", t.Name, t, reason))
	} else if t.ran && t.Spec.ReleasedAt == nil && t.rest > 0 && !s.pardoned[t.UID] {
		wrong = append(wrong, fmt.Sprintf("%s is freed without its cooldown of %s: it was %s", t.Name, t.rest, t))
	}
	if t.Spec.ExternallyAssigned && t.Spec.Pod != nil {
		wrong = append(wrong, fmt.Sprintf("%s is freed and was never to be detached: it was %s", t.Name, t))
	}
	s.index.remove(t)
	delete(s.addresses, t.Name)
	return wrong
}

// ownerChanged takes note of what an owner wants now.
func (s *State) ownerChanged(uid string) {
	s.index.of(uid, func(t *tenure) { s.observe(t, false) })
}

func (s *State) nodeChanged(name string) {
	for _, t := range s.addresses {
		if t.Spec.Owner != nil && t.Spec.Owner.NodeName == name {
			s.observe(t, false)
		}
	}
}

// observe takes note of what is wanted of an address at this moment; anew if the
// address was just written.
func (s *State) observe(t *tenure, anew bool) {
	wanted, count := s.wants(&t.Address)
	rest := s.cooldown(t)
	if anew {
		t.unwanted, t.superseded, t.unasked, t.least, t.worst, t.rest = false, false, false, count, 0, rest
	}
	t.unwanted = t.unwanted || !wanted
	t.superseded = t.superseded || s.isSuperseded(t)
	t.unasked = t.unasked || !s.preallocates(&t.Address)
	t.least = min(t.least, count)
	t.rest = min(t.rest, rest)
}

// String says who has the address.
func (a *Address) String() string {
	var parts []string
	switch {
	case a.Spec.Reserved:
		parts = append(parts, "reserved")
	case a.Spec.ReleasedAt != nil:
		parts = append(parts, "at rest since "+a.Spec.ReleasedAt.UTC().Format(time.RFC3339))
		if last := a.Spec.LastOwner; last != nil {
			parts = append(parts, fmt.Sprintf("for pods of namespace %s (%s)", last.Namespace, last.NamespaceUID))
		}
	case a.Spec.Pod != nil:
		parts = append(parts, fmt.Sprintf("held by pod %s (%s) on %s", a.Spec.Pod.Name, a.Spec.Pod.UID, a.Spec.Node))
	default:
		parts = append(parts, "retained")
	}
	if o := a.Spec.Owner; o != nil {
		parts = append(parts, fmt.Sprintf("for %s %s/%s (%s)", o.Kind, o.Namespace, o.Name, o.UID))
		if o.PodName+o.NodeName != "" {
			parts = append(parts, o.PodName+o.NodeName)
		}
	}
	if last := a.Spec.LastNode; last != nil {
		parts = append(parts, "carried before by "+last.Name)
	}
	if a.Spec.ExternallyAssigned {
		parts = append(parts, "attached to "+a.Spec.Node)
	}
	parts = append(parts, "policy "+string(a.Spec.ReleasePolicy), "pool "+a.Spec.Pool)
	return strings.Join(parts, ", ")
}
