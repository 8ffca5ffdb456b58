// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/standby"
	"github.com/berth-dev/berth/ipam/store"
	"github.com/berth-dev/berth/ipam/tombstone"
	"github.com/berth-dev/berth/ipam/view"
)

// workers is the number of owners that are reconciled concurrently.
const workers = 4

// Owners are the owners of some kinds that a Loop reconciles. Safe for concurrent use.
type Owners interface {
	// Reconcile reconciles one owner. It returns when to look again; 0 means at the next
	// event.
	Reconcile(ctx context.Context, key Key) (again time.Duration, err error)
	// Affected returns the owners to look at when the addresses of the key's owner change.
	Affected(key Key) []Key
	// Keys returns all owners.
	Keys() []Key
}

// Addresses has the methods of ipam.IPAM that a Loop uses. Safe for concurrent use.
type Addresses interface {
	Preallocator
	supply
	// OnChange adds a function that is called with every change that may help owners. The function
	// must not block.
	OnChange(listener func(ipam.Change))
}

// Loop reconciles all owners that preallocate. Only the leader runs it.
type Loop struct {
	preallocator Preallocator
	ips          cache.Indexer
	pools        *pools.Source
	namespaces   corelisters.NamespaceLister
	quotas       corelisters.ResourceQuotaLister

	owners map[string]Owners // by kind
	line   *line
	synced []cache.DoneChecker
	queue  workqueue.TypedRateLimitingInterface[Key]
}

// NewLoop returns a Loop without owners. The caller runs the addresses, the view and the
// factory. NewLoop adds an index to the FloatingIP informer.
func NewLoop(addresses Addresses, seen *view.View, factory informers.SharedInformerFactory) (*Loop, error) {
	core := factory.Core().V1()
	l := &Loop{
		preallocator: addresses,
		ips:          seen.FloatingIPs.GetIndexer(), pools: seen.Pools,
		namespaces: core.Namespaces().Lister(), quotas: core.ResourceQuotas().Lister(),
		owners: map[string]Owners{},
		synced: []cache.DoneChecker{seen.PoolsSynced},
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[Key](Interval, patience),
			workqueue.TypedRateLimitingQueueConfig[Key]{Name: "preallocation"}),
	}
	l.line = newLine(addresses, l.Enqueue)
	addresses.OnChange(l.changed)
	if err := seen.FloatingIPs.AddIndexers(cache.Indexers{byOwner: ownerIndex}); err != nil {
		return nil, fmt.Errorf("index FloatingIPs by owner: %w", err)
	}
	return l, errors.Join(
		WatchEach(l, seen.FloatingIPs, l.addressChanged),
		Watch(l, core.Namespaces().Informer(), l.namespaceChanged),
		Watch(l, core.ResourceQuotas().Informer(), l.quotaChanged),
	)
}

// Add makes the loop reconcile the owners of some kinds. The loop must not run yet.
func (l *Loop) Add(owners Owners, kinds ...string) {
	for _, kind := range kinds {
		l.owners[kind] = owners
	}
}

// Watch calls changed with an object's states before and after each event of an informer. before is
// nil for a new object, after for a deleted one. The loop begins when the events of the present
// objects have been handled.
func Watch[T any](l *Loop, informer cache.SharedIndexInformer, changed func(before, after *T)) error {
	registration, err := informer.AddEventHandler(tombstone.Handler(changed))
	if err != nil {
		return fmt.Errorf("add an event handler: %w", err)
	}
	l.synced = append(l.synced, registration.HasSyncedChecker())
	return nil
}

// WatchEach calls seen with each state of an object, before and after each event of an informer.
func WatchEach[T any](l *Loop, informer cache.SharedIndexInformer, seen func(*T)) error {
	return Watch(l, informer, func(before, after *T) {
		for _, state := range []*T{before, after} {
			if state != nil {
				seen(state)
			}
		}
	})
}

// Enqueue makes the loop reconcile an owner soon.
func (l *Loop) Enqueue(key Key) { l.queue.Add(key) }

// EnqueueAfter makes the loop reconcile an owner after some time, once for all changes until then.
func (l *Loop) EnqueueAfter(key Key, wait time.Duration) { l.queue.AddAfter(key, wait) }

