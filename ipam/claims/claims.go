// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/preallocation"
	"github.com/berth-dev/berth/ipam/store"
	"github.com/berth-dev/berth/ipam/tombstone"
	"github.com/berth-dev/berth/ipam/view"
)

const (
	// Interval is the minimum time between two status writes of a claim, and between
	// two failed attempts to preallocate.
	Interval = preallocation.Interval
	// gather is how long changes of a claim's addresses are gathered.
	gather = preallocation.Gather
	// workers is the number of claims that are reconciled concurrently.
	workers = 4
)

// Parts has the dependencies of a Controller. The caller runs the view and the informer.
// New adds indexes to the informers of the view.
type Parts struct {
	API          *client.Client
	Preallocator preallocation.Preallocator
	Recorder     event.Recorder
	Metrics      *Metrics

	View       *view.View
	Namespaces coreinformers.NamespaceInformer
	Quotas     coreinformers.ResourceQuotaInformer
}

// Controller reconciles claims. One runs at a time: the leader.
type Controller struct {
	api          *client.Client
	store        *store.Store
	preallocator preallocation.Preallocator
	recorder     event.Recorder
	metrics      *Metrics
	clock        clock.PassiveClock

	claims, ips cache.Indexer
	pools       *pools.Source
	namespaces  corelisters.NamespaceLister
	quotas      corelisters.ResourceQuotaLister
	synced      []cache.DoneChecker
	queue       workqueue.TypedRateLimitingInterface[string]
	states      preallocation.States[string, state]
}

// Indexes of informers.
const (
	byClaim    = "claim"    // FloatingIPs by namespace/name of the IPClaim that owns them
	byTakeOver = "takeOver" // IPClaims by namespace/name of the one they take over
)

func claimIndex(object any) ([]string, error) {
	if key := ownerOf(object.(*v1alpha1.FloatingIP)); key != "" {
		return []string{key}, nil
	}
	return nil, nil
}

func takeOverIndex(object any) ([]string, error) {
	if claim := object.(*v1alpha1.IPClaim); claim.Spec.TakeOver != "" {
		return []string{keyOf(claim.Namespace, claim.Spec.TakeOver)}, nil
	}
	return nil, nil
}

func keyOf(namespace, name string) string { return namespace + "/" + name }

// ownerOf returns the key of the claim that owns an address; empty if none does.
func ownerOf(ip *v1alpha1.FloatingIP) string {
	owner := ip.Spec.Owner
	if owner == nil || !owner.IsClaim() {
		return ""
	}
	return keyOf(owner.Namespace, owner.Name)
}

// New returns a Controller. It does nothing until Run.
func New(parts Parts) (*Controller, error) {
	c := &Controller{
		api:          parts.API,
		store:        store.New(parts.API.FloatingIPs),
		preallocator: parts.Preallocator,
		recorder:     parts.Recorder,
		metrics:      parts.Metrics,
		clock:        clock.RealClock{},
	}
	if err := c.watch(parts); err != nil {
		return nil, err
	}
	return c, nil
}

// watch sets up the Controller's memory, indexes and event handlers.
func (c *Controller) watch(parts Parts) error {
	c.claims, c.ips, c.pools = parts.View.IPClaims.GetIndexer(), parts.View.FloatingIPs.GetIndexer(), parts.View.Pools
	c.synced = []cache.DoneChecker{parts.View.PoolsSynced}
	c.namespaces, c.quotas = parts.Namespaces.Lister(), parts.Quotas.Lister()
	c.queue = workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](Interval, time.Minute),
		workqueue.TypedRateLimitingQueueConfig[string]{Name: "claims"})

	if err := parts.View.FloatingIPs.AddIndexers(cache.Indexers{byClaim: claimIndex}); err != nil {
		return fmt.Errorf("index FloatingIPs by claim: %w", err)
	}
	if err := parts.View.IPClaims.AddIndexers(cache.Indexers{byTakeOver: takeOverIndex}); err != nil {
		return fmt.Errorf("index IPClaims by takeOver: %w", err)
	}
	for _, watched := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandlerFuncs
	}{
		{parts.View.IPClaims, changesOf(c.claimChanged)},
		{parts.View.FloatingIPs, changesOf(c.addressChanged)},
		{parts.Namespaces.Informer(), changesOf(c.namespaceChanged)},
		{parts.Quotas.Informer(), changesOf(c.quotaChanged)},
	} {
		registration, err := watched.informer.AddEventHandler(watched.handler)
		if err != nil {
			return fmt.Errorf("add an event handler: %w", err)
		}
		c.synced = append(c.synced, registration.HasSyncedChecker())
	}
	return nil
}

