// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/wakeup"
)

const (
	// defendInterval is the least time between two defences of an address (RFC 5227,
	// section 2.4: DEFEND_INTERVAL).
	defendInterval = 10 * time.Second
	// announceInterval is the time between the two announcements of a defence. Section 2.4 has
	// one; two at this interval are what section 2.3 has for a host that takes an address
	// (ANNOUNCE_NUM, ANNOUNCE_INTERVAL), and what the other host may have sent. Frames get lost,
	// and Linux ignores ARP for a second after it changed a neighbour (locktime; since Linux
	// 4.13 it heeds announcements nevertheless). RFC 4861, section 7.2.6 allows three of
	// IPv6, a second apart.
	announceInterval = 2 * time.Second
	// together is the time between a host's claims of several addresses of a pod: they are
	// answered at once.
	together = 100 * time.Millisecond
	// listenInterval is the least time between two looks at what to listen for.
	listenInterval = time.Second
)

// listener hears hosts that claim addresses. Listen and Close are called by one goroutine
// and block for the kernel only.
type listener interface {
	// Listen makes it hear claims of exactly these targets.
	Listen(targets []conflict.Target) error
	Claims() <-chan conflict.Conflict
	Close() error
}

// defender answers hosts that claim addresses of this node's pods. Methods are safe in
// parallel and do not block.
type defender struct {
	// queue has the records whose addresses are claimed. One announcement is for all
	// addresses of a record.
	queue workqueue.TypedDelayingInterface[state.Key]
	soon  wakeup.Signal

	mu sync.Mutex
	// carried has the records of the addresses that are listened for.
	carried map[netip.Addr]state.Key
	// claims have the last claim of each address since the last defence.
	claims   map[state.Key]map[netip.Addr]conflict.Conflict
	defended map[state.Key]defence
	// answered are the claims that were answered, and of which nobody knows yet whether they
	// are a conflict; known is signalled when there are some.
	answered map[state.Key]map[netip.Addr]bool
	known    wakeup.Signal
}

// defence is the last one of a record.
type defence struct {
	at time.Time
	// again is when its second announcement is due; zero where none is.
	again time.Time
}

// next returns when claims may be answered again, for the zero defence a time long ago.
func (d defence) next() time.Time { return d.at.Add(defendInterval) }

func newDefender() defender {
	return defender{
		queue: workqueue.NewTypedDelayingQueue[state.Key](),
		soon:  wakeup.New(),
		known: wakeup.New(), answered: map[state.Key]map[netip.Addr]bool{},
		claims: map[state.Key]map[netip.Addr]conflict.Conflict{}, defended: map[state.Key]defence{},
	}
}

// listenSoon has the node listen for the addresses that it carries by then.
func (d *defender) listenSoon() {
	d.soon.Send()
}

func (d *defender) carry(carried map[netip.Addr]state.Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.carried = carried
	for key, last := range d.defended {
		if !time.Now().Before(last.next()) && last.again.IsZero() {
			delete(d.defended, key)
		}
	}
}

// hear notes a claim. The defence comes soon, or when the last one is long enough ago:
// the neighbours that believe the claim need it then, too.
func (d *defender) hear(claim conflict.Conflict) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key, ours := d.carried[claim.Address]
	if !ours {
		return
	}
	if d.claims[key] == nil {
		d.claims[key] = map[netip.Addr]conflict.Conflict{}
	}
	d.claims[key][claim.Address] = claim
	d.queue.AddAfter(key, max(together, time.Until(d.defended[key].next())))
}

// take returns the claims against a record, and notes that they are answered now. It returns
// none where the last answer is not long enough ago; again is then true if its second
// announcement is due. What is due later is queued.
func (d *defender) take(key state.Key) (claims map[netip.Addr]conflict.Conflict, again bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	last, now := d.defended[key], time.Now()
	if len(d.claims[key]) > 0 && !now.Before(last.next()) {
		claims = d.claims[key]
		delete(d.claims, key)
		d.defended[key] = defence{at: now}
		return claims, false
	}
	if !last.again.IsZero() && !now.Before(last.again) {
		again, last.again = true, time.Time{}
		d.defended[key] = last
	}
	// The queue has a record once, for the earliest of the times that it was added for.
	if !last.again.IsZero() {
		d.queue.AddAfter(key, last.again.Sub(now))
	}
	if len(d.claims[key]) > 0 {
		d.queue.AddAfter(key, last.next().Sub(now))
	}
	return nil, again
}

// answer notes that claims were answered, and queues the second announcement.
func (d *defender) answer(key state.Key, claims map[netip.Addr]conflict.Conflict) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.answered[key] == nil {
		d.answered[key] = map[netip.Addr]bool{}
	}
	for addr := range claims {
		d.answered[key][addr] = true
	}
	last := d.defended[key]
	last.again = time.Now().Add(announceInterval)
	d.defended[key] = last
	d.queue.AddAfter(key, announceInterval)
	d.known.Send()
}

// takeAnswered returns all claims that were answered since the last call.
func (d *defender) takeAnswered() map[state.Key]map[netip.Addr]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.answered
	d.answered = map[state.Key]map[netip.Addr]bool{}
	return all
}

