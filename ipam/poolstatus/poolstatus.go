// SPDX-License-Identifier: Apache-2.0

package poolstatus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/tombstone"
	"github.com/berth-dev/berth/ipam/view"
	"github.com/berth-dev/berth/ipam/wakeup"
)

// Interval is the minimum time between two rounds. Without it, a busy scheduler would cause a
// status write for each pod.
const Interval = time.Second

// Late is the longest time between a change of a pool's addresses and the write of its status,
// while the API server answers. A condition, such as that no address is free, is written at once,
// and that none is in use. Each write reaches every client that watches pools, and with the overlay
// these are all nodes, so a pool that goes on changing is written ever more rarely: after
// [Interval], then after twice as long each time, up to Late.
const Late = 30 * time.Second

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
	nodes    corelisters.NodeLister
	synced   []cache.DoneChecker
	dirty    wakeup.Signal // asks for another round

	mu sync.Mutex
	// reachedOf is the snapshot that reached is of; nil after a node changed.
	reachedOf *pools.Snapshot
	// changed has the names of the FloatingIPs that the watch told of since the last round; nil before
	// the first one: a standby has no rounds, and must not remember each name.
	changed map[string]struct{}

	// reached is which pools serve a node.
	reached []bool
	// tally counts the addresses of counted, by name. Rounds keep both up to date, because a
	// pass over all addresses in each second would cost more than all else that a large cluster's
	// controller does.
	tally   *tally
	counted map[string]*v1alpha1.FloatingIP
	// written has the last write of each pool, by name.
	written map[string]written
	// orphans has the addresses of deleted pools; true if an event was emitted.
	orphans map[types.UID]bool
}

// written is a written status with the resource version that it got.
type written struct {
	uid     types.UID
	version string
	status  v1alpha1.IPPoolStatus
	at      time.Time
	// pause is the time until the next write.
	pause time.Duration
}

// pauseAfter returns the pause after another write: twice the last one, which halves with each
// [Late] without a write. So a pool is written once per Late in the long run, however it changes.
func (w *written) pauseAfter(now time.Time) time.Duration {
	pause := w.pause
	for idle := now.Sub(w.at); idle >= Late && pause > 0; idle -= Late {
		pause /= 2
	}
	return min(max(2*pause, Interval), Late)
}

// New returns a Writer on a view and an informer that the caller runs. It does nothing until Run.
func New(patcher patcher, seen *view.View, nodes coreinformers.NodeInformer, recorder event.Recorder, metrics *Metrics) (*Writer, error) {
	w := &Writer{
		patcher:  patcher,
		recorder: recorder,
		metrics:  metrics,
		pools:    seen.Pools,
		ips:      seen.FloatingIPs.GetStore(),
		nodes:    nodes.Lister(),
		synced:   []cache.DoneChecker{seen.PoolsSynced},
		dirty:    wakeup.New(),
		counted:  map[string]*v1alpha1.FloatingIP{},
		written:  map[string]written{},
		orphans:  map[types.UID]bool{},
	}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		seen.IPPools: tombstone.Handler(func(before, after *v1alpha1.IPPool) {
			// View.Pools signals other changes when it can compile them. Before that, a
			// status would have the new generation and the old counts.
			if !pools.Respecified(before, after) {
				w.dirty.Send()
			}
		}),
		nodes.Informer(): tombstone.Handler(w.nodeChanged),
		seen.FloatingIPs: cache.ResourceEventHandlerFuncs{
			AddFunc:    w.change,
			UpdateFunc: func(_, after any) { w.change(after) },
			DeleteFunc: w.change,
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

// change has the next round count a FloatingIP anew.
func (w *Writer) change(object any) {
	name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object)
	if err != nil {
		utilruntime.HandleError(fmt.Errorf("count an address: %w", err))
		return
	}
	w.mu.Lock()
	if w.changed != nil {
		w.changed[name] = struct{}{}
	}
	w.mu.Unlock()
	w.dirty.Send()
}

// nodeChanged has the next round look anew which pools serve a node.
func (w *Writer) nodeChanged(before, after *v1.Node) {
	if before != nil && after != nil && maps.Equal(before.Labels, after.Labels) && slices.Equal(pools.InternalIPs(before), pools.InternalIPs(after)) {
		return
	}
	w.mu.Lock()
	w.reachedOf = nil
	w.mu.Unlock()
	w.dirty.Send()
}

// reach returns which pools serve a node.
func (w *Writer) reach(snapshot *pools.Snapshot) []bool {
	w.mu.Lock()
	known := w.reachedOf == snapshot
	w.reachedOf = snapshot
	w.mu.Unlock()
	if !known {
		nodes, _ := w.nodes.List(labels.Everything()) // A lister reads a cache and does not fail.
		w.reached = snapshot.Reached(slices.Values(nodes))
	}
	return w.reached
}

// count brings the tally up to date with the caches.
func (w *Writer) count(objects []*v1alpha1.IPPool, snapshot *pools.Snapshot) {
	w.mu.Lock()
	changed := w.changed
	w.changed = map[string]struct{}{}
	w.mu.Unlock()
	if changed == nil {
		changed = map[string]struct{}{}
		for _, name := range w.ips.ListKeys() {
			changed[name] = struct{}{}
		}
	}
	same := w.tally != nil && w.tally.counts(objects, snapshot)
	for name := range changed {
		if before := w.counted[name]; before != nil && same {
			w.tally.add(before, -1)
		}
		after := view.Get[v1alpha1.FloatingIP](w.ips, name)
		if after == nil {
			delete(w.counted, name)
			continue
		}
		w.counted[name] = after
		if same {
			w.tally.add(after, 1)
		}
	}
	if !same {
		w.tally = count(objects, snapshot, maps.Values(w.counted))
	}
}

// Run writes status until ctx ends. It blocks.
func (w *Writer) Run(ctx context.Context) {
	if !cache.WaitFor(ctx, "the pool status caches", w.synced...) {
		return
	}
	respecified := w.pools.Follow()
	for {
		due, err := w.round(ctx)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Failed to write pool status, will retry")
			w.dirty.Send()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(Interval):
		}
		var turn <-chan time.Time
		if !due.IsZero() {
			turn = time.After(time.Until(due))
		}
		select {
		case <-ctx.Done():
			return
		case <-w.dirty:
		case <-respecified:
		case <-turn:
		}
	}
}

