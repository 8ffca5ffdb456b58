// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/ipam/event"
)

// resync is how often every record is compared with the kernel, because other programs change
// it, too.
const resync = time.Minute

// Run makes kernel and records agree, after a start, periodically and after changes, and
// repeats announcements. It returns when the context ends.
func (a *Agent) Run(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() { a.announcer.Run(ctx) })
	group.Go(func() { a.reconciler.Run(ctx) })
	group.Go(func() { a.ports.Run(ctx) })
	group.Go(func() { a.freeEnded(ctx) })
	group.Go(func() { a.defendAll(ctx) })
	// Before the kernel is compared with the records.
	a.keepAnswering(ctx)
	a.noteStart(ctx)
	a.carryAll(ctx)
	group.Go(func() { a.runDeadMan(ctx) })
	// Only now: a node denies what it does not know to carry.
	group.Go(func() { a.answerer.Run(ctx) })
	if a.Unicast != nil {
		group.Go(func() { a.Unicast(ctx, a.answerer.Heard) })
	}
	wait.JitterUntilWithContext(ctx, a.Recheck, resync, 0.1, true)
	group.Wait()
}

// Recheck compares every record with the kernel soon; it returns at once. Its caller calls
// it after a change of the node's links.
func (a *Agent) Recheck(context.Context) {
	a.answerer.Recheck()
	a.Shaper.Recheck()
	a.Policies.Recheck()
	a.reconciler.SurveySoon()
	a.reconciler.OrphansSoon()
	a.ports.CheckSoon()
}

// repair makes kernel and record agree for an attachment that is complete, and hands one
// that is not to finish. A missing piece may say that the node was cut off, so repair
// asks the API before it puts the piece back, unless only filters are missing.
func (a *Agent) repair(ctx context.Context, key state.Key) error {
	record := a.Store.Get(key)
	if record == nil {
		return nil
	}
	switch record.Phase {
	case state.Adding, state.Deleting:
		a.reconciler.FinishSoon(key)
		return nil
	case state.Withdrawn:
		return a.repairWithdrawn(ctx, record)
	case state.Added:
	}
	gone, err := netnsGone(record.NetNS)
	if gone {
		// Whoever calls for DEL may have forgotten the container, and only DEL gives back a lease.
		a.reconciler.FinishSoon(key)
		return nil
	}
	return errors.Join(err, a.repairLinks(ctx, record), a.repairAddresses(ctx, record))
}

// repairAddresses does so for the addresses of a complete record.
func (a *Agent) repairAddresses(ctx context.Context, record *state.Container) error {
	if len(record.Addresses()) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, verifyPatience)
	defer cancel()
	lacks := a.eachInterface(record, nettype.Driver.CheckNode)
	if lacks != nil {
		lacks = a.filterAgain(ctx, record, lacks)
	}
	if lacks == nil {
		a.follow(record)
		a.askAbout(ctx, record, a.conflicts.InConflict) // the other host may have given an address up
		return nil
	}
	if asserted(record) {
		// The answerer asks the API.
		return nil
	}
	rest, err := a.askAgain(record, lacks)
	if rest == nil || err != nil {
		return err
	}
	reason, err := a.lostWhy(ctx, record)
	if err != nil {
		return errors.Join(rest, err)
	}
	if reason != "" {
		return a.withdraw(ctx, record, reason)
	}
	return a.setupAgain(ctx, record, a.isAsked)
}

// filterAgain puts back the packet filters of a complete attachment, and its ways to its node's addresses: without the former the pod can send in
// the name of others, so they wait for no API. It returns an error while other pieces are missing.
func (a *Agent) filterAgain(ctx context.Context, record *state.Container, missing error) error {
	err := a.withAddresses(ctx, record, state.Added, func(now *state.Container) error { return a.eachInterface(now, nettype.Driver.Filter) })
	if err != nil {
		return err
	}
	if err := a.eachInterface(record, nettype.Driver.CheckNode); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Put back the packet filters of a pod, or its ways to the addresses of its node", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name),
		"containerID", record.ContainerID, "ips", addressesOf(record), "missing", missing)
	return nil
}

// repairWithdrawn repeats a withdrawal: the agent may have died between the kernel and the
// record, or another program may have put a piece back. Where the pod holds its addresses
// again, because somebody corrected a FloatingIP, it carries them again. A record whose container
// has ended is finished, because the runtime may have forgotten the container.
func (a *Agent) repairWithdrawn(ctx context.Context, record *state.Container) error {
	ctx, cancel := context.WithTimeout(ctx, verifyPatience)
	defer cancel()
	gone, err := netnsGone(record.NetNS)
	if gone {
		a.reconciler.FinishSoon(record.Key())
		return nil
	}
	back := false
	if err == nil && record.Reason != superseded {
		reason, err := a.lostWhy(ctx, record)
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot see whether a pod holds its addresses again", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name), "err", err)
		}
		back = err == nil && reason == ""
	}
	if back && len(a.sharing(record)) == 0 {
		// Without the lock a call works on the container, and ends the withdrawal itself.
		if unlock, free := a.locks.TryLock(containerLock(record.ContainerID)); free {
			defer unlock()
			return a.restore(ctx, record)
		}
	}
	return a.withAddresses(ctx, record, state.Withdrawn, a.withdrawAgain)
}

