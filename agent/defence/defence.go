// SPDX-License-Identifier: Apache-2.0

// Package defence hears hosts that claim addresses of this node's pods, and says when each claim is
// answered (RFC 5227). It announces nothing and asks nobody itself.
package defence

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/ipam/wakeup"
)

const (
	// defendInterval is the least time between two defences of an address (RFC 5227,
	// section 2.4: DEFEND_INTERVAL).
	defendInterval = 10 * time.Second
	// announceInterval is the time between the two announcements of a defence. Section 2.4 has one;
	// section 2.3 has two at this interval for a host that takes an address (ANNOUNCE_NUM,
	// ANNOUNCE_INTERVAL), and the other host may have sent two. Frames get lost, and Linux ignores
	// ARP for a second after it changed a neighbour (locktime; since Linux 4.13 it heeds
	// announcements nevertheless). RFC 4861, section 7.2.6 allows three of IPv6, a second apart.
	announceInterval = 2 * time.Second
	// together is the time between a host's claims of several addresses of a pod: they are
	// answered at once.
	together = 100 * time.Millisecond
	// listenInterval is the least time between two looks for addresses to listen for.
	listenInterval = time.Second
)

// Listener hears hosts that claim addresses. Its methods do not block.
type Listener interface {
	// Defend makes it hear claims of exactly these targets.
	Defend(targets []conflict.Target)
	Claims() <-chan conflict.Conflict
}

// carrier knows the addresses that this node carries, and answers for them. Its methods block for
// the kernel, the networks and the API.
type carrier interface {
	// Carried returns the addresses to listen for, with their records; beside an error the
	// addresses that it could find. It finds the links of addresses again where it is asked to, and otherwise those of
	// new addresses only.
	Carried(again bool) (records map[netip.Addr]state.Key, targets []conflict.Target, err error)
	// Defend announces the addresses of a record, of which another host claims some, and returns
	// true where the node carries them still. again says that it is the second announcement.
	Defend(ctx context.Context, key state.Key, claims map[netip.Addr]conflict.Conflict, again bool) (defended bool, err error)
	// Confirm asks the networks whether the hosts that claimed addresses answer for them.
	Confirm(ctx context.Context, claimed map[state.Key]map[netip.Addr]bool)
}

// Defender answers hosts that claim addresses of this node's pods. Its methods are safe in
// parallel, and do not block but for Run.
type Defender struct {
	// queue has the records whose addresses are claimed. One announcement is for all
	// addresses of a record.
	queue workqueue.TypedDelayingInterface[state.Key]
	soon  wakeup.Signal
	// again says that links may have changed.
	again atomic.Bool

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

// New returns a Defender that is idle until Run.
func New() *Defender {
	return &Defender{
		queue: workqueue.NewTypedDelayingQueue[state.Key](),
		soon:  wakeup.New(),
		known: wakeup.New(), answered: map[state.Key]map[netip.Addr]bool{},
		claims: map[state.Key]map[netip.Addr]conflict.Conflict{}, defended: map[state.Key]defence{},
	}
}

// ListenSoon has the node listen for the addresses that it carries by then.
func (d *Defender) ListenSoon() {
	d.soon.Send()
}

// Recheck is ListenSoon after links may have changed.
func (d *Defender) Recheck() {
	d.again.Store(true)
	d.ListenSoon()
}

func (d *Defender) carry(carried map[netip.Addr]state.Key) {
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
func (d *Defender) hear(claim conflict.Conflict) {
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

// take returns the claims against a record, and notes that they are answered now. It returns none
// where the last answer is not long enough ago; again is then true if its second announcement is
// due. take queues the record for a later answer or announcement.
func (d *Defender) take(key state.Key) (claims map[netip.Addr]conflict.Conflict, again bool) {
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
func (d *Defender) answer(key state.Key, claims map[netip.Addr]conflict.Conflict) {
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
func (d *Defender) takeAnswered() map[state.Key]map[netip.Addr]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.answered
	d.answered = map[state.Key]map[netip.Addr]bool{}
	return all
}

// Run listens for claims and answers them until the context ends. listener may be nil, to hear
// none.
func (d *Defender) Run(ctx context.Context, listener Listener, carrier carrier) {
	var group sync.WaitGroup
	group.Go(func() { d.answerAll(ctx, carrier) })
	group.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-d.known:
				carrier.Confirm(ctx, d.takeAnswered())
			}
		}
	})
	defer group.Wait()
	if listener == nil {
		return
	}
	pause := time.NewTimer(0)
	defer pause.Stop()
	// Nil while the pause goes on.
	var soon <-chan struct{}
	for {
		select {
		case <-ctx.Done():
			return
		case claim := <-listener.Claims():
			d.hear(claim)
		case <-pause.C:
			soon = d.soon
		case <-soon:
			d.listen(ctx, listener, carrier)
			soon = nil
			pause.Reset(listenInterval)
		}
	}
}

// listen has the listener hear claims of the addresses that this node carries.
func (d *Defender) listen(ctx context.Context, listener Listener, carrier carrier) {
	records, targets, err := carrier.Carried(d.again.Swap(false))
	d.carry(records)
	listener.Defend(targets)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot hear whether other hosts claim all addresses of this node's pods")
	}
}

// answerAll has records defended, twice each: now, and when the queue has the record again.
func (d *Defender) answerAll(ctx context.Context, carrier carrier) {
	defer context.AfterFunc(ctx, d.queue.ShutDown)()
	for {
		key, shutdown := d.queue.Get()
		if shutdown {
			return
		}
		claims, again := d.take(key)
		if len(claims) > 0 || again {
			defended, err := carrier.Defend(ctx, key, claims, again)
			if err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Cannot answer another host that says that it has the address of a pod", "containerID", key.ContainerID)
			}
			if defended && !again {
				d.answer(key, claims)
			}
		}
		d.queue.Done(key)
	}
}
