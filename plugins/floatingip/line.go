// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/sorted"
)

// line has the pods that kube-scheduler has tried to schedule and that have no addresses yet, in
// the order of their turns: by priority, then by waiting time. It decides which pods a change
// wakes. It takes no lock, starts no timer and wakes no pod: its caller [waiting] does this.
//
// Each pod is in one state.
//
//	attempting  an attempt is under way, or ended without a report
//	overtaken   the same, and since it began something changed that may help
//	short       the last attempt met a node that lacks an address for it
//	woken       it was woken, and its attempt has not begun
//	elsewhere   the last attempt ended without a report: it failed for another reason
//
//	event                 | attempting | overtaken     | short      | woken      | elsewhere
//	an attempt begins     | attempting | attempting    | attempting | attempting | attempting
//	  of another pod      | elsewhere  | elsewhere [4] | short      | woken      | -
//	an address is lacking | short      | woken         | short [1]  | woken      | short [1]
//	a change may help     | overtaken  | overtaken     | woken [2]  | woken      | elsewhere [3]
//	time has passed       | elsewhere  | elsewhere [4] | short      | short      | -
//	  to be tried again   | -          | -             | woken      | short      | woken
//	reserved, gone        | left the line, in every state
//
// [1] woken if anything changed since the attempt began: that change may help.
// [2] if it is the pod's turn.
// [3] woken if it is the pod's turn and the attempt left out nodes that the owner's
// kept addresses do not reach: another address, or another node, may help.
// [4] woken if the attempt left out such nodes.
//
// A change is offered to the first pod of the line that it may help. A change with n addresses is
// offered to the first n pods. A pod with an offer is woken, and answers the offer in its next
// attempt. If the attempt takes the offered address, the offer ends. If it takes another address,
// or the pod leaves the line, the offer goes to the next pod. If the attempt ends and the offered
// address is still there, the offer goes to the next two pods. So it soon finds a pod that can use
// it, even if many pods have no room on the nodes. No pod is woken for a change that one of its
// attempts has seen, so every offer ends. If it is unknown how many pods a change can serve, each
// pod that takes an address wakes two more.
//
// kube-scheduler does not report the end of an attempt. It makes one attempt at a time, so an
// attempt has ended when the next begins, or else after endsWithin. If a woken pod does not begin
// an attempt within beginsWithin, something else delays the pod, and its offer goes to the next
// pod. The delayed pod is woken again and again until it is tried: a PreEnqueue plugin may have
// kept it from the queue (as DefaultPreemption does while it deletes the pod's victims), and then
// no event brings the pod back into the queue. A pod is also tried again if it is held, or if
// Reserve found its attempt outdated.
//
// When kube-scheduler tries a PodGroup out, the group's pods take addresses and give them back. The
// addresses are then offered to other pods, but not to pods of groups: two groups would wake each
// other for ever. kube-scheduler tries groups again after a back-off.
type line struct {
	supply supply
	pods   map[types.UID]*waiter
	order  []*waiter
	// trying is the pod whose attempt is in progress.
	trying *waiter
	// changes counts all changes; it numbers the offers.
	changes uint64
	// offered has, for each offered address, the pod with the offer.
	offered map[netip.Addr]*waiter
	// wanted counts the addresses that the pods may take, by the pools of snapshot; nil: not counted
	// yet.
	wanted   *ipam.Demand
	snapshot *pools.Snapshot
	// wake has the pods to wake.
	wake map[types.UID]*v1.Pod
	// serving has the pools that serve more nodes, by name.
	serving map[string]serving
	// due is at or before the first deadline of a waiter or pool; zero: there is none.
	due time.Time
}

// serving is a pool that serves more nodes, and when to offer this change.
type serving struct {
	ipam.Change
	due time.Time
}

const (
	// nodeSettles is how long kube-scheduler may take to see a node's new addresses
	// after the plugin does: their event handlers run independently, and kube-scheduler
	// has no event for a node's addresses.
	nodeSettles  = time.Second
	endsWithin   = 250 * time.Millisecond
	beginsWithin = 5 * time.Second
	// triesAgain is the time after which a pod that Reserve rejected is tried again: kube-scheduler's
	// first back-off.
	triesAgain = time.Second
	// looksAgain is the time after which a held pod first looks again, looksAtLeast the longest time
	// between two looks.
	looksAgain   = 10 * time.Second
	looksAtLeast = 5 * time.Minute
)

