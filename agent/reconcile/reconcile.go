// SPDX-License-Identifier: Apache-2.0

// Package reconcile schedules the work that makes kernel and records agree: separately for each
// record, soon or after the wait of a failure, until it succeeds. A failing record delays no other
// record, and a hanging plugin delays no check. The package does none of the work itself.
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
	// checkers and finishers are how many records are compared and finished at a time. A hanging
	// plugin blocks a finisher, but no checker.
	checkers  = 4
	finishers = 8
	// The first and the longest wait after a failure.
	firstRetry, lastRetry = time.Second, time.Minute
)

type keyQueue = workqueue.TypedRateLimitingInterface[state.Key]

// Work has the Reconciler's functions for one record.
type Work struct {
	// Known reports at once whether a record still exists; nil means that every record does.
	Known func(key state.Key) bool
	// Check compares a record with the kernel and makes the missing pieces; it runs no plugin.
	Check func(ctx context.Context, key state.Key) error
	// Finish undoes an abandoned ADD and completes an abandoned DEL, and makes plugins replace lost
	// interfaces.
	Finish func(ctx context.Context, key state.Key) error
	// Survey compares all records, and queues a Check for records that seem to lack something.
	Survey func(ctx context.Context) error
	// Orphans looks at the links without a record, all together.
	Orphans func(ctx context.Context) error
}

// Reconciler makes kernel and records agree, separately for each record. Its methods are safe in
// parallel and, except Run, return at once.
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

// CheckSoon queues a comparison of a record.
func (r *Reconciler) CheckSoon(key state.Key) { r.checks.Add(key) }

// CheckLater queues a comparison of a record, after the wait of a failure.
func (r *Reconciler) CheckLater(key state.Key) { r.checks.AddRateLimited(key) }

// FinishSoon queues the finishing of a record, soon or, after a failure, at the end of the present
// wait. The reason is that a failing plugin may change links, and a change of links makes Run
// compare all records at once. FinishLater queues it after the wait of a failure.
func (r *Reconciler) FinishSoon(key state.Key) {
	if r.finishes.NumRequeues(key) == 0 {
		r.finishes.Add(key)
	}
}
func (r *Reconciler) FinishLater(key state.Key) { r.finishes.AddRateLimited(key) }

// SurveySoon queues a comparison of all records.
func (r *Reconciler) SurveySoon() { r.surveys.Add(state.Key{}) }

// Checked notes that a record agrees with the kernel.
func (r *Reconciler) Checked(key state.Key) { r.outcomes.note(key, true, nil) }

// OrphansSoon queues a look at the links without a record.
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