// round computes the status of every pool, writes changed ones and publishes the numbers. It
// returns the time at which the first of the changed ones may be written whose pause is not over,
// or zero.
func (w *Writer) round(ctx context.Context) (due time.Time, err error) {
	objects, snapshot := w.pools.Look()
	w.count(objects, snapshot)
	before := w.statuses(objects)
	now := time.Now()
	after := compute(objects, before, snapshot, w.reach(snapshot), w.tally, metav1.NewTime(now).Rfc3339Copy())
	w.metrics.publish(objects, after, w.tally)
	w.tellOrphans(w.tally.orphans)

	var errs []error
	for i, object := range objects {
		if same(&before[i], &after[i]) {
			continue
		}
		// Who edits a pool waits for its conditions, others act on them, and the policies
		// in-use.berth.dev and ippools.berth.dev ask whether any address is in use.
		waited := before[i].ObservedGeneration != after[i].ObservedGeneration || !sameConditions(&before[i], &after[i]) || isUsed(&before[i]) != isUsed(&after[i])
		if last := w.written[object.Name]; !waited && last.at.Add(last.pause).After(now) {
			if next := last.at.Add(last.pause); due.IsZero() || next.Before(due) {
				due = next
			}
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
		for _, e := range changes(&before[i], &after[i]) {
			w.tell(object, e)
		}
	}
	return due, errors.Join(errs...)
}

// statuses returns the present statuses of the pools: the written status if the watch is
// behind. It forgets writes of pools that are gone.
func (w *Writer) statuses(objects []*v1alpha1.IPPool) []v1alpha1.IPPoolStatus {
	statuses := make([]v1alpha1.IPPoolStatus, len(objects))
	present := make(map[string]written, len(w.written))
	for i, object := range objects {
		statuses[i] = object.Status
		last, ok := w.written[object.Name]
		if !ok || last.uid != object.UID {
			continue
		}
		if order, err := resourceversion.CompareResourceVersion(object.ResourceVersion, last.version); err == nil && order < 0 {
			statuses[i] = last.status
		}
		present[object.Name] = last
	}
	w.written = present
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
	last, now := w.written[object.Name], time.Now()
	w.written[object.Name] = written{uid: object.UID, version: updated.ResourceVersion, status: *status, at: now, pause: last.pauseAfter(now)}
	return nil
}