// supply has the methods of ipam.IPAM that the line uses. No method blocks.
type supply interface {
	// Helps returns a function that says whether a change may help a request. The
	// caller must use it at once and not keep it.
	Helps(change ipam.Change) func(request *ipam.Request, lack ipam.Lack) bool
	IsIdle(addr netip.Addr) bool
	// Sources returns the pools that may give a request an address at some time.
	Sources(request *ipam.Request, snapshot *pools.Snapshot) *pools.Reach
}

type state uint8

const (
	attempting state = iota
	overtaken
	short
	woken
	elsewhere
)

type waiter struct {
	pod     *v1.Pod
	request ipam.Request
	since   time.Time
	state   state
	// lack is the Lack of the last attempt, why its causes.
	lack ipam.Lack
	why  why
	// narrow says that the last attempt left out nodes that the owner's kept addresses do not reach.
	narrow bool
	// sources are the pools for which line.wanted counts the pod's addresses; nil: it does not count
	// them.
	sources *pools.Reach
	// seen is line.changes when the last attempt began.
	seen  uint64
	offer *offer
	// deadline is when the state ends by itself; zero: never.
	deadline time.Time
	// again says that the pod is woken at its deadline, because it was woken and did not begin an
	// attempt within beginsWithin, or because its attempt was outdated.
	again bool
	// wanted is how many free addresses the pod needs.
	wanted int
	// heldSince is when the pod began to wait for addresses that become free anyway, instead of
	// preempting; zero: it does not wait for them.
	heldSince time.Time
}

// offer is a change that a pod is woken for.
type offer struct {
	ipam.Change
	number uint64
	// tooFew are the demands of pods for which the change was not enough.
	tooFew []demand
}

// demand is how many addresses of each family a pod wants; "" is either family.
type demand map[v1alpha1.IPFamily]int

func demandOf(request *ipam.Request) demand {
	d := demand{}
	for i := range request.Parts {
		d[request.Parts[i].OnlyFamily()]++
	}
	return d
}

// isTooFewFor says whether the change was not enough for another pod that wanted as much as this
// request, or less.
func (o *offer) isTooFewFor(request *ipam.Request) bool {
	if len(o.tooFew) == 0 {
		return false
	}
	wanted := demandOf(request)
	return slices.ContainsFunc(o.tooFew, func(d demand) bool { return d.within(wanted) })
}

// within says whether the demand is at most the other demand, for each family.
func (d demand) within(other demand) bool {
	for family, n := range d {
		if other[family] < n {
			return false
		}
	}
	return true
}

// hears says whether a change is news for the pod.
func (w *waiter) hears(change ipam.Change) bool { return !change.Trial || groupOf(w.pod) == "" }

// lacks returns the Lack of the pod's last attempt, including the nodes that the attempt left out.
func (w *waiter) lacks() (lack ipam.Lack) {
	if w.state == short || w.state == woken {
		lack = w.lack
	}
	if w.narrow {
		lack |= ipam.LackOwner
	}
	return lack
}

// needs returns the kinds of changes that may help the pod; ok is false if no change may wake it
// now.
func (w *waiter) needs() (lack ipam.Lack, ok bool) {
	return w.lacks(), w.state == short || w.state == elsewhere && w.narrow
}

// answered says whether the pod's last attempt has seen the pod's offer.
func (w *waiter) answered() bool { return w.offer != nil && w.offer.number <= w.seen }

const lackAnything = ipam.LackAddress | ipam.LackOwner | ipam.LackAgent

func newLine(supply supply) *line {
	return &line{supply: supply, pods: map[types.UID]*waiter{}, offered: map[netip.Addr]*waiter{}, wake: map[types.UID]*v1.Pod{}, serving: map[string]serving{}}
}

func byTurn(a, b *waiter) int {
	return cmp.Or(
		cmp.Compare(corev1helpers.PodPriority(b.pod), corev1helpers.PodPriority(a.pod)),
		a.since.Compare(b.since), cmp.Compare(a.pod.UID, b.pod.UID))
}

