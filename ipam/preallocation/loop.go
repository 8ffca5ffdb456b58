// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/store"
)

// Loop reconciles owners of one sort.
type Loop[K comparable] struct {
	// Name says in logs what the caches are for.
	Name   string
	Synced []cache.DoneChecker
	Pools  *pools.Source
	Queue  workqueue.TypedRateLimitingInterface[K]
	// Keys lists the owners that a change of pools may help. Safe for concurrent use.
	Keys func() []K
	// Reconcile and Failed are as next has them.
	Reconcile func(ctx context.Context, key K) (again time.Duration, err error)
	Failed    func(key K, err error)
}

// Run works with several workers until ctx ends. It blocks until they are done.
func (l Loop[K]) Run(ctx context.Context, workers int) {
	if !cache.WaitFor(ctx, l.Name, l.Synced...) {
		return
	}
	poolsChanged := l.Pools.Follow()
	var group sync.WaitGroup
	group.Go(func() {
		follow(ctx, poolsChanged, func() {
			for _, key := range l.Keys() {
				l.Queue.Add(key)
			}
		})
	})
	for range workers {
		group.Go(func() {
			for next(ctx, l.Queue, l.Reconcile, l.Failed) {
			}
		})
	}
	<-ctx.Done()
	l.Queue.ShutDown()
	group.Wait()
}

// follow calls do an Interval after each value from news: the book of addresses may get
// the news later than this process's other parts. Values that come meanwhile cause one
// more call. It blocks until ctx ends.
func follow(ctx context.Context, news <-chan struct{}, do func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-news:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(Interval):
		}
		do()
	}
}

// Freed reports whether a change of a FloatingIP may help owners that wait for an address:
// those of one namespace or, if it is empty, all.
func Freed(before, after *v1alpha1.FloatingIP) (namespace string, ok bool) {
	switch {
	case after == nil:
		return "", true
	case before != nil && before.Spec.Owner != nil && after.Spec.Owner == nil:
		// It cools down, and its namespace has one address less.
		return before.Spec.Owner.Namespace, true
	}
	return "", false
}

// next reconciles one key of a queue. It blocks until there is a key, and returns false
// after the queue is shut down. After an error the key is retried; failed is called
// unless the error is a conflict.
func next[K comparable](ctx context.Context, queue workqueue.TypedRateLimitingInterface[K],
	reconcile func(ctx context.Context, key K) (again time.Duration, err error), failed func(key K, err error),
) bool {
	key, shutdown := queue.Get()
	if shutdown {
		return false
	}
	defer queue.Done(key)
	again, err := reconcile(ctx, key)
	switch {
	case err == nil:
		queue.Forget(key)
		if again > 0 {
			queue.AddAfter(key, again)
		}
	case errors.Is(err, store.ErrChanged) || apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		// The watch brings the new version, unless it did so before the write.
		queue.AddAfter(key, Interval)
	default:
		if ctx.Err() == nil {
			failed(key, err)
		}
		queue.AddRateLimited(key)
	}
	return true
}
