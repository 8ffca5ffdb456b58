// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
)

// Watch follows all pools and all addresses in use. Its informers are made by
// NewWatch and run by Run.
type Watch struct {
	pools, ips   cache.SharedIndexInformer
	poolsHandled cache.ResourceEventHandlerRegistration
	ipsHandled   cache.ResourceEventHandlerRegistration
}

// Handler receives what a Watch sees. Calls for one kind are serial, in the
// order of the API server for one object; calls for the two kinds may overlap.
type Handler struct {
	// PoolsChanged is called whenever a pool changed, for each of them: it should
	// only take a note.
	PoolsChanged func()
	// Observed gets an address in use that is new or changed.
	Observed func(ip *v1alpha1.FloatingIP)
	// Forgotten gets the last known state of an address that was freed.
	Forgotten func(ip *v1alpha1.FloatingIP)
}

// NewWatch returns a Watch that calls handler once Run is called.
func NewWatch(api *client.Client, handler Handler) (*Watch, error) {
	w := &Watch{
		pools: client.NewIPPoolInformer(api.IPPools, 0),
		ips:   client.NewFloatingIPInformer(api.FloatingIPs, 0, cache.Indexers{}),
	}
	for _, informer := range []cache.SharedIndexInformer{w.pools, w.ips} {
		if err := informer.SetTransform(dropManagedFields); err != nil {
			return nil, fmt.Errorf("set the informer's transform: %w", err)
		}
	}
	var err error
	if w.ipsHandled, err = w.ips.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { handler.Observed(object.(*v1alpha1.FloatingIP)) },
		UpdateFunc: func(before, object any) { observeUpdate(handler, before, object) },
		DeleteFunc: func(object any) {
			if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			handler.Forgotten(object.(*v1alpha1.FloatingIP))
		},
	}); err != nil {
		return nil, fmt.Errorf("watch FloatingIPs: %w", err)
	}
	if w.poolsHandled, err = w.pools.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { handler.PoolsChanged() },
		UpdateFunc: func(before, after any) {
			// The controller writes counts into the status all the time.
			if before.(*v1alpha1.IPPool).Generation != after.(*v1alpha1.IPPool).Generation {
				handler.PoolsChanged()
			}
		},
		DeleteFunc: func(any) { handler.PoolsChanged() },
	}); err != nil {
		return nil, fmt.Errorf("watch IPPools: %w", err)
	}
	return w, nil
}

// observeUpdate tells an update from a deletion and a creation between two
// looks, which an informer that lists anew reports as one update.
func observeUpdate(handler Handler, before, after any) {
	old, ip := before.(*v1alpha1.FloatingIP), after.(*v1alpha1.FloatingIP)
	if old.UID != ip.UID {
		handler.Forgotten(old)
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

// Run follows the API server until ctx ends. It blocks.
func (w *Watch) Run(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.pools.RunWithContext(ctx)
	}()
	w.ips.RunWithContext(ctx)
	<-done
}

// WaitForSync blocks until the handler has been called for everything that
// existed when Run began, and says so, or until the end of ctx.
func (w *Watch) WaitForSync(ctx context.Context) bool {
	return cache.WaitFor(ctx, "IPPools and FloatingIPs", w.poolsHandled.HasSyncedChecker(), w.ipsHandled.HasSyncedChecker())
}