// runDefender listens for claims and answers them until the context ends.
func (a *Agent) runDefender(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() { a.answerClaims(ctx) })
	group.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-a.defence.known:
				a.confirmConflicts(ctx)
			}
		}
	})
	defer group.Wait()
	if a.Listener == nil {
		return
	}
	defer func() {
		if err := a.Listener.Close(); err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot close the sockets that hear claims of addresses", "err", err)
		}
	}()
	pause := time.NewTimer(0)
	defer pause.Stop()
	// Nil while the pause goes on.
	var soon <-chan struct{}
	for {
		select {
		case <-ctx.Done():
			return
		case claim := <-a.Listener.Claims():
			a.defence.hear(claim)
		case <-pause.C:
			soon = a.defence.soon
		case <-soon:
			a.listen(ctx)
			soon = nil
			pause.Reset(listenInterval)
		}
	}
}

// listen has the listener hear claims of the addresses that this node carries.
func (a *Agent) listen(ctx context.Context) {
	carried := map[netip.Addr]state.Key{}
	var targets []conflict.Target
	var errs []error
	for _, record := range a.Store.List() {
		if record.Phase != state.Added {
			continue
		}
		found, err := a.targets(record, onSegment.Carried)
		errs = append(errs, err)
		for _, t := range found {
			carried[t.Address] = record.Key()
		}
		targets = append(targets, found...)
	}
	a.defence.carry(carried)
	if err := errors.Join(append(errs, a.Listener.Listen(targets))...); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot hear whether other hosts claim addresses of this node's pods")
	}
}

func (a *Agent) answerClaims(ctx context.Context) {
	queue := a.defence.queue
	defer context.AfterFunc(ctx, queue.ShutDown)()
	for {
		key, shutdown := queue.Get()
		if shutdown {
			return
		}
		if err := a.defend(ctx, key); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot answer another host that says that it has the address of a pod", "containerID", key.ContainerID)
		}
		queue.Done(key)
	}
}

// defend announces the addresses of a record, of which another host claims some, twice: now, and
// when its queue has the record again. Before each time it asks the API whose they are: the new
// node of an address that moved claims it, too, and the address is then withdrawn here. Without
// an answer of the API nothing is defended.
func (a *Agent) defend(ctx context.Context, key state.Key) error {
	claims, again := a.defence.take(key)
	record := a.Store.Get(key)
	if len(claims) == 0 && !again || record == nil || record.Phase != state.Added {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, verifyPatience)
	defer cancel()
	reason, err := a.lostWhy(ctx, record)
	if err != nil {
		return fmt.Errorf("ask whose the addresses of pod %s are: %w", record.Pod, err)
	}
	if reason != "" {
		return a.withdraw(ctx, record, reason)
	}
	carried, err := a.announceAgain(ctx, record)
	if err != nil || !carried || again {
		return err
	}
	a.Metrics.defended()
	for _, claim := range claims {
		klog.FromContext(ctx).Info("Another host says that it has the address of a pod; announced the address again", "ip", claim.Address,
			"mac", claim.MAC, "link", claim.Link, "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name))
	}
	a.defence.answer(key, claims)
	return nil
}

// confirmConflicts asks the networks whether hosts that claimed addresses go on answering for
// them, and tells users of those. A node from which an address just moved away claims it, too,
// but it answers no probes.
func (a *Agent) confirmConflicts(ctx context.Context) {
	if a.Prober == nil {
		return
	}
	asked := map[*state.Container][]conflict.Target{}
	var all []conflict.Target
	for key, claimed := range a.defence.takeAnswered() {
		record := a.Store.Get(key)
		if record == nil || record.Phase != state.Added {
			continue
		}
		// Whoever repairs the record complains of missing links.
		targets, _ := a.targets(record, onSegment.Carried)
		for _, t := range targets {
			if claimed[t.Address] {
				asked[record] = append(asked[record], t)
				all = append(all, t)
			}
		}
	}
	found, err := a.Prober.Probe(ctx, all)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot ask whether hosts that claimed addresses of pods have them")
	}
	for record, targets := range asked {
		of := slices.DeleteFunc(slices.Clone(found), func(c conflict.Conflict) bool {
			return !slices.ContainsFunc(targets, func(t conflict.Target) bool { return t.Address == c.Address })
		})
		for _, c := range of {
			a.tellPod(record.Pod, event.Warning(EventAddressConflict,
				fmt.Sprintf("%s; the pod keeps the address, which the node announces again; find that host by its MAC and take the address from it", c)), "Defend")
		}
		a.logConflicts(ctx, record, targets, of, err == nil)
	}
}

// endConflicts asks the networks of a record's addresses that were in conflict whether the
// other host still has them, and notes those that it has given up.
func (a *Agent) endConflicts(ctx context.Context, record *state.Container) {
	if a.ConflictLog == nil || a.Prober == nil {
		return
	}
	var asked []conflict.Target
	targets, err := a.targets(record, onSegment.Carried)
	for _, t := range targets {
		if a.ConflictLog.InConflict(t.Address) {
			asked = append(asked, t)
		}
	}
	if len(asked) == 0 {
		return
	}
	conflicts, asking := a.Prober.Probe(ctx, asked)
	if err := errors.Join(err, asking); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot ask whether other hosts still have the addresses of a pod", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name))
		return
	}
	a.logConflicts(ctx, record, asked, conflicts, true)
}
