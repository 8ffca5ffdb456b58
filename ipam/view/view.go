// SPDX-License-Identifier: Apache-2.0

// Package view reads Berth's objects for a whole process: one watch and one cache for
// each kind, and one compilation of the pools, shared by all parts of the process. It
// writes nothing.
//
// Each event handler of an informer has its own goroutine. All handlers of one kind see the same
// events in the same order, after the cache has them, but one handler may be ahead of another. The
// book of addresses is such a handler. So code that uses the cache and the book must tolerate that
// the book is slightly behind the cache.
package view

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/tombstone"
)

// View is a view of Berth's objects. Its users must add event handlers and indexes before
// Run. Objects in the caches have no managed fields, and must not be modified. Safe for
// concurrent use.
type View struct {
	IPPools, IPClaims cache.SharedIndexInformer
	FloatingIPs       cache.SharedIndexInformer // nil: the view has none
	// Pools are compiled from IPPools. They are complete when PoolsSynced is done.
	Pools       *pools.Source
	PoolsSynced cache.DoneChecker
}

// New returns a View of the objects that api reads. Handlers of FloatingIPs are called
// again for each object every resync; 0: never.
func New(api *client.Client, resync time.Duration) (*View, error) {
	return Of(client.NewFloatingIPInformer(api.FloatingIPs, resync, cache.Indexers{}),
		client.NewIPPoolInformer(api.IPPools, 0), client.NewIPClaimInformer(api, 0))
}

// NewWithoutFloatingIPs returns a View without FloatingIPs, for a process that keeps them in
// another form.
func NewWithoutFloatingIPs(api *client.Client) (*View, error) {
	return Of(nil, client.NewIPPoolInformer(api.IPPools, 0), client.NewIPClaimInformer(api, 0))
}

// Of returns a View of informers. They must not be running yet. floatingIPs may be nil.
func Of(floatingIPs, ipPools, ipClaims cache.SharedIndexInformer) (*View, error) {
	v := &View{FloatingIPs: floatingIPs, IPPools: ipPools, IPClaims: ipClaims}
	for _, informer := range v.informers() {
		if err := informer.SetTransform(DropManagedFields); err != nil {
			return nil, fmt.Errorf("set an informer's transform: %w", err)
		}
	}
	var err error
	v.Pools, v.PoolsSynced, err = Compiled(ipPools)
	return v, err
}

// Compiled returns the compiled pools of an informer, which the caller runs. They are complete when
// synced is done.
func Compiled(ipPools cache.SharedIndexInformer) (source *pools.Source, synced cache.DoneChecker, err error) {
	source = pools.NewSource(func() []*v1alpha1.IPPool { return All[v1alpha1.IPPool](ipPools.GetStore()) })
	registration, err := ipPools.AddEventHandler(tombstone.Handler(source.Changed))
	if err != nil {
		return nil, nil, fmt.Errorf("follow pools: %w", err)
	}
	return source, registration.HasSyncedChecker(), nil
}

// Indexed returns the objects of a cache that have a key in one of its indexes. It panics
// if there is no such index, which is an error in the program.
func Indexed[T any](from interface {
	ByIndex(index, key string) ([]any, error)
}, index, key string) []T {
	objects, err := from.ByIndex(index, key)
	if err != nil {
		panic(fmt.Sprintf("look into a cache's index: %v", err))
	}
	list := make([]T, len(objects))
	for i, object := range objects {
		list[i] = object.(T)
	}
	return list
}

// All returns the objects of a cache.
func All[T any](from interface{ List() []any }) []*T {
	objects := from.List()
	list := make([]*T, len(objects))
	for i, object := range objects {
		list[i] = object.(*T)
	}
	return list
}

// Get returns the object of a cache that has a key; nil if there is none.
func Get[T any](from interface {
	GetByKey(key string) (object any, exists bool, err error)
}, key string) *T {
	object, exists, err := from.GetByKey(key)
	if err != nil || !exists {
		return nil
	}
	return object.(*T)
}

func (v *View) informers() []cache.SharedIndexInformer {
	if v.FloatingIPs == nil {
		return []cache.SharedIndexInformer{v.IPPools, v.IPClaims}
	}
	return []cache.SharedIndexInformer{v.FloatingIPs, v.IPPools, v.IPClaims}
}

// DropManagedFields removes the managed fields from an object before it is cached: nothing in Berth
// reads them.
func DropManagedFields(object any) (any, error) {
	// An object without managed fields may be in use already: do not write to it.
	if accessor, err := meta.Accessor(object); err == nil && accessor.GetManagedFields() != nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}

// Run follows the API server until ctx ends. It blocks.
func (v *View) Run(ctx context.Context) {
	var group sync.WaitGroup
	for _, informer := range v.informers() {
		group.Go(func() { informer.RunWithContext(ctx) })
	}
	group.Wait()
}
