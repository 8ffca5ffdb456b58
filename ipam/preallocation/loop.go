// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/store"
)

// Follow calls do an Interval after each value from news: the book of addresses may get
// the news later than this process's other parts. Values that come meanwhile cause one
// more call. It blocks until ctx ends.
func Follow(ctx context.Context, news <-chan struct{}, do func()) {
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

// Next reconciles one key of a queue. It blocks until there is a key, and returns false
// after the queue is shut down. After an error the key is retried; failed is called
// unless the error is a conflict.
func Next[K comparable](ctx context.Context, queue workqueue.TypedRateLimitingInterface[K],
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
