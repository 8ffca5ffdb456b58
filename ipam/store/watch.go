// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/tombstone"
	"github.com/berth-dev/berth/ipam/view"
)

// Watch reports the claims and FloatingIPs of its view to a Handler. Safe for concurrent use.
type Watch struct {
	claims  cache.Store
	handled []cache.DoneChecker
}

// Handler has the callbacks of a Watch. Calls for one kind are serial. Calls for one object come in
// the order of the API server. Calls for different kinds may overlap.
type Handler struct {
	// ClaimChanged is called with a new or changed claim.
	ClaimChanged func(claim *v1alpha1.IPClaim)
	// Observed is called with a new or changed FloatingIP.
	Observed func(ip *v1alpha1.FloatingIP)
	// Reverted is called instead of Observed if the API server returned to an older version of the
	// FloatingIP, because a backup of its data was restored. version is a version at which the API
	// server had this object.
	Reverted func(version uint64, ip *v1alpha1.FloatingIP)
	// Forgotten is called with the last known state of a deleted FloatingIP. final says that this is
	// the state at its deletion; otherwise the watch missed the deletion.
	Forgotten func(ip *v1alpha1.FloatingIP, final bool)
}

// NewWatch returns a Watch that calls handler while the view runs.
func NewWatch(seen *view.View, handler Handler) (*Watch, error) {
	w := &Watch{claims: seen.IPClaims.GetStore(), handled: []cache.DoneChecker{seen.PoolsSynced}}
	claims := cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { handler.ClaimChanged(object.(*v1alpha1.IPClaim)) },
		UpdateFunc: func(before, after any) {
			if claim := after.(*v1alpha1.IPClaim); before.(*v1alpha1.IPClaim).Generation != claim.Generation {
				handler.ClaimChanged(claim)
			}
		},
	}
	if err := w.handle(seen.IPClaims, claims); err != nil {
		return nil, err
	}
	if seen.FloatingIPs == nil {
		return w, nil
	}
	ips := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { handler.Observed(object.(*v1alpha1.FloatingIP)) },
		UpdateFunc: func(before, object any) { observeUpdate(handler, before, object) },
		DeleteFunc: func(object any) {
			_, missed := object.(cache.DeletedFinalStateUnknown)
			handler.Forgotten(tombstone.LastSeen(object).(*v1alpha1.FloatingIP), !missed)
		},
	}
	if err := w.handle(seen.FloatingIPs, ips); err != nil {
		return nil, err
	}
	return w, nil
}

// handle calls a handler with an informer's events. There is no resync, because the handler needs
// each state only once.
func (w *Watch) handle(informer cache.SharedIndexInformer, handler cache.ResourceEventHandler) error {
	registration, err := informer.AddEventHandlerWithResyncPeriod(handler, 0)
	if err != nil {
		return fmt.Errorf("add an event handler: %w", err)
	}
	w.handled = append(w.handled, registration.HasSyncedChecker())
	return nil
}

// observeUpdate distinguishes three kinds of updates: a change; a deletion and new creation, which
// an informer reports as an update if it missed the deletion; and a return to a former state.
func observeUpdate(handler Handler, before, after any) {
	old, ip := before.(*v1alpha1.FloatingIP), after.(*v1alpha1.FloatingIP)
	if old.UID != ip.UID {
		handler.Forgotten(old, false)
	}
	switch order, err := resourceversion.CompareResourceVersion(ip.ResourceVersion, old.ResourceVersion); {
	case err == nil && order < 0:
		if version, err := strconv.ParseUint(old.ResourceVersion, 10, 64); err == nil {
			handler.Reverted(version, ip)
		}
	case old.ResourceVersion != ip.ResourceVersion:
		handler.Observed(ip)
	}
}

// Claim returns the cached claim; nil if there is none. The caller must not modify it.
func (w *Watch) Claim(namespace, name string) *v1alpha1.IPClaim {
	return view.Get[v1alpha1.IPClaim](w.claims, namespace+"/"+name)
}

// WaitForSync blocks until the handler has been called for all objects that existed when the view
// began to run, and the pools are complete. It returns false if ctx ends first.
func (w *Watch) WaitForSync(ctx context.Context) bool {
	return cache.WaitFor(ctx, "Berth's objects", w.handled...)
}
