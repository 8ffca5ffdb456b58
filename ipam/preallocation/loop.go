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

// Follow calls do after there was news, until ctx ends, but not more often than every
// Interval.
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

// Next reconciles one key of a queue, and says whether there may be more. failed is
// told of an error that is no mere conflict; the key is tried again.
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
		// The watch brings what it is now, unless it did before we wrote.
		queue.AddAfter(key, Interval)
	default:
		if ctx.Err() == nil {
			failed(key, err)
		}
		queue.AddRateLimited(key)
	}
	return true
}