func (l *Loop) addressChanged(ip *v1alpha1.FloatingIP) {
	if key, ok := keyOf(ip); ok && l.owners[key.Kind] != nil {
		for _, affected := range l.owners[key.Kind].Affected(key) {
			l.queue.AddAfter(affected, Gather)
		}
	}
}

// changed wakes one owner that a change may help, by its turn, or all owners if pools changed.
func (l *Loop) changed(change ipam.Change) {
	if change.Everything {
		l.each("")
		return
	}
	l.line.changed(change)
}

func (l *Loop) namespaceChanged(before, after *v1.Namespace) {
	if after == nil || before != nil && before.UID == after.UID && labels.Equals(before.Labels, after.Labels) {
		return
	}
	l.each(after.Name)
}

func (l *Loop) quotaChanged(before, after *v1.ResourceQuota) {
	if before != nil && after != nil && equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return
	}
	l.each(cmp.Or(after, before).Namespace)
}

// each enqueues the owners of a namespace; empty: all owners.
func (l *Loop) each(namespace string) {
	seen := map[Owners]bool{}
	for _, owners := range l.owners {
		if seen[owners] {
			continue
		}
		seen[owners] = true
		for _, key := range owners.Keys() {
			if namespace == "" || key.Namespace == namespace {
				l.Enqueue(key)
			}
		}
	}
}

// Addresses returns the addresses that are recorded under an owner's name.
func (l *Loop) Addresses(key Key) []*v1alpha1.FloatingIP {
	return view.Indexed[*v1alpha1.FloatingIP](l.ips, byOwner, key.String())
}

// FloatingIP returns the record of an address from the cache; nil if there is none.
func (l *Loop) FloatingIP(address string) *v1alpha1.FloatingIP {
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return nil
	}
	return view.Get[v1alpha1.FloatingIP](l.ips, v1alpha1.NameOf(addr))
}

// Namespace returns a namespace from the cache.
func (l *Loop) Namespace(name string) (*v1.Namespace, error) {
	namespace, err := l.namespaces.Get(name)
	if err != nil {
		return nil, fmt.Errorf("get namespace %s: %w", name, err)
	}
	return namespace, nil
}

// Pools returns the pools of this process's view.
func (l *Loop) Pools() *pools.Snapshot { return l.pools.Snapshot() }

// Take takes the missing addresses of an owner: see [Progress.take]. It takes none before the watch
// has brought the addresses that it took last. If there are too few, the owner waits for addresses
// to become free, until it is reconciled without Take.
func (l *Loop) Take(ctx context.Context, key Key, p *Progress, goal Goal, has Count) (*Problem, time.Duration, error) {
	l.line.stay(key)
	if left := p.Unsettled(has, time.Now()); left > 0 {
		return p.Shortfall(goal), left, nil
	}
	for i := range goal.Wants {
		if goal.Wants[i].Request.OfService {
			continue // The API server counts Services (services.loadbalancers).
		}
		goal.Wants[i].Request.Quota = quotaOf(l.quotas, key.Namespace)
	}
	return p.take(ctx, taker{
		Preallocator: l.preallocator, Pools: l.pools.Snapshot,
		Begin: func(requests []ipam.Request) { l.line.try(key, requests) },
		End:   func(lacking []ipam.Request, got bool) { l.line.wait(key, lacking, got) },
	}, goal, has)
}

// Run reconciles owners until ctx ends. It blocks until its workers are done.
func (l *Loop) Run(ctx context.Context) {
	defer l.queue.ShutDown()
	if !cache.WaitFor(ctx, "the caches of preallocation", l.synced...) {
		return
	}
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for next(ctx, l.queue, l.reconcile, func(key Key, err error) {
				klog.FromContext(ctx).Error(err, "Failed to reconcile the addresses of an owner, will retry", "kind", key.Kind, "owner", klog.KRef(key.Namespace, key.Name))
			}) {
			}
		})
	}
	<-ctx.Done()
	l.queue.ShutDown()
	group.Wait()
}

func (l *Loop) reconcile(ctx context.Context, key Key) (again time.Duration, err error) {
	l.line.begin(key)
	defer l.line.end(key)
	err = standby.Contained(func() (err error) {
		again, err = l.owners[key.Kind].Reconcile(ctx, key)
		return err
	})
	return again, err
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
