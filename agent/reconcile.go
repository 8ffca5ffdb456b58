// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/ipam/event"
)

const (
	// resync is how often every record is compared with the kernel, because other
	// programs change it, too.
	resync = time.Minute
	// checkers and finishers are how many records are compared, and how many are
	// finished, at a time. A plugin that hangs keeps a finisher busy and no checker.
	checkers  = 4
	finishers = 8
	// Waits after a first failure and between later ones.
	firstRetry, lastRetry = time.Second, time.Minute
)

type keyQueue = workqueue.TypedRateLimitingInterface[state.Key]

// reconciler makes kernel and records agree, each record by itself. check compares one
// record with the kernel and makes what is missing; it runs no plugin. finish undoes an
// ADD and completes a DEL that nobody works on. tell says what the pod's networks gave it.
type reconciler struct {
	checks, finishes, tells keyQueue
	check, finish, tell     func(ctx context.Context, key state.Key) error
	// orphans has one key only: links without a record are looked at together.
	orphans       keyQueue
	verifyOrphans func(context.Context) error
	outcomes      *outcomes
}

func newReconciler(check, finish, tell func(context.Context, state.Key) error, verifyOrphans func(context.Context) error) reconciler {
	queue := func() keyQueue {
		return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[state.Key](firstRetry, lastRetry))
	}
	return reconciler{checks: queue(), finishes: queue(), tells: queue(), orphans: queue(), check: check, finish: finish, tell: tell, verifyOrphans: verifyOrphans, outcomes: &outcomes{}}
}

// checkSoon has a record compared soon; it returns at once.
func (r *reconciler) checkSoon(key state.Key) { r.checks.Add(key) }

// checkLater has a record compared after the wait of a failure; it returns at once.
func (r *reconciler) checkLater(key state.Key) { r.checks.AddRateLimited(key) }

// finishSoon has a record finished soon, finishLater after the wait of a failure. Both
// return at once.
func (r *reconciler) finishSoon(key state.Key)  { r.finishes.Add(key) }
func (r *reconciler) finishLater(key state.Key) { r.finishes.AddRateLimited(key) }

// tellLater has the status of a pod's networks written after the wait of a failure; it
// returns at once.
func (r *reconciler) tellLater(key state.Key) { r.tells.AddRateLimited(key) }

// orphansSoon has the links without a record looked at soon; it returns at once.
func (r *reconciler) orphansSoon() { r.orphans.Add(state.Key{}) }

// run works until the context ends, and waits for the work under way.
func (r *reconciler) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { r.checks.ShutDown(); r.finishes.ShutDown(); r.tells.ShutDown(); r.orphans.ShutDown() })
	defer stop()
	var group sync.WaitGroup
	for range checkers {
		group.Go(func() {
			work(ctx, r.checks, "Cannot make the network of a container complete, will try again", r.noting(r.check, true))
		})
	}
	for range finishers {
		group.Go(func() {
			work(ctx, r.finishes, "Cannot take the network of a container down, will try again", r.noting(r.finish, false))
		})
	}
	group.Go(func() { work(ctx, r.tells, "Cannot tell a pod the status of its networks, will try again", r.tell) })
	group.Go(func() {
		work(ctx, r.orphans, "Cannot look at links without a record, will try again", func(ctx context.Context, _ state.Key) error { return r.verifyOrphans(ctx) })
	})
	group.Wait()
}

// noting returns work that notes what came of it; check says that it compares the record
// with the kernel.
func (r *reconciler) noting(do func(context.Context, state.Key) error, check bool) func(context.Context, state.Key) error {
	return func(ctx context.Context, key state.Key) error {
		err := do(ctx, key)
		if ctx.Err() == nil {
			r.outcomes.note(key, check, err)
		}
		return err
	}
}

// waiting counts the records that wait to be compared or finished.
func (r *reconciler) waiting() int { return r.checks.Len() + r.finishes.Len() }

func work(ctx context.Context, queue keyQueue, failure string, do func(context.Context, state.Key) error) {
	for {
		key, shutdown := queue.Get()
		if shutdown {
			return
		}
		if ctx.Err() != nil {
			// The next start does it.
			queue.Done(key)
			continue
		}
		if err := do(ctx, key); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, failure, "containerID", key.ContainerID, "ifName", key.IfName)
			queue.AddRateLimited(key)
		} else {
			queue.Forget(key)
		}
		queue.Done(key)
	}
}

// Run makes kernel and records agree, after a start, periodically and after changes, and
// repeats announcements. It returns when the context ends.
func (a *Agent) Run(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() { a.announce.run(ctx) })
	group.Go(func() { a.reconcile.run(ctx) })
	group.Go(func() { a.reconcilePorts(ctx) })
	group.Go(func() { a.keepUnrecorded(ctx) })
	group.Go(func() { a.runDefender(ctx) })
	a.noteStart(ctx)
	wait.JitterUntilWithContext(ctx, a.Recheck, resync, 0.1, true)
	group.Wait()
}

// Recheck compares every record with the kernel soon; it returns at once. Its caller calls
// it after a change of the node's links.
func (a *Agent) Recheck(context.Context) {
	a.shapeSoon()
	if a.Policies != nil {
		a.Policies.Recheck()
	}
	for _, record := range a.Store.List() {
		a.reconcile.checkSoon(record.Key())
	}
	a.reconcile.orphansSoon()
	a.hostPorts.checkSoon()
	a.defence.listenSoon()
}

