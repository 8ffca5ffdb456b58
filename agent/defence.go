// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/locked"
)

// defence answers hosts that claim addresses of this node's pods.
type defence struct {
	*records

	holdings    *holdings
	withdrawals *withdrawals
	// Claims of other hosts come by heard. claims has the ones since the last defence of each pod that
	// is defended, by its UID.
	heard  <-chan answerer.Claim
	claims locked.Map[string, claims]
}

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
)

// claims are the last ones of each address.
type claims map[netip.Addr]conflict.Conflict

// note returns whether the defence of the pod begins by the claim.
func (d *defence) note(claim answerer.Claim) (begins bool) {
	d.claims.Do(func(all map[string]claims) {
		if begins = all[claim.Pod] == nil; begins {
			all[claim.Pod] = claims{}
		}
		all[claim.Pod][claim.Address] = claim.Conflict
	})
	return begins
}

// take returns the claims since the last call. Without any the defence of the pod ends.
func (d *defence) take(pod string) (taken claims) {
	d.claims.Do(func(all map[string]claims) {
		if taken, all[pod] = all[pod], (claims{}); len(taken) == 0 {
			delete(all, pod)
		}
	})
	return taken
}

// run answers hosts that claim addresses of this node's pods, until ctx ends.
func (d *defence) run(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case claim := <-d.heard:
			if d.note(claim) {
				group.Go(func() { d.defendPod(ctx, claim.Pod) })
			}
		}
	}
}

// defendPod announces a pod's addresses twice when hosts claim some, for as long as they do. The
// neighbours that believe a claim during the interval need an announcement then, too.
func (d *defence) defendPod(ctx context.Context, pod string) {
	pause(ctx, together)
	for claims := d.take(pod); len(claims) > 0 && ctx.Err() == nil; claims = d.take(pod) {
		next := time.After(defendInterval)
		if err := d.defend(ctx, pod, claims); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot answer another host that says that it has the address of a pod", "podUID", pod)
		}
		select {
		case <-ctx.Done():
		case <-next:
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// defend answers claims against a pod once, and tells users of hosts that go on.
func (d *defence) defend(ctx context.Context, pod string, claims claims) error {
	records := d.Store.List()
	i := slices.IndexFunc(records, func(c *state.Container) bool {
		return c.Phase == state.Added && c.Pod.Identity() == pod && slices.ContainsFunc(addressesOf(c), func(addr netip.Addr) bool { return claims[addr].MAC != nil })
	})
	if i < 0 {
		return nil
	}
	record := records[i]
	defended, err := d.announceOwn(ctx, record)
	if err != nil || !defended {
		return err
	}
	d.Metrics.defences.Inc()
	for _, claim := range claims {
		klog.FromContext(ctx).Info("Another host says that it has the address of a pod; announced the address again", "ip", claim.Address,
			"mac", claim.MAC, "link", claim.Link, "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name))
	}
	pause(ctx, announceInterval)
	if defended, err = d.announceOwn(ctx, record); err == nil && defended {
		d.confirm(ctx, record, claims)
	}
	return err
}

// announceOwn announces the addresses of a record, and returns true where the node carries them
// still. Before that it asks the API whose they are: the new node of an address that moved claims
// it, too, and the address is then withdrawn here. Without an answer of the API nothing is
// announced.
func (d *defence) announceOwn(ctx context.Context, record *state.Container) (carried bool, err error) {
	if now := d.Store.Get(record.Key()); now == nil || now.Phase != state.Added {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, verifyPatience)
	defer cancel()
	reason, err := d.lostWhy(ctx, record)
	if err != nil {
		return false, fmt.Errorf("ask whose the addresses of pod %s are: %w", record.Pod, err)
	}
	if reason != "" {
		return false, d.withdrawals.withdraw(ctx, record, reason)
	}
	return d.holdings.announceAgain(ctx, record)
}

// confirm asks the networks whether hosts that claimed addresses of a record go on answering for
// them, and tells users of hosts that do. A node from which an address just moved away claims it,
// too, and does not have it.
func (d *defence) confirm(ctx context.Context, record *state.Container, claims claims) {
	for _, other := range d.holdings.askAbout(ctx, record, func(addr netip.Addr) bool { return claims[addr].MAC != nil }) {
		d.tellPod(record.Pod, event.Warning(EventAddressConflict,
			fmt.Sprintf("%s; the pod keeps the address, which the node announces again; find that host by its MAC and take the address from it", other)), "Defend")
	}
}