// changesOf calls handle with an object's states before and after an event; nil if it did
// not exist before, or does not after.
func changesOf[T any](handle func(before, after *T)) cache.ResourceEventHandlerFuncs {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { handle(nil, object.(*T)) },
		UpdateFunc: func(before, after any) { handle(before.(*T), after.(*T)) },
		DeleteFunc: func(object any) { handle(tombstone.LastSeen(object).(*T), nil) },
	}
}

// claimChanged also enqueues the claims that are related to this one by takeOver, or were
// before.
func (c *Controller) claimChanged(before, after *v1alpha1.IPClaim) {
	if before != nil && after != nil && before.UID == after.UID && before.Generation == after.Generation &&
		(before.DeletionTimestamp == nil) == (after.DeletionTimestamp == nil) {
		return // its status
	}
	for _, claim := range []*v1alpha1.IPClaim{before, after} {
		if claim == nil {
			continue
		}
		c.queue.Add(keyOf(claim.Namespace, claim.Name))
		// Follow takeOver from claim to claim, and enqueue all takers of each.
		seen := map[string]bool{}
		for name := claim.Name; name != "" && !seen[name]; {
			seen[name] = true
			for _, taker := range c.takers(claim.Namespace, name) {
				c.queue.Add(keyOf(taker.Namespace, taker.Name))
			}
			next := ""
			if name == claim.Name {
				next = claim.Spec.TakeOver
			} else if other := c.claim(claim.Namespace, name); other != nil {
				c.queue.Add(keyOf(other.Namespace, other.Name))
				next = other.Spec.TakeOver
			}
			name = next
		}
	}
}

func (c *Controller) addressChanged(before, after *v1alpha1.FloatingIP) {
	for _, ip := range []*v1alpha1.FloatingIP{before, after} {
		if ip == nil {
			continue
		}
		if key := ownerOf(ip); key != "" {
			c.queue.AddAfter(key, gather)
			namespace, name, _ := strings.Cut(key, "/")
			for _, taker := range c.takers(namespace, name) {
				c.queue.AddAfter(keyOf(taker.Namespace, taker.Name), gather)
			}
		}
	}
	if namespace, ok := preallocation.Freed(before, after); ok {
		for _, key := range c.states.Keys(func(key string, s *state) bool {
			return s.progress.WaitsFor(before.Family()) && (namespace == "" || strings.HasPrefix(key, keyOf(namespace, "")))
		}) {
			c.queue.AddAfter(key, Interval)
		}
	}
}

func (c *Controller) namespaceChanged(before, after *v1.Namespace) {
	if after == nil || before != nil && before.UID == after.UID && labels.Equals(before.Labels, after.Labels) {
		return
	}
	c.enqueueIn(after.Name)
}

func (c *Controller) quotaChanged(before, after *v1.ResourceQuota) {
	if before != nil && after != nil && equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return
	}
	c.enqueueIn(cmp.Or(after, before).Namespace)
}

// enqueueIn enqueues the claims of a namespace.
func (c *Controller) enqueueIn(namespace string) {
	for _, claim := range view.Indexed[*v1alpha1.IPClaim](c.claims, cache.NamespaceIndex, namespace) {
		c.queue.Add(keyOf(namespace, claim.Name))
	}
}

// claim returns a claim from the cache, or nil.
func (c *Controller) claim(namespace, name string) *v1alpha1.IPClaim {
	object, exists, err := c.claims.GetByKey(keyOf(namespace, name))
	if err != nil || !exists {
		return nil
	}
	return object.(*v1alpha1.IPClaim)
}

// takers returns the claims that want to take over a claim.
func (c *Controller) takers(namespace, name string) []*v1alpha1.IPClaim {
	return view.Indexed[*v1alpha1.IPClaim](c.claims, byTakeOver, keyOf(namespace, name))
}

// addressesOf returns the addresses recorded under a claim's name in the present
// namespace. It ignores addresses of an earlier namespace of the same name.
func (c *Controller) addressesOf(namespace, name string) []*v1alpha1.FloatingIP {
	in, err := c.namespaces.Get(namespace)
	if err != nil {
		return nil // the event of the namespace enqueues its claims
	}
	return slices.DeleteFunc(view.Indexed[*v1alpha1.FloatingIP](c.ips, byClaim, keyOf(namespace, name)), func(ip *v1alpha1.FloatingIP) bool {
		return !v1alpha1.IsOfNamespace(ip.NamespaceUID(), ip.CreationTimestamp.Time, in)
	})
}

// Run reconciles claims until ctx ends. It blocks until its workers are done.
func (c *Controller) Run(ctx context.Context) {
	preallocation.Loop[string]{
		Name: "the caches of claims", Synced: c.synced, Pools: c.pools, Queue: c.queue, Reconcile: c.reconcile, Keys: c.claims.ListKeys,
		Failed: func(key string, err error) {
			klog.FromContext(ctx).Error(err, "Failed to reconcile an IPClaim, will retry", "claim", key)
		},
	}.Run(ctx, workers)
}