// repair makes kernel and record agree for an attachment that is complete, and hands one
// that is not to finish. A missing piece may say that the node was cut off, so repair
// asks the API before it puts the piece back.
func (a *Agent) repair(ctx context.Context, key state.Key) error {
	record := a.Store.Get(key)
	if record == nil {
		return nil
	}
	if ofCaller(record) {
		// The program that ran the plugins may forget the container, and upstream's plugins
		// pass no GC on to berth-ipam.
		gone, err := netnsGone(record.NetNS)
		if err != nil {
			return err
		}
		if gone {
			a.reconcile.finishSoon(key)
			return nil
		}
	}
	switch record.Phase {
	case state.Adding, state.Deleting:
		a.reconcile.finishSoon(key)
		return nil
	case state.Withdrawn:
		return a.repairWithdrawn(ctx, record)
	case state.Added:
	}
	if len(record.Addresses()) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, verifyPatience)
	defer cancel()
	if a.eachInterface(record, driver.CheckNode) == nil {
		a.endConflicts(ctx, record)
		return nil
	}
	reason, err := a.lostWhy(ctx, record)
	if err != nil {
		return err
	}
	if reason != "" {
		return a.withdraw(ctx, record, reason)
	}
	return a.setupAgain(ctx, record, false)
}

// repairWithdrawn repeats a withdrawal: the agent may have died between the kernel and the
// record, or another program may have put a piece back. Where the pod holds its addresses
// again, because somebody corrected a FloatingIP, it carries them again.
func (a *Agent) repairWithdrawn(ctx context.Context, record *state.Container) error {
	ctx, cancel := context.WithTimeout(ctx, verifyPatience)
	defer cancel()
	back := false
	if gone, err := netnsGone(record.NetNS); err == nil && !gone && record.Reason != superseded {
		reason, err := a.lostWhy(ctx, record)
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot see whether a pod holds its addresses again", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name), "err", err)
		}
		back = err == nil && reason == ""
	}
	return a.withAddresses(ctx, record, func(now *state.Container) error {
		if now.Phase != state.Withdrawn {
			return nil
		}
		if !back || len(a.sharing(now)) > 0 {
			return a.withdrawAgain(now)
		}
		restored := now.Clone()
		restored.Phase, restored.Reason = state.Added, ""
		if err := a.enforcePolicies(ctx, restored); err != nil {
			return err
		}
		defer a.policiesAttached(restored)
		if err := a.eachInterface(now, func(d driver, i *Interface) error { _, err := d.Setup(i); return err }); err != nil {
			return err
		}
		now.Phase, now.Reason = state.Added, ""
		a.unseen.Delete(now.Key())
		if err := a.reopenPorts(ctx, now); err != nil {
			return err
		}
		// The pod may have ended since the API was asked.
		a.suspects.add(now.Key())
		a.tellPod(now.Pod, event.Normal(EventAddressesRestored, "the pod holds its floating IPs "+strings.Join(addressList(now), ", ")+" again, and its node carries them again"), "Withdraw")
		klog.FromContext(ctx).Info("A pod holds its addresses again and has its network back", "pod", klog.KRef(now.Pod.Namespace, now.Pod.Name),
			"containerID", now.ContainerID, "ips", addressList(now))
		a.announce.soon(now)
		a.defence.listenSoon()
		return nil
	})
}

// setupAgain makes the missing pieces of a complete attachment, of the node's side only
// unless whole.
func (a *Agent) setupAgain(ctx context.Context, record *state.Container, whole bool) error {
	check, repair := driver.CheckNode, driver.Repair
	if whole {
		check, repair = driver.Check, func(d driver, i *Interface) error { _, err := d.Setup(i); return err }
	}
	return a.withAddresses(ctx, record, func(now *state.Container) error {
		if now.Phase != state.Added {
			return nil
		}
		var missing error
		err := a.eachInterface(now, func(d driver, i *Interface) error {
			lacks := check(d, i)
			if lacks == nil {
				return nil
			}
			missing = errors.Join(missing, lacks)
			return repair(d, i)
		})
		if err != nil || missing == nil {
			return err
		}
		klog.FromContext(ctx).Info("Repaired the network of a pod", "pod", klog.KRef(now.Pod.Namespace, now.Pod.Name),
			"containerID", now.ContainerID, "ips", addressList(now), "missing", missing)
		a.announce.soon(now)
		a.shapeSoon() // a new link has no limits
		return nil
	})
}

// finish undoes an ADD and completes a DEL that was interrupted or failed, and takes down
// an attachment whose container has ended. It leaves a container to the call that works on
// it, and ends with the agent: the next start goes on.
func (a *Agent) finish(ctx context.Context, key state.Key) error {
	unlock, free := a.locks.tryLock(containerLock(key.ContainerID))
	if !free {
		return nil
	}
	defer unlock()
	record := a.Store.Get(key)
	if record == nil {
		return nil
	}
	if record.Phase == state.Added || record.Phase == state.Withdrawn {
		if gone, err := netnsGone(record.NetNS); err != nil || !gone {
			return err
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
		if record.Phase == state.Added {
			// The agent may have died between the record and the pod's annotation.
			a.reconcile.tellLater(record.Key())
		}
		gone, err := netnsGone(record.NetNS)
		if err != nil {
			logger.Error(err, "Cannot see whether a container is still there", "containerID", record.ContainerID)
		}
		if gone {
			// The node was restarted, and sandboxes do not survive that.
			a.reconcile.finishSoon(record.Key())
		}
	}
	logger.Info("Started with the records of an earlier run", "adding", counts[state.Adding], "added", counts[state.Added],
		"deleting", counts[state.Deleting], "withdrawn", counts[state.Withdrawn])
	for name, d := range a.Drivers {
		if err := d.RemoveLoose(); err != nil {
			logger.Error(err, "Cannot remove kernel state that belongs to no pod", "driver", name)
		}
	}
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
