// SPDX-License-Identifier: Apache-2.0

package poolstatus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/view"
	"github.com/berth-dev/berth/ipam/wakeup"
)

// Interval is the minimum time between two rounds of status writes. Without it, a busy
// scheduler would cause a status write for each pod.
const Interval = time.Second

// mostErrors is the number of failed writes after which a round stops.
const mostErrors = 10

// patcher writes an IPPool's status. Blocking.
type patcher interface {
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*v1alpha1.IPPool, error)
}

// Writer keeps pool status. One runs at a time: the leader.
type Writer struct {
	patcher  patcher
	recorder event.Recorder
	metrics  *Metrics
	pools    *pools.Source
	ips      cache.Store
	synced   []cache.DoneChecker
	dirty    wakeup.Signal
	clock    clock.Clock

	// written has the statuses that the watch has not brought yet, by pool name.
	written map[string]written
	// orphans has the addresses of deleted pools; true if an event was emitted.
	orphans map[types.UID]bool
}

// written is a written status with the resource version that it got.
type written struct {
	uid     types.UID
	version string
	status  v1alpha1.IPPoolStatus
}

// New returns a Writer on a view that the caller runs. It does nothing until Run.
func New(patcher patcher, seen *view.View, recorder event.Recorder, metrics *Metrics) (*Writer, error) {
	w := &Writer{
		patcher:  patcher,
		recorder: recorder,
		metrics:  metrics,
		pools:    seen.Pools,
		ips:      seen.FloatingIPs.GetStore(),
		synced:   []cache.DoneChecker{seen.PoolsSynced},
		dirty:    wakeup.New(),
		clock:    clock.RealClock{},
		written:  map[string]written{},
		orphans:  map[types.UID]bool{},
	}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandlerFuncs{
		seen.IPPools: {
			// View.Pools signals other changes when it can compile them. Before that, a
			// status would have the new generation and the old counts.
			UpdateFunc: func(before, after any) {
				if !pools.Respecified(before.(*v1alpha1.IPPool), after.(*v1alpha1.IPPool)) {
					w.mark()
				}
			},
		},
		seen.FloatingIPs: {
			AddFunc:    func(any) { w.mark() },
			UpdateFunc: func(any, any) { w.mark() },
			DeleteFunc: func(any) { w.mark() },
		},
	} {
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return nil, fmt.Errorf("add an event handler: %w", err)
		}
		w.synced = append(w.synced, registration.HasSyncedChecker())
	}
	return w, nil
}

// mark asks for another round.
func (w *Writer) mark() {
	w.dirty.Send()
}

// Run writes status until ctx ends. It blocks.
func (w *Writer) Run(ctx context.Context) {
	if !cache.WaitFor(ctx, "the pool status caches", w.synced...) {
		return
	}
	respecified := w.pools.Follow()
	for {
		if err := w.round(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Failed to write pool status, will retry")
			w.mark()
		}
		select {
		case <-ctx.Done():
			return
		case <-w.clock.After(Interval):
		}
		select {
		case <-ctx.Done():
			return
		case <-w.dirty:
		case <-respecified:
		}
	}
}

// round computes the status of every pool in one pass over the addresses, writes changed
// ones and publishes the numbers.
func (w *Writer) round(ctx context.Context) error {
	objects, snapshot := w.pools.Look()
	var ips []*v1alpha1.FloatingIP
	for _, object := range w.ips.List() {
		ips = append(ips, object.(*v1alpha1.FloatingIP))
	}
	before := w.statuses(objects)
	tally := count(objects, snapshot, slices.Values(ips))
	after := compute(objects, before, snapshot, tally, metav1.NewTime(w.clock.Now()).Rfc3339Copy())
	w.metrics.publish(objects, after, tally)
	w.tellOrphans(tally.orphans)

	var errs []error
	for i, object := range objects {
		if same(&before[i], &after[i]) {
			continue
		}
		if err := w.write(ctx, object, &after[i]); err != nil {
			errs = append(errs, err)
			// With so many errors, the cause is not a single pool.
			if len(errs) == mostErrors {
				break
			}
			continue
		}
		w.tellChanges(object, &before[i], &after[i])
	}
	return errors.Join(errs...)
}

// statuses returns the present statuses of the pools: the written status if the watch is
// behind.
func (w *Writer) statuses(objects []*v1alpha1.IPPool) []v1alpha1.IPPoolStatus {
	statuses := make([]v1alpha1.IPPoolStatus, len(objects))
	ahead := make(map[string]written, len(w.written))
	for i, object := range objects {
		statuses[i] = object.Status
		last := w.written[object.Name]
		if order, err := resourceversion.CompareResourceVersion(object.ResourceVersion, last.version); err == nil && order < 0 && last.uid == object.UID {
			statuses[i] = last.status
			ahead[object.Name] = last
		}
	}
	w.written = ahead
	return statuses
}

// patched is a status as a merge patch. Without omitempty, it removes stale namespaces.
type patched struct {
	*v1alpha1.IPPoolStatus
	Namespaces []v1alpha1.NamespaceShare `json:"namespaces"`
}

// write writes a status. It does not fail if the pool is gone.
func (w *Writer) write(ctx context.Context, object *v1alpha1.IPPool, status *v1alpha1.IPPoolStatus) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": object.UID}, "status": patched{status, status.Namespaces}})
	if err != nil {
		return fmt.Errorf("encode the status of IPPool %s: %w", object.Name, err)
	}
	updated, err := w.patcher.Patch(ctx, object.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return nil
	case err != nil:
		return fmt.Errorf("write the status of IPPool %s: %w", object.Name, err)
	}
	w.written[object.Name] = written{uid: object.UID, version: updated.ResourceVersion, status: *status}
	return nil
}