// restore has the node carry the addresses of a withdrawn record again. The caller holds the
// container's lock. As in an ADD the policies come into the kernel before the locks of the addresses are
// taken, and a withdrawal or a newer container ends the work.
func (a *Agent) restore(ctx context.Context, record *state.Container) error {
	ctx, end := a.adds.begin(ctx, record.Key())
	defer end()
	restored := record.Clone()
	restored.Phase, restored.Reason = state.Added, ""
	// From then on the policies follow the record again.
	defer a.Policies.Attached(policedID(restored))
	if err := a.Policies.Enforce(ctx, a.policed(restored)); err != nil {
		return err
	}
	// Another node may have had them meanwhile: this one asks before it answers, by the records as they are now.
	restored.Held = map[netip.Addr]state.Held{}
	for _, addr := range addressesOf(record) {
		_, held, err := a.Pods.Holder(ctx, addr)
		if err != nil {
			return fmt.Errorf("read the record of %s: %w", addr, err)
		}
		restored.Held[addr] = heldBy(held)
	}
	targets, release, err := a.toProbe(restored)
	defer release()
	if err != nil {
		return err
	}
	return a.withAddresses(ctx, record, state.Withdrawn, func(now *state.Container) error {
		if len(a.sharing(now)) > 0 {
			return a.withdrawAgain(now)
		}
		now.Phase, now.Reason, now.Held = restored.Phase, restored.Reason, restored.Held
		if err := a.ports.Reopen(ctx, now); err != nil {
			return err
		}
		a.unseen.Delete(now.Key())
		a.take(ctx, now, targets)
		err := a.eachInterface(now, func(d nettype.Driver, i *nettype.Interface) error {
			if a.isAsked(i) {
				return nil // the answerer opens it
			}
			return d.Repair(i)
		})
		if err != nil {
			return err
		}
		// The pod may have ended since the API was asked.
		a.suspects.add(now.Key())
		a.tellPod(now.Pod, event.Normal(EventAddressesRestored, "the pod holds its floating IPs "+listed(addressesOf(now))+" again, and its node carries them again as soon as no other one does"), "Withdraw")
		klog.FromContext(ctx).Info("A pod holds its addresses again and gets its network back", "pod", klog.KRef(now.Pod.Namespace, now.Pod.Name),
			"containerID", now.ContainerID, "ips", addressesOf(now))
		a.announcer.Soon(now)
		return nil
	})
}

// setupAgain makes the missing pieces of the node's side of a complete attachment. The pod's side
// is the pod's: a VPN takes the default route, a sandbox the addresses. Interfaces for which leave returns true stay as they are: the
// API's word that the caller has may be older than the reason for that.
func (a *Agent) setupAgain(ctx context.Context, record *state.Container, leave func(*nettype.Interface) bool) error {
	return a.withAddresses(ctx, record, state.Added, func(now *state.Container) error {
		if asserted(now) {
			return nil
		}
		var missing error
		err := a.eachInterface(now, func(d nettype.Driver, i *nettype.Interface) error {
			if leave(i) {
				return nil
			}
			lacks := d.CheckNode(i)
			if lacks == nil {
				return nil
			}
			missing = errors.Join(missing, lacks)
			return d.Repair(i)
		})
		if err != nil || missing == nil {
			return err
		}
		klog.FromContext(ctx).Info("Repaired the network of a pod", "pod", klog.KRef(now.Pod.Namespace, now.Pod.Name),
			"containerID", now.ContainerID, "ips", addressesOf(now), "missing", missing)
		a.announcer.Soon(now)
		a.Shaper.Recheck() // a new link has no limits
		return nil
	})
}

// finish undoes an ADD and completes a DEL that was interrupted or failed, takes down
// an attachment whose container has ended, and makes interfaces again that are gone. It leaves a container to the call that works on
// it, and ends with the agent: the next start goes on.
func (a *Agent) finish(ctx context.Context, key state.Key) error {
	unlock, free := a.locks.TryLock(containerLock(key.ContainerID))
	if !free {
		return nil
	}
	defer unlock()
	record := a.Store.Get(key)
	if record == nil {
		return nil
	}
	if record.Phase == state.Added || record.Phase == state.Withdrawn {
		gone, err := netnsGone(record.NetNS)
		if err != nil {
			return err
		}
		if !gone {
			return a.remake(ctx, record)
		}
	}
	return a.undo(ctx, record)
}

// noteStart logs the records that the agent starts with, has the attachments finished whose
// containers ended meanwhile, and removes the kernel state that belongs to nothing.
func (a *Agent) noteStart(ctx context.Context) {
	logger := klog.FromContext(ctx)
	counts := map[state.Phase]int{}
	for _, record := range a.Store.List() {
		counts[record.Phase]++
		gone, err := netnsGone(record.NetNS)
		if err != nil {
			logger.Error(err, "Cannot see whether a container is still there", "containerID", record.ContainerID)
		}
		if gone {
			// It ended while no agent ran.
			a.reconciler.FinishSoon(record.Key())
		}
	}
	logger.Info("Started with the records of an earlier run", "adding", counts[state.Adding], "added", counts[state.Added],
		"deleting", counts[state.Deleting], "withdrawn", counts[state.Withdrawn])
	a.removeLoose(ctx)
	orphans, err := a.orphans(nil)
	if err != nil {
		logger.Error(err, "Cannot look for links without a record")
	}
	for _, o := range orphans {
		logger.Info("A link on this node has no record; it stays while the API says that a pod of this node holds its addresses, and until the DEL of its container or CNI GC", "link", o.Name, "ips", o.Addresses)
	}
}

// netnsGone returns true where the path of a container's network namespace is empty
// or names no file.
func netnsGone(path string) (bool, error) {
	if path == "" {
		return true, nil
	}
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at network namespace %s: %w", path, err)
	}
	return false, nil
}
