// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/tombstone"
)

// Watch follows all pools, all claims and all addresses in use. Its informers are made by
// NewWatch and run by Run.
type Watch struct {
	pools, claims, ips cache.SharedIndexInformer
	handled            []cache.DoneChecker
}

// Handler receives what a Watch sees. Calls for one kind are serial, in the
// order of the API server for one object; calls for different kinds may overlap.
type Handler struct {
	// PoolsChanged is called whenever a pool changed, for each of them: it should
	// only take a note.
	PoolsChanged func()
	// ClaimChanged gets a claim that is new or changed.
	ClaimChanged func(claim *v1alpha1.IPClaim)
	// Observed gets an address in use that is new or changed.
	Observed func(ip *v1alpha1.FloatingIP)
	// Forgotten gets the last known state of an address that was freed; final: what it
	// was when it was deleted, as the API server said.
	Forgotten func(ip *v1alpha1.FloatingIP, final bool)
}

// NewWatch returns a Watch that calls handler once Run is called.
func NewWatch(api *client.Client, handler Handler) (*Watch, error) {
	w := &Watch{
		pools:  client.NewIPPoolInformer(api.IPPools, 0),
		claims: client.NewIPClaimInformer(api, 0),
		ips:    client.NewFloatingIPInformer(api.FloatingIPs, 0, cache.Indexers{}),
	}
	for _, watched := range []struct {
		informer  cache.SharedIndexInformer
		transform cache.TransformFunc
		handler   cache.ResourceEventHandlerFuncs
	}{
		{w.pools, dropManagedFields, cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { handler.PoolsChanged() },
			UpdateFunc: func(before, after any) {
				// The controller writes counts into the status all the time.
				if specChanged(before.(*v1alpha1.IPPool), after.(*v1alpha1.IPPool)) {
					handler.PoolsChanged()
				}
			},
			DeleteFunc: func(any) { handler.PoolsChanged() },
		}},
		{w.claims, dropManagedFields, cache.ResourceEventHandlerFuncs{
			AddFunc: func(object any) { handler.ClaimChanged(object.(*v1alpha1.IPClaim)) },
			UpdateFunc: func(before, after any) {
				if claim := after.(*v1alpha1.IPClaim); before.(*v1alpha1.IPClaim).Generation != claim.Generation {
					handler.ClaimChanged(claim)
				}
			},
		}},
		{w.ips, dropManagedFields, cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { handler.Observed(object.(*v1alpha1.FloatingIP)) },
			UpdateFunc: func(before, object any) { observeUpdate(handler, before, object) },
			DeleteFunc: func(object any) {
				_, missed := object.(cache.DeletedFinalStateUnknown)
				handler.Forgotten(tombstone.LastSeen(object).(*v1alpha1.FloatingIP), !missed)
			},
		}},
	} {
		if err := watched.informer.SetTransform(watched.transform); err != nil {
			return nil, fmt.Errorf("set the informer's transform: %w", err)
		}
		registration, err := watched.informer.AddEventHandler(watched.handler)
		if err != nil {
			return nil, fmt.Errorf("add an event handler: %w", err)
		}
		w.handled = append(w.handled, registration.HasSyncedChecker())
	}
	return w, nil
}

// specChanged says whether the pool is not the same to the scheduler; labels are
// not counted by the generation.
func specChanged(before, after *v1alpha1.IPPool) bool {
	return before.UID != after.UID || before.Generation != after.Generation || !maps.Equal(before.Labels, after.Labels)
}

// observeUpdate tells an update from a deletion and a creation between two
// looks, which an informer that lists anew reports as one update.
func observeUpdate(handler Handler, before, after any) {
	old, ip := before.(*v1alpha1.FloatingIP), after.(*v1alpha1.FloatingIP)
	if old.UID != ip.UID {
		handler.Forgotten(old, false)
	}
	if old.ResourceVersion != ip.ResourceVersion {
		handler.Observed(ip)
	}
}

func dropManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}

// Pools returns the pools seen last. The caller must not modify them.
func (w *Watch) Pools() []*v1alpha1.IPPool {
	var pools []*v1alpha1.IPPool
	for _, object := range w.pools.GetStore().List() {
		pools = append(pools, object.(*v1alpha1.IPPool))
	}
	return pools
}

// Claim returns a claim as it was seen last, nil if there is none. The caller
// must not modify it.
func (w *Watch) Claim(namespace, name string) *v1alpha1.IPClaim {
	object, exists, err := w.claims.GetStore().GetByKey(namespace + "/" + name)
	if err != nil || !exists {
		return nil
	}
	return object.(*v1alpha1.IPClaim)
}

// Run follows the API server until ctx ends. It blocks.
func (w *Watch) Run(ctx context.Context) {
	var group sync.WaitGroup
	for _, informer := range []cache.SharedIndexInformer{w.pools, w.claims, w.ips} {
		group.Go(func() { informer.RunWithContext(ctx) })
	}
	group.Wait()
}

// WaitForSync blocks until the handler has been called for everything that
// existed when Run began, and says so, or until the end of ctx.
func (w *Watch) WaitForSync(ctx context.Context) bool {
	return cache.WaitFor(ctx, "IPPools, IPClaims and FloatingIPs", w.handled...)
}
