// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"context"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// updates is how often the first Deployment is updated, and spareAddresses how many it has beyond
// its replicas while it is updated as often again: one for each of the pods that its strategy
// replaces at a time.
const updates, spareAddresses = 3, 2

// update updates the first Deployment, and notes how long its updates took together and how many
// attempts to bind a pod failed.
func (w *world) update(ctx context.Context, o Options, r *run) (err error) {
	ctx, cancel := context.WithTimeout(ctx, o.Limit)
	defer cancel()
	if r.updated, err = w.updateTimes(ctx, 0); err != nil {
		return err
	}
	if r.floating {
		if r.updatedSpare, err = w.updateTimes(ctx, spareAddresses); err != nil {
			return err
		}
	}
	events, err := w.kube.EventsV1().Events(name).List(ctx, metav1.ListOptions{FieldSelector: "reason=FailedScheduling"})
	if err != nil {
		return err
	}
	for i := range events.Items {
		if event := &events.Items[i]; strings.Contains(event.Note, "Bind plugin") {
			r.unbound++
			if event.Series != nil {
				r.unbound += int(event.Series.Count) - 1
			}
		}
	}
	o.Progress("%d updates of a Deployment took %.1f s, with %d failed attempts to bind", updates, r.updated.Seconds(), r.unbound)
	return nil
}

// updateTimes returns how long the updates take together.
func (w *world) updateTimes(ctx context.Context, spare int) (time.Duration, error) {
	began := time.Now()
	for n := range updates {
		patch := fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"update":"%d with %d","%s":"%d"}}}}}`, n, spare, v1alpha1.AnnotationSpareAddresses, spare)
		updated, err := w.kube.AppsV1().Deployments(name).Patch(ctx, first, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			return 0, err
		}
		if err := w.waitUpdated(ctx, updated); err != nil {
			return 0, fmt.Errorf("wait for update %d of Deployment %s with %d spare addresses: %w", n+1, first, spare, err)
		}
	}
	return time.Since(began), nil
}

// waitUpdated blocks until all pods of the Deployment are available and of its present template.
func (w *world) waitUpdated(ctx context.Context, of *appsv1.Deployment) error {
	watcher, err := w.kube.AppsV1().Deployments(name).Watch(ctx, metav1.ListOptions{
		ResourceVersion: of.ResourceVersion, FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, of.Name).String(),
	})
	if err != nil {
		return err
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		if event.Type == watch.Error {
			return fmt.Errorf("watch it: %v", event.Object)
		}
		if now, ok := event.Object.(*appsv1.Deployment); ok && isUpdated(now, of.Generation) {
			return nil
		}
	}
	return fmt.Errorf("its watch ended: %w", context.Cause(ctx))
}

func isUpdated(d *appsv1.Deployment, generation int64) bool {
	s, want := &d.Status, *d.Spec.Replicas
	return s.ObservedGeneration >= generation && s.UpdatedReplicas == want && s.AvailableReplicas == want && s.Replicas == want
}
