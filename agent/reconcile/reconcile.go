// SPDX-License-Identifier: Apache-2.0

// Package reconcile calls the work that makes kernel and records agree: for each record by itself,
// soon or after the wait of a failure, until it succeeds. One that fails delays no other, and a
// plugin that hangs delays no check. It does none of the work.
package reconcile

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/state"
)

const (
	// checkers and finishers are how many records are compared, and how many are
	// finished, at a time. A plugin that hangs keeps a finisher busy and no checker.
	checkers  = 4
	finishers = 8
	// Waits after a first failure and between later ones.
	firstRetry, lastRetry = time.Second, time.Minute
)

type keyQueue = workqueue.TypedRateLimitingInterface[state.Key]

// Work has the Reconciler's functions for one record.
type Work struct {
	// Known returns at once whether a record is still there; nil: each is.
	Known func(key state.Key) bool
	// Check compares a record with the kernel and makes the missing pieces; it runs no plugin.
	Check func(ctx context.Context, key state.Key) error
	// Finish undoes an ADD and completes a DEL that nobody works on, and has plugins make again what
	// is gone.
	Finish func(ctx context.Context, key state.Key) error
	// Survey compares all records and has those compared by Check that seem to lack something.
	Survey func(ctx context.Context) error
	// Orphans looks at the links without a record, all together.
	Orphans func(ctx context.Context) error
}

// Reconciler makes kernel and records agree, each record by itself. Its methods are safe in
// parallel, and return at once but for Run.
type Reconciler struct {
	work             Work
	checks, finishes keyQueue
	// surveys and orphans have one key only.
	surveys, orphans keyQueue
	outcomes         outcomes
}

// New returns a Reconciler that is idle until Run.
func New(w Work) *Reconciler {
	queue := func() keyQueue {
		return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[state.Key](firstRetry, lastRetry))
	}
	return &Reconciler{work: w, outcomes: outcomes{known: w.Known}, checks: queue(), finishes: queue(), surveys: queue(), orphans: queue()}
}

// CheckSoon has a record compared soon.
func (r *Reconciler) CheckSoon(key state.Key) { r.checks.Add(key) }

// CheckLater has a record compared after the wait of a failure.
func (r *Reconciler) CheckLater(key state.Key) { r.checks.AddRateLimited(key) }

// FinishSoon has a record finished soon or, where that failed, after the wait that is under way: a
// plugin that fails may change links before, and a change of links has all records compared at
// once. FinishLater has one finished after the wait of a failure.
func (r *Reconciler) FinishSoon(key state.Key) {
	if r.finishes.NumRequeues(key) == 0 {
		r.finishes.Add(key)
	}
}
func (r *Reconciler) FinishLater(key state.Key) { r.finishes.AddRateLimited(key) }

// SurveySoon has all records compared soon.
func (r *Reconciler) SurveySoon() { r.surveys.Add(state.Key{}) }

// Checked says that a record agrees with the kernel.
func (r *Reconciler) Checked(key state.Key) { r.outcomes.note(key, true, nil) }

// OrphansSoon has the links without a record looked at soon.
func (r *Reconciler) OrphansSoon() { r.orphans.Add(state.Key{}) }

// Run works until the context ends, and waits for the work under way.
func (r *Reconciler) Run(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() {
		r.checks.ShutDown()
		r.finishes.ShutDown()
		r.surveys.ShutDown()
		r.orphans.ShutDown()
	})
	defer stop()
	var group sync.WaitGroup
	for range checkers {
		group.Go(func() {
			work(ctx, r.checks, "Cannot make the network of a container complete, will try again", r.noting(r.work.Check, true))
		})
	}
	for range finishers {
		group.Go(func() {
			work(ctx, r.finishes, "Cannot finish the work on the network of a container, will try again", r.noting(r.work.Finish, false))
		})
	}
	group.Go(func() {
		work(ctx, r.surveys, "Cannot compare the networks of the node's pods, will try again", func(ctx context.Context, _ state.Key) error { return r.work.Survey(ctx) })
	})
	group.Go(func() {
		work(ctx, r.orphans, "Cannot look at links without a record, will try again", func(ctx context.Context, _ state.Key) error { return r.work.Orphans(ctx) })
	})
	group.Wait()
}

// noting returns work that notes its outcome; check says that it compares the record with the
// kernel.
func (r *Reconciler) noting(do func(context.Context, state.Key) error, check bool) func(context.Context, state.Key) error {
	return func(ctx context.Context, key state.Key) error {
		err := do(ctx, key)
		if ctx.Err() == nil {
			r.outcomes.note(key, check, err)
		}
		return err
	}
}

// Outcomes returns the outcome of the work for each record.
func (r *Reconciler) Outcomes() map[state.Key]Outcome { return r.outcomes.copy() }

// Forget drops the outcome of a record that is gone.
func (r *Reconciler) Forget(key state.Key) { r.outcomes.forget(key) }

// Waiting counts the records that wait to be compared or finished.
func (r *Reconciler) Waiting() int { return r.checks.Len() + r.finishes.Len() }

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
