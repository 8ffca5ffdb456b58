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

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/plan"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/ipam/event"
)

// repairs make the kernel, the API and the records agree: they put back what is missing, and end
// what is over.
type repairs struct {
	*records

	holdings    *holdings
	withdrawals *withdrawals
	links       *pluginLinks
	// undo takes a container down, and removes its record. Its caller holds the container's lock.
	undo     func(ctx context.Context, record *state.Container) error
	suspects suspects
}

// surveyor is a driver that compares many interfaces by reading the kernel once: the kernel lists
// the pieces of all pods at once only, and a list for each would cost the square of the pods.
type surveyor interface {
	// Survey returns CheckNode for one goroutine and for one pass over the interfaces.
	Survey() func(i *nettype.Interface) error
}

// carryAll tells the answerer of all complete records after a start, and which lack something by
// which the node answers for their addresses.
func (r *repairs) carryAll(ctx context.Context) {
	r.holdings.joinUplinks(ctx)
	checks, answers := r.surveyChecks(), map[state.Key]bool{}
	all := slices.DeleteFunc(r.Store.List(), func(c *state.Container) bool { return c.Phase != state.Added || len(c.Addresses()) == 0 })
	for _, record := range all {
		answers[record.Key()] = ctx.Err() != nil || r.agrees(record, checks) || r.eachInterface(record, nettype.Driver.CheckNode) == nil
	}
	for _, record := range all {
		r.holdings.carry(ctx, record, answers[record.Key()])
	}
}

// repair makes kernel and record agree for an attachment that is complete, and hands one
// that is not to finish. A missing piece may say that the node was cut off, so repair
// asks the API before it puts the piece back, unless only filters are missing.
func (r *repairs) repair(ctx context.Context, key state.Key) error {
	record := r.Store.Get(key)
	if record == nil {
		return nil
	}
	switch record.Phase {
	case state.Adding, state.Deleting:
		r.reconciler.FinishSoon(key)
		return nil
	case state.Withdrawn:
		return r.repairWithdrawn(ctx, record)
	case state.Added:
	}
	gone, err := netnsGone(record.NetNS)
	if gone {
		// Whoever calls for DEL may have forgotten the container, and only DEL gives back a lease.
		r.reconciler.FinishSoon(key)
		return nil
	}
	return errors.Join(err, r.links.repair(ctx, record), r.repairAddresses(ctx, record))
}

// repairAddresses does so for the addresses of a complete record.
func (r *repairs) repairAddresses(ctx context.Context, record *state.Container) error {
	if len(record.Addresses()) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, verifyPatience)
	defer cancel()
	lacks := r.eachInterface(record, nettype.Driver.CheckNode)
	if lacks != nil {
		lacks = r.filterAgain(ctx, record, lacks)
	}
	if record.Standby {
		r.holdings.follow(record)
		return lacks
	}
	if lacks == nil {
		r.holdings.follow(record)
		r.holdings.askAbout(ctx, record, r.holdings.conflicts.InConflict) // the other host may have given an address up
		return nil
	}
	if asserted(record) {
		// The answerer asks the API.
		return nil
	}
	rest, err := r.holdings.askAgain(record, lacks)
	if rest == nil || err != nil {
		return err
	}
	reason, err := r.lostWhy(ctx, record)
	if err != nil {
		return errors.Join(rest, err)
	}
	if reason != "" {
		return r.withdrawals.withdraw(ctx, record, reason)
	}
	return r.setupAgain(ctx, record, r.holdings.isAsked)
}

