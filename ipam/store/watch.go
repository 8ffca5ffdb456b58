// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"

	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/tombstone"
	"github.com/berth-dev/berth/ipam/view"
)

// Watch tells a Handler of claims and of addresses in use.
type Watch struct {
	claims  cache.Store
	handled []cache.DoneChecker
}

// Handler receives what a Watch sees. Calls for one kind are serial, in the
// order of the API server for one object; calls for different kinds may overlap.
type Handler struct {
	// ClaimChanged gets a claim that is new or changed.
	ClaimChanged func(claim *v1alpha1.IPClaim)
	// Observed gets an address in use that is new or changed.
	Observed func(ip *v1alpha1.FloatingIP)
	// Forgotten gets the last known state of an address that was freed; final: what it
	// was when it was deleted, as the API server said.
	Forgotten func(ip *v1alpha1.FloatingIP, final bool)
}

// NewWatch returns a Watch that calls handler once the view runs.
func NewWatch(seen *view.View, handler Handler) (*Watch, error) {
	w := &Watch{claims: seen.IPClaims.GetStore(), handled: []cache.DoneChecker{seen.PoolsSynced}}
	for _, watched := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandlerFuncs
	}{
		{seen.IPClaims, cache.ResourceEventHandlerFuncs{
			AddFunc: func(object any) { handler.ClaimChanged(object.(*v1alpha1.IPClaim)) },
			UpdateFunc: func(before, after any) {
				if claim := after.(*v1alpha1.IPClaim); before.(*v1alpha1.IPClaim).Generation != claim.Generation {
					handler.ClaimChanged(claim)
				}
			},
		}},
		{seen.FloatingIPs, cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { handler.Observed(object.(*v1alpha1.FloatingIP)) },
			UpdateFunc: func(before, object any) { observeUpdate(handler, before, object) },
			DeleteFunc: func(object any) {
				_, missed := object.(cache.DeletedFinalStateUnknown)
				handler.Forgotten(tombstone.LastSeen(object).(*v1alpha1.FloatingIP), !missed)
			},
		}},
	} {
		// What was told once need not be told again.
		registration, err := watched.informer.AddEventHandlerWithResyncPeriod(watched.handler, 0)
		if err != nil {
			return nil, fmt.Errorf("add an event handler: %w", err)
		}
		w.handled = append(w.handled, registration.HasSyncedChecker())
	}
	return w, nil
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

// Claim returns a claim as it was seen last, nil if there is none. The caller
// must not modify it.
func (w *Watch) Claim(namespace, name string) *v1alpha1.IPClaim {
	object, exists, err := w.claims.GetByKey(namespace + "/" + name)
	if err != nil || !exists {
		return nil
	}
	return object.(*v1alpha1.IPClaim)
}

// WaitForSync blocks until the handler has been called for everything that
// existed when the view began to run, and the pools are complete, and says so, or
// until the end of ctx.
func (w *Watch) WaitForSync(ctx context.Context) bool {
	return cache.WaitFor(ctx, "IPPools, IPClaims and FloatingIPs", w.handled...)
}