// begin is called when an attempt to schedule the pod begins.
func (l *line) begin(pod *v1.Pod, request ipam.Request, now time.Time) {
	if l.trying != nil {
		l.end(l.trying, now)
	}
	w := l.pods[pod.UID]
	if w == nil {
		w = &waiter{since: now}
		l.pods[pod.UID] = w
	} else {
		l.order = sorted.Remove(l.order, w, byTurn)
		l.discount(w)
	}
	w.pod, w.request = pod, request
	l.order = sorted.Insert(l.order, w, byTurn)
	w.state, w.narrow, w.again, w.seen, w.deadline, w.why = attempting, false, false, l.changes, time.Time{}, why{}
	w.wanted = len(request.Parts)
	if w.offer != nil {
		l.setDeadline(w, now.Add(endsWithin))
	}
	delete(l.wake, pod.UID)
	l.trying = w
}

// short is called when the attempt has met a node that lacks an address for the
// pod, or when nothing can serve the pod now.
func (l *line) short(uid types.UID, lack ipam.Lack, now time.Time) {
	w := l.pods[uid]
	if w == nil {
		return
	}
	before := w.state
	if before != short && before != woken {
		w.lack = 0
	}
	missed := before == overtaken || before != attempting && l.changes != w.seen
	if before == short && w.lack|lack == w.lack {
		missed = false
	}
	w.lack |= lack
	switch {
	case before == woken:
	case missed:
		l.awaken(w, now)
		if w.answered() {
			l.pass(l.take(w), 1, now)
		}
	default:
		w.state = short
	}
}

// hold is called when the attempt has found no node. covered says that addresses which become free
// anyway are enough: the pod is held and need not preempt. A held pod is woken to look again at
// growing intervals, because other pods may get these addresses.
func (l *line) hold(uid types.UID, covered bool, now time.Time) {
	w := l.pods[uid]
	switch {
	case w == nil:
		return
	case !covered:
		w.heldSince = time.Time{}
		return
	case w.heldSince.IsZero():
		w.heldSince = now
	}
	l.end(w, now)
	if w.state == short {
		l.setDeadline(w, now.Add(min(max(looksAgain, now.Sub(w.heldSince)), looksAtLeast)))
	}
}

// outdated is called when Reserve has rejected the pod. The pod is tried again even if nothing
// changes.
func (l *line) outdated(uid types.UID, now time.Time) {
	w := l.pods[uid]
	if w == nil {
		return
	}
	if l.end(w, now); w.state != woken {
		w.again = true
		l.setDeadline(w, now.Add(triesAgain))
	}
}

// wants notes that the pod needs fewer free addresses than it asks for, because its owner keeps
// some for it.
func (l *line) wants(uid types.UID, wanted int) {
	if w := l.pods[uid]; w != nil {
		l.discount(w)
		w.wanted = wanted
		if w != l.trying {
			l.countIn(w)
		}
	}
}

// ahead returns the pods that found no address, may be helped by one of these changes, and have
// their turn before the given pod.
func (l *line) ahead(uid types.UID, changes []ipam.Change) map[types.UID]nominee {
	pods := map[types.UID]nominee{}
	for _, change := range changes {
		helps := l.supply.Helps(change)
		for _, w := range l.order {
			if w.pod.UID == uid {
				break
			}
			if (w.state == short || w.state == woken) && helps(&w.request, w.lack) {
				pods[w.pod.UID] = nominee{wanted: w.wanted, namespace: w.pod.Namespace}
			}
		}
	}
	return pods
}

// narrowed is called when the attempt leaves out nodes that the owner's kept addresses
// do not reach.
func (l *line) narrowed(uid types.UID, now time.Time) {
	if w := l.pods[uid]; w != nil {
		w.narrow = true
		l.setDeadline(w, now.Add(endsWithin)) // Later changes must find the pod in state elsewhere.
	}
}

// end is called when the attempt of a pod has ended, with or without success.
func (l *line) end(w *waiter, now time.Time) {
	if l.trying == w {
		l.trying = nil
	}
	switch {
	case w.state == overtaken && w.narrow:
		l.awaken(w, now)
	case w.state == attempting || w.state == overtaken:
		w.state = elsewhere
	}
	if w.state != woken {
		w.deadline = time.Time{}
	}
	l.countIn(w)
	if !w.answered() {
		return
	}
	o := l.take(w)
	if o.Owner != nil && !o.Addr.IsValid() && w.state == short && w.lack&ipam.LackOwner != 0 {
		o.tooFew = append(slices.Clip(o.tooFew), demandOf(&w.request))
	}
	l.pass(o, 2, now)
}

