// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/store"
)

// Pools are the pools as they were compiled last. Safe for concurrent use.
type Pools struct {
	store    cache.Store
	changed  chan struct{}
	snapshot atomic.Pointer[pools.Snapshot]
}

// NewPools returns the pools of an informer's store; [Pools.Compile] reads them.
func NewPools(store cache.Store) *Pools {
	return &Pools{store: store, changed: make(chan struct{}, 1)}
}

// Snapshot is nil until the first Compile.
func (p *Pools) Snapshot() *pools.Snapshot { return p.snapshot.Load() }

// Changed takes note of a pool that came (before is nil), went (after is nil) or
// changed.
func (p *Pools) Changed(before, after *v1alpha1.IPPool) {
	if before != nil && after != nil && before.UID == after.UID && before.Generation == after.Generation && labels.Equals(before.Labels, after.Labels) {
		return // its status
	}
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// Compile reads the pools anew.
func (p *Pools) Compile() {
	var objects []*v1alpha1.IPPool
	for _, object := range p.store.List() {
		objects = append(objects, object.(*v1alpha1.IPPool))
	}
	p.snapshot.Store(pools.Compile(objects))
}

// Follow compiles pools that changed and calls compiled, until ctx ends, but not more
// often than every Interval.
func (p *Pools) Follow(ctx context.Context, compiled func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.changed:
		}
		p.Compile()
		compiled()
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
