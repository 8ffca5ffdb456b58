// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"

	"github.com/berth-dev/berth/ipam/store"
)

// Follow calls do after each value from news, at most once per Interval. It blocks until
// ctx ends.
func Follow(ctx context.Context, news <-chan struct{}, do func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-news:
		}
		do()
		select {
		case <-ctx.Done():
			return
		case <-time.After(Interval):
		}
	}
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