// filterAgain puts back the packet filters of a complete attachment, and its ways to its node's
// addresses: without the former the pod can send in the name of others, so they wait for no API. It
// returns an error while other pieces are missing.
func (r *repairs) filterAgain(ctx context.Context, record *state.Container, missing error) error {
	err := r.withAddresses(ctx, record, state.Added, func(now *state.Container) error { return r.eachInterface(now, nettype.Driver.Filter) })
	if err != nil {
		return err
	}
	if err := r.eachInterface(record, nettype.Driver.CheckNode); err != nil {
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
func (r *repairs) repairWithdrawn(ctx context.Context, record *state.Container) error {
	ctx, cancel := context.WithTimeout(ctx, verifyPatience)
	defer cancel()
	gone, err := netnsGone(record.NetNS)
	if gone {
		r.reconciler.FinishSoon(record.Key())
		return nil
	}
	back := false
	if err == nil && record.Reason != superseded {
		reason, err := r.lostWhy(ctx, record)
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot see whether a pod holds its addresses again", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name), "err", err)
		}
		back = err == nil && reason == ""
	}
	if back && len(r.sharing(record)) == 0 {
		// Without the lock a call works on the container, and ends the withdrawal itself.
		if unlock, free := r.locks.TryLock(containerLock(record.ContainerID)); free {
			defer unlock()
			return r.restore(ctx, record)
		}
	}
	return r.withAddresses(ctx, record, state.Withdrawn, r.withdrawals.withdrawAgain)
}

// restore has the node carry the addresses of a withdrawn record again. The caller holds the
// container's lock. As in an ADD the policies come into the kernel before the locks of the
// addresses are taken, and a withdrawal or a newer container ends the work.
func (r *repairs) restore(ctx context.Context, record *state.Container) error {
	ctx, end := r.withdrawals.adds.begin(ctx, record.Key())
	defer end()
	restored := record.Clone()
	restored.Phase, restored.Reason = state.Added, ""
	// From then on the policies follow the record again.
	defer r.Policies.Attached(policedID(restored))
	if err := r.Policies.Enforce(ctx, r.policed(restored)); err != nil {
		return err
	}
	// Another node may have had them meanwhile: this one asks before it answers, by the records as
	// they are now.
	restored.Held = map[netip.Addr]state.Held{}
	for _, addr := range addressesOf(record) {
		_, held, err := r.Pods.Holder(ctx, addr)
		if err != nil {
			return fmt.Errorf("read the record of %s: %w", addr, err)
		}
		restored.Held[addr] = plan.HeldBy(held)
	}
	targets, release, err := r.toProbe(restored)
	defer release()
	if err != nil {
		return err
	}
	return r.withAddresses(ctx, record, state.Withdrawn, func(now *state.Container) error {
		if len(r.sharing(now)) > 0 {
			return r.withdrawals.withdrawAgain(now)
		}
		now.Phase, now.Reason, now.Held = restored.Phase, restored.Reason, restored.Held
		if err := r.ports.Reopen(ctx, now); err != nil {
			return err
		}
		r.withdrawals.unseen.Delete(now.Key())
		r.holdings.take(ctx, now, targets)
		err := r.eachInterface(now, func(d nettype.Driver, i *nettype.Interface) error {
			if r.holdings.isAsked(i) {
				return nil // the answerer opens it
			}
			return d.Repair(i)
		})
		if err != nil {
			return err
		}
		// The pod may have ended since the API was asked.
		r.suspects.add(now.Key())
		r.tellPod(now.Pod, event.Normal(EventAddressesRestored, "the pod holds its floating IPs "+listed(addressesOf(now))+" again, and its node carries them again as soon as no other one does"), "Withdraw")
		klog.FromContext(ctx).Info("A pod holds its addresses again and gets its network back", "pod", klog.KRef(now.Pod.Namespace, now.Pod.Name),
			"containerID", now.ContainerID, "ips", addressesOf(now))
		r.holdings.announcer.Soon(now)
		return nil
	})
}

// setupAgain makes the missing pieces of the node's side of a complete attachment. The pod's side
// is the pod's: a VPN takes the default route, a sandbox the addresses. Interfaces for which leave
// returns true stay as they are: the API's word that the caller has may be older than the reason
// for that.
func (r *repairs) setupAgain(ctx context.Context, record *state.Container, leave func(*nettype.Interface) bool) error {
	return r.withAddresses(ctx, record, state.Added, func(now *state.Container) error {
		if asserted(now) || now.Standby {
			return nil
		}
		var missing error
		err := r.eachInterface(now, func(d nettype.Driver, i *nettype.Interface) error {
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
		r.holdings.announcer.Soon(now)
		r.Shaper.Recheck() // a new link has no limits
		return nil
	})
}

// finish undoes an ADD and completes a DEL that was interrupted or failed, takes down an attachment
// whose container has ended, and makes interfaces again that are gone. It leaves a container to the
// call that works on it, and ends with the agent: the next start goes on.
func (r *repairs) finish(ctx context.Context, key state.Key) error {
	unlock, free := r.locks.TryLock(containerLock(key.ContainerID))
	if !free {
		return nil
	}
	defer unlock()
	record := r.Store.Get(key)
	if record == nil {
		return nil
	}
	if record.Phase == state.Added || record.Phase == state.Withdrawn {
		gone, err := netnsGone(record.NetNS)
		if err != nil {
			return err
		}
		if !gone {
			return r.links.remake(ctx, record)
		}
	}
	return r.undo(ctx, record)
}

// survey compares every record with the kernel. Those that seem to lack something, and those that a
// survey cannot tell of, are compared again, each by itself.
func (r *repairs) survey(ctx context.Context) error {
	checks := r.surveyChecks()
	r.holdings.joinUplinks(ctx)
	all := r.Store.List()
	r.noteTraffic(ctx, all)
	for _, record := range all {
		if err := ctx.Err(); err != nil {
			return err
		}
		if r.agrees(record, checks) {
			r.holdings.follow(record)
			r.reconciler.Checked(record.Key())
		} else {
			r.reconciler.CheckSoon(record.Key())
		}
	}
	return nil
}

// surveyChecks returns the checks of one survey, by driver.
func (r *repairs) surveyChecks() map[string]func(i *nettype.Interface) error {
	checks := map[string]func(i *nettype.Interface) error{}
	for name, d := range r.Drivers {
		if s, ok := d.(surveyor); ok {
			checks[name] = s.Survey()
		}
	}
	return checks
}

// agrees returns whether the record is complete, its container is there, and all of its interfaces
// with addresses are complete, by the drivers' checks.
func (r *repairs) agrees(record *state.Container, checks map[string]func(i *nettype.Interface) error) bool {
	if record.Phase != state.Added || slices.ContainsFunc(addressesOf(record), r.holdings.conflicts.InConflict) {
		return false
	}
	if gone, err := netnsGone(record.NetNS); gone || err != nil {
		return false
	}
	if links, err := r.links.of(record); err != nil || !areNoted(record, links) {
		return false
	}
	for i := range record.Attachments {
		attachment := &record.Attachments[i]
		if len(attachment.Addresses) == 0 {
			continue
		}
		check := checks[attachment.Driver]
		if check == nil || check(r.interfaceNow(record, i)) != nil {
			return false
		}
	}
	return true
}

const (
	// verifyParallel limits the questions to the API at a time.
	verifyParallel = 8
	// verifyPatience limits the question about all records, and the questions about one.
	verifyPatience = 10 * time.Second
)

// suspects are the records whose addresses may be another pod's by now: the node could
// not follow the API. Methods are safe in parallel.
type suspects struct{ keys sync.Map }

func (s *suspects) add(key state.Key) { s.keys.Store(key, true) }

// take removes and returns all, before the questions about them: a suspicion that comes meanwhile
// stays.
func (s *suspects) take() (keys []state.Key) {
	s.keys.Range(func(key, _ any) bool {
		s.keys.Delete(key)
		keys = append(keys, key.(state.Key))
		return true
	})
	return keys
}

// Suspect makes Verify ask about every floating IP and host port that this node carries. Its caller
// calls it after a start and when the API could not be reached.
func (r *repairs) Suspect() {
	for _, record := range r.Store.List() {
		if hasScarce(record) && record.Phase != state.Withdrawn {
			r.suspects.add(record.Key())
		}
	}
}

// Verify asks the API about the suspects, withdraws the addresses of other pods and
// repairs the node's side of the rest. It asks about all with one question, and again about
// those that seem to have lost something, each by itself. It returns an error while suspects are
// left.
func (r *repairs) Verify(ctx context.Context) error {
	keys := r.suspects.take()
	if len(keys) == 0 {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, verifyPatience)
	defer cancel()
	standing, err := r.Pods.Standing(asking)
	if err != nil {
		for _, key := range keys {
			r.suspects.add(key)
		}
		return fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	errs := make([]error, len(keys))
	var group errgroup.Group
	group.SetLimit(verifyParallel)
	for i, key := range keys {
		group.Go(func() error {
			if errs[i] = r.verifyOne(ctx, key, standing); errs[i] != nil {
				r.suspects.add(key)
			}
			return nil
		})
	}
	_ = group.Wait()
	return errors.Join(errs...)
}

// errNoAnswer is returned where the API did not name the pod that holds an address.
var errNoAnswer = errors.New("cannot ask the API server")

// errNotCompared stands for what a record may lack.
var errNotCompared = errors.New("not compared with the kernel")

// verifyOne decides about one record.
func (r *repairs) verifyOne(ctx context.Context, key state.Key, holds podinfo.Standing) error {
	ctx, cancel := context.WithTimeout(ctx, verifyPatience)
	defer cancel()
	record := r.Store.Get(key)
	if record == nil || record.Phase == state.Withdrawn {
		return nil
	}
	if !holds(record.Pod, record.Addresses()) {
		reason, err := r.lostWhy(ctx, record)
		if err != nil {
			return fmt.Errorf("%w: %w", errNoAnswer, err)
		}
		if reason != "" {
			return r.withdrawals.withdraw(ctx, record, reason)
		}
	}
	missing, err := r.holdings.askAgain(record, errNotCompared)
	if err == nil && missing != nil {
		err = r.setupAgain(ctx, record, r.holdings.isAsked)
	}
	if err != nil {
		// It has nothing to do with the API, and is tried again without it.
		r.reconciler.CheckSoon(key)
		klog.FromContext(ctx).Error(err, "Cannot repair the network of a pod", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name), "containerID", record.ContainerID)
	}
	return nil
}
