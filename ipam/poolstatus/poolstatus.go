// SPDX-License-Identifier: Apache-2.0

// Package poolstatus keeps the status of IPPools: how many addresses there are,
// in use, retained, reserved and free, and whether the pool is usable at all. It
// reads pools and FloatingIPs and writes nothing but IPPool status.
package poolstatus

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

// Interval is the least time between two rounds of status writes: a count that
// is a second old is good enough for a person, and a busy scheduler would
// otherwise make a status write per pod.
const Interval = time.Second

// patcher writes an IPPool's status. Blocking.
type patcher interface {
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*v1alpha1.IPPool, error)
}

// Writer keeps pool status. One runs at a time: the leader.
type Writer struct {
	patcher    patcher
	pools, ips cache.Store
	synced     []cache.DoneChecker
	dirty      chan struct{}
	clock      clock.Clock
}

// New returns a Writer on informers that the caller runs. It does nothing until
// Run.
func New(patcher patcher, poolInformer, ipInformer cache.SharedIndexInformer) (*Writer, error) {
	w := &Writer{
		patcher: patcher,
		pools:   poolInformer.GetStore(),
		ips:     ipInformer.GetStore(),
		dirty:   make(chan struct{}, 1),
		clock:   clock.RealClock{},
	}
	for _, informer := range []cache.SharedIndexInformer{poolInformer, ipInformer} {
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { w.mark() },
			UpdateFunc: func(any, any) { w.mark() },
			DeleteFunc: func(any) { w.mark() },
		})
		if err != nil {
			return nil, fmt.Errorf("add an event handler: %w", err)
		}
		w.synced = append(w.synced, registration.HasSyncedChecker())
	}
	return w, nil
}

// mark asks for another round.
func (w *Writer) mark() {
	select {
	case w.dirty <- struct{}{}:
	default:
	}
}

// Run writes status until ctx ends. It blocks.
func (w *Writer) Run(ctx context.Context) {
	if !cache.WaitFor(ctx, "the pool status caches", w.synced...) {
		return
	}
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
		}
	}
}

// round computes the status of every pool in one pass over the addresses and
// writes those that changed.
func (w *Writer) round(ctx context.Context) error {
	var objects []*v1alpha1.IPPool
	for _, object := range w.pools.List() {
		objects = append(objects, object.(*v1alpha1.IPPool))
	}
	var ips []*v1alpha1.FloatingIP
	for _, object := range w.ips.List() {
		ips = append(ips, object.(*v1alpha1.FloatingIP))
	}
	statuses := compute(objects, ips, metav1.NewTime(w.clock.Now()))
	for i, object := range objects {
		if equality.Semantic.DeepEqual(object.Status, statuses[i]) {
			continue
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": object.UID}, "status": statuses[i]})
		if err != nil {
			return fmt.Errorf("encode the status of IPPool %s: %w", object.Name, err)
		}
		_, err = w.patcher.Patch(ctx, object.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("write the status of IPPool %s: %w", object.Name, err)
		}
	}
	return nil
}

// compute returns the status of each pool. Pure.
func compute(objects []*v1alpha1.IPPool, ips []*v1alpha1.FloatingIP, now metav1.Time) []v1alpha1.IPPoolStatus {
	snapshot := pools.Compile(objects)
	position := make(map[string]int, len(objects))
	statuses := make([]v1alpha1.IPPoolStatus, len(objects))
	for i, object := range objects {
		position[object.Name] = i
		statuses[i].ObservedGeneration = object.Generation
		statuses[i].Conditions = append([]metav1.Condition(nil), object.Status.Conditions...)
		if at, ok := snapshot.Index(object.Name); ok {
			statuses[i].Capacity = clamp(snapshot.Pools()[at].Capacity())
		}
	}
	for _, ip := range ips {
		addr, err := netip.ParseAddr(ip.Spec.Address)
		if err != nil {
			continue
		}
		at, ok := snapshot.Home(addr)
		if !ok {
			if i, ok := position[ip.Spec.Pool]; ok {
				statuses[i].Outside++
			}
			continue
		}
		status := &statuses[position[snapshot.Pools()[at].Name]]
		switch {
		case ip.Spec.Reserved:
			status.Reserved++
		case ip.Spec.Pod != nil:
			status.Allocated++
		default:
			status.Retained++
		}
	}
	for i, object := range objects {
		status := &statuses[i]
		status.Free = status.Capacity - status.Allocated - status.Retained - status.Reserved
		for _, condition := range conditions(object, status, snapshot) {
			condition.ObservedGeneration = object.Generation
			condition.LastTransitionTime = now
			meta.SetStatusCondition(&status.Conditions, condition)
		}
	}
	return statuses
}

func clamp(n uint64) int64 {
	return int64(min(n, math.MaxInt64))
}

func conditions(object *v1alpha1.IPPool, status *v1alpha1.IPPoolStatus, snapshot *pools.Snapshot) []metav1.Condition {
	ready := metav1.Condition{Type: v1alpha1.PoolReady, Status: metav1.ConditionTrue, Reason: "Valid", Message: "The scheduler allocates from the pool."}
	overlaps := snapshot.Overlaps(object.Name)
	switch err := snapshot.Invalid(object.Name); {
	case err != nil:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, "Invalid", err.Error()
	case object.Spec.Disabled:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, "Disabled", "spec.disabled is true: nothing new is allocated, what is in use stays."
	case len(overlaps) > 0:
		var texts []string
		for _, overlap := range overlaps {
			texts = append(texts, fmt.Sprintf("%s (pool %q)", overlap.Range, overlap.With))
		}
		ready.Reason, ready.Message = "Overlap", "Older pools keep these addresses: "+strings.Join(texts, ", ")
	}
	exhausted := metav1.Condition{Type: v1alpha1.PoolExhausted, Status: metav1.ConditionFalse, Reason: "AddressesFree", Message: "There are free addresses."}
	if status.Free <= 0 {
		exhausted.Status, exhausted.Reason, exhausted.Message = metav1.ConditionTrue, "NoAddressFree",
			fmt.Sprintf("All %d addresses are taken: %d allocated, %d retained, %d reserved.", status.Capacity, status.Allocated, status.Retained, status.Reserved)
	}
	return []metav1.Condition{ready, exhausted}
}