// reserved takes a pod that got these addresses out of the line. kept says that its owner had all
// of them before.
func (l *line) reserved(uid types.UID, addrs []netip.Addr, kept bool, now time.Time) (since time.Time, ok bool) {
	w := l.pods[uid]
	if w == nil {
		return time.Time{}, false
	}
	answered := w.answered()
	o := l.leave(w)
	for _, addr := range addrs {
		if o != nil && o.Addr == addr {
			o = nil
			continue
		}
		// The address was offered to another pod: that pod may get this pod's offer instead.
		if other := l.offered[addr]; other != nil {
			l.take(other)
			if o != nil && o.Addr.IsValid() && l.idle(o) {
				l.give(other, o)
				o = nil
			}
		}
	}
	switch {
	case o == nil:
	case o.Addr.IsValid() || !answered || kept:
		l.pass(o, 1, now)
	case o.More == 0: // It is unknown how many pods the change can serve.
		l.pass(o, 2, now)
	}
	return w.since, true
}

// gone takes a pod that will not be scheduled out of the line.
func (l *line) gone(uid types.UID, now time.Time) {
	if w := l.pods[uid]; w != nil {
		l.pass(l.leave(w), 1, now)
	}
}

// leave takes a pod out of the line and returns its offer; nil if it had none.
func (l *line) leave(w *waiter) *offer {
	l.order = sorted.Remove(l.order, w, byTurn)
	l.discount(w)
	delete(l.pods, w.pod.UID)
	delete(l.wake, w.pod.UID)
	if l.trying == w {
		l.trying = nil
	}
	return l.take(w)
}

// changed offers a change to the line.
func (l *line) changed(change ipam.Change, now time.Time) {
	if len(l.order) == 0 {
		return
	}
	l.changes++
	if change.Owner != nil && !change.Addr.IsValid() && change.More == 0 {
		l.recount(change.Owner)
	}
	if change.IsOfMany() {
		helps := l.supply.Helps(change)
		for _, w := range l.order {
			if !change.Everything && !helps(&w.request, lackAnything) {
				continue
			}
			if w.state == attempting {
				w.state = overtaken
			} else if _, ok := w.needs(); ok {
				l.take(w)
				l.awaken(w, now)
			}
		}
		return
	}
	if w := l.trying; w != nil && w.state == attempting && w.hears(change) && l.supply.Helps(change)(&w.request, lackAnything) {
		w.state = overtaken
	}
	fresh := &offer{Change: change, number: l.changes}
	if other := l.offered[change.Addr]; other != nil {
		l.take(other)
		if other.state == woken && l.idle(fresh) {
			l.give(other, fresh)
			return
		}
	}
	l.pass(fresh, max(1, change.More), now)
}

// help says whether one of these changes may help a pod of the line.
func (l *line) help(uid types.UID, changes []ipam.Change) bool {
	w := l.pods[uid]
	if w == nil {
		return false
	}
	lack := lackAnything
	if w.state == short || w.state == woken {
		lack = w.lacks()
	}
	return slices.ContainsFunc(changes, func(change ipam.Change) bool { return l.supply.Helps(change)(&w.request, lack) })
}

// serves offers a pool that serves another node, after nodeSettles. It does so even if the line is
// empty now: a pod that joins the line before the offer may need the pool, too.
func (l *line) serves(change ipam.Change, now time.Time) {
	change.Victims = slices.Concat(l.serving[change.Pool].Victims, change.Victims) // may be on several nodes
	due := now.Add(nodeSettles)
	l.serving[change.Pool] = serving{change, due}
	l.dueBy(due)
}

// pass gives an offer to the next n pods that it may help.
func (l *line) pass(o *offer, n int, now time.Time) {
	if o == nil || !l.idle(o) {
		return
	}
	helps := l.supply.Helps(o.Change)
	var displaced []*offer
	for _, w := range l.order {
		if n == 0 {
			break
		}
		lack, ok := w.needs()
		if !ok || w.seen >= o.number || !w.hears(o.Change) || o.isTooFewFor(&w.request) || !helps(&w.request, lack) {
			continue
		}
		if w.offer != nil {
			displaced = append(displaced, l.take(w))
		}
		l.awaken(w, now)
		copied := *o
		l.give(w, &copied)
		n--
	}
	for _, other := range displaced {
		l.pass(other, 1, now)
	}
}

// idle says whether the offered address, if the offer has one, is still idle.
func (l *line) idle(o *offer) bool { return !o.Addr.IsValid() || l.supply.IsIdle(o.Addr) }

func (l *line) give(w *waiter, o *offer) {
	w.offer = o
	if o.Addr.IsValid() {
		l.offered[o.Addr] = w
	}
}

func (l *line) take(w *waiter) *offer {
	o := w.offer
	w.offer = nil
	if o != nil && l.offered[o.Addr] == w {
		delete(l.offered, o.Addr)
	}
	return o
}

func (l *line) awaken(w *waiter, now time.Time) {
	w.state = woken
	l.wake[w.pod.UID] = w.pod
	l.setDeadline(w, now.Add(beginsWithin))
}

func (l *line) setDeadline(w *waiter, deadline time.Time) {
	w.deadline = deadline
	l.dueBy(deadline)
}

func (l *line) dueBy(deadline time.Time) {
	if l.due.IsZero() || deadline.Before(l.due) {
		l.due = deadline
	}
}

// expire ends the states whose deadline has passed, and offers the pools that are due.
func (l *line) expire(now time.Time) {
	if l.due.IsZero() || now.Before(l.due) {
		return
	}
	for _, w := range slices.Clone(l.order) {
		if w.deadline.IsZero() || now.Before(w.deadline) {
			continue
		}
		w.deadline = time.Time{}
		switch {
		case w.state != woken && w.again, w.state == short && !w.heldSince.IsZero():
			l.awaken(w, now)
		case w.state != woken:
			l.end(w, now)
		default:
			l.end(w, now) // The pod's last attempt has ended.
			w.state, w.again, w.seen = short, true, l.changes
			l.setDeadline(w, now.Add(beginsWithin))
			l.pass(l.take(w), 1, now)
		}
	}
	for pool, s := range l.serving {
		if !now.Before(s.due) {
			delete(l.serving, pool)
			l.changed(s.Change, now)
		}
	}
	l.due = time.Time{}
	for _, w := range l.order {
		if !w.deadline.IsZero() {
			l.dueBy(w.deadline)
		}
	}
	for _, s := range l.serving {
		l.dueBy(s.due)
	}
}

// demand returns the addresses that pods may take from the pools of a snapshot, without the pod
// whose attempt is in progress.
func (l *line) demand(snapshot *pools.Snapshot) *ipam.Demand {
	if l.wanted == nil || l.snapshot != snapshot {
		l.wanted, l.snapshot = ipam.NewDemand(snapshot), snapshot
		for _, w := range l.order {
			w.sources = nil
			if w != l.trying {
				l.countIn(w)
			}
		}
	}
	return l.wanted.Clone()
}

// countIn counts the addresses that a pod may take after its attempt has ended.
func (l *line) countIn(w *waiter) {
	l.discount(w)
	if l.wanted == nil || w.waitsForOwner() {
		return
	}
	w.sources = l.supply.Sources(&w.request, l.snapshot)
	l.wanted.Add(w.sources, w.wanted)
}

// recount counts the addresses of a claim's pods again, because the changed claim may name other
// pools now.
func (l *line) recount(claim *ipam.Owner) {
	for _, w := range l.order {
		if w != l.trying && w.request.Claim != "" && w.request.Claim == claim.Name && w.request.Namespace == claim.Namespace {
			l.countIn(w)
		}
	}
}

func (l *line) discount(w *waiter) {
	if w.sources != nil && l.wanted != nil {
		l.wanted.Add(w.sources, -w.wanted)
	}
	w.sources = nil
}

// waitsForOwner says whether only addresses of its owner can help the pod, on any node. Such a pod
// takes no free address.
func (w *waiter) waitsForOwner() bool {
	return (w.state == short || w.state == woken) && w.lack == ipam.LackOwner && w.why.causes == causeOwner && !w.narrow
}

func (l *line) because(uid types.UID, reason why) {
	if w := l.pods[uid]; w != nil {
		w.why.causes |= reason.causes
		w.why.pool = reason.pool
		if w != l.trying {
			l.countIn(w) // The report came late.
		}
	}
}

// lacking counts the pods that found no address at their last attempt.
func (l *line) lacking() map[group]int {
	groups := map[group]int{}
	for _, w := range l.order {
		if w.state == short || w.state == woken {
			groups[group{w.pod.Namespace, w.why.pool, w.why.causes.String()}]++
		}
	}
	return groups
}
