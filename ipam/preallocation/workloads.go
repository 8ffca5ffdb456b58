// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appsclient "k8s.io/client-go/kubernetes/typed/apps/v1"
	appslisters "k8s.io/client-go/listers/apps/v1"

	"github.com/berth-dev/berth/ipam/event"
)

// Reasons of events. docs/reference/events.md is made of the comments.
const (
	// EventPreallocated (Normal on Deployment, ReplicaSet): the addresses for all its replicas are
	// there, and some were missing.
	EventPreallocated = "Preallocated"
	// EventPreallocationFailed (Warning on Deployment, ReplicaSet): some addresses for its replicas
	// cannot be taken, or the request of the pod template is invalid; the note begins with the reason.
	// Do: enlarge the pools, or correct the template, see docs/explanation/release.md#preallocate.
	EventPreallocationFailed = "PreallocationFailed"
)

// Parts has the dependencies of workloads. The caller runs the informers.
type Parts struct {
	Kube     kubernetes.Interface
	Recorder event.Recorder
	Metrics  *Metrics
	Factory  informers.SharedInformerFactory
}

// workloads preallocates the addresses of Deployments and ReplicaSets that ask for it.
//
// The scheduler gives addresses to the pods of the same workloads, and neither waits for
// the other. If both take addresses at once, the workload has too many for a moment, and
// the reclaimer frees addresses without a pod.
type workloads struct {
	States[said]

	loop     *Loop
	apps     appsclient.AppsV1Interface
	recorder event.Recorder
	metrics  *Metrics

	deployments appslisters.DeploymentLister
	replicaSets appslisters.ReplicaSetLister
}

// said is the memory of a workload's events.
type said struct {
	// lacked: addresses were missing since the last event, or since the start. told is
	// the reason in the last Warning event.
	lacked bool
	told   string
}

// AddWorkloads has a loop reconcile workloads.
func AddWorkloads(loop *Loop, parts Parts) error {
	apps := parts.Factory.Apps().V1()
	w := &workloads{
		loop: loop, apps: parts.Kube.AppsV1(), recorder: parts.Recorder, metrics: parts.Metrics,
		deployments: apps.Deployments().Lister(), replicaSets: apps.ReplicaSets().Lister(),
	}
	loop.Add(w, kindDeployment, kindReplicaSet)
	return errors.Join(
		Watch(loop, apps.Deployments().Informer(), func(before, after *appsv1.Deployment) {
			workloadChanged(w, kindDeployment, before, after)
		}),
		Watch(loop, apps.ReplicaSets().Informer(), func(before, after *appsv1.ReplicaSet) {
			workloadChanged(w, kindReplicaSet, before, after)
		}),
	)
}

// Affected implements Owners.
func (w *workloads) Affected(key Key) []Key {
	if !w.has(key) {
		return nil
	}
	return []Key{key}
}

// workloadChanged enqueues a workload that preallocates, or did before.
func workloadChanged[T any, W interface {
	*T
	workload
}](w *workloads, kind string, before, after W) {
	object := after
	if object == nil {
		object = before
	}
	k := Key{kind, object.GetNamespace(), object.GetName()}
	if _, asks := setOf(object); !asks && !w.has(k) {
		return
	}
	if before != nil && after != nil && before.GetUID() == object.GetUID() && before.GetGeneration() == object.GetGeneration() &&
		(before.GetDeletionTimestamp() == nil) == (object.GetDeletionTimestamp() == nil) &&
		(metav1.GetControllerOfNoCopy(before) == nil) == (metav1.GetControllerOfNoCopy(object) == nil) {
		return // its status
	}
	w.loop.Enqueue(k)
}

// find returns the set of a workload in the cache; false if it does not preallocate.
func (w *workloads) find(k Key) (set, bool) {
	var object workload
	var err error
	if k.Kind == kindReplicaSet {
		object, err = w.replicaSets.ReplicaSets(k.Namespace).Get(k.Name)
	} else {
		object, err = w.deployments.Deployments(k.Namespace).Get(k.Name)
	}
	if err != nil {
		return set{}, false
	}
	return setOf(object)
}

// Reconcile takes the missing addresses of one workload.
func (w *workloads) Reconcile(ctx context.Context, k Key) (again time.Duration, err error) {
	found, ok := w.find(k)
	if !ok {
		w.metrics.forget(k)
		w.Forget(k)
		w.loop.StopWaiting(k)
		return 0, nil
	}
	m := w.Of(k, found.meta.GetUID())
	request, err := found.request()
	if err != nil {
		w.loop.StopWaiting(k)
		w.report(k, &found, &m.State, &Goal{}, &Problem{ReasonInvalid, err.Error()})
		return 0, nil //nolint:nilerr // it was reported, and only a change of the workload helps
	}
	namespace, err := w.loop.Namespace(k.Namespace)
	if err != nil {
		return 0, err
	}
	request.NamespaceMeta = namespace
	goal, has := found.goal(request, w.loop.Pools(), w.loop.Addresses(k))
	goal.Confirm = func(ctx context.Context) error { return w.stillThere(ctx, &found) }
	if left := m.Progress.Unsettled(has, w.loop.Now()); left > 0 {
		w.report(k, &found, &m.State, &goal, m.Progress.Shortfall(goal))
		return left, nil
	}
	wrong, again, err := w.loop.Take(ctx, k, &m.Progress, goal, has)
	if err != nil {
		return 0, err
	}
	w.report(k, &found, &m.State, &goal, wrong)
	return again, nil
}

// stillThere asks the API server whether the workload is still as in the cache.
func (w *workloads) stillThere(ctx context.Context, found *set) error {
	if found.kind == kindReplicaSet {
		return StillThere(ctx, found.meta, w.apps.ReplicaSets(found.meta.GetNamespace()).Get)
	}
	return StillThere(ctx, found.meta, w.apps.Deployments(found.meta.GetNamespace()).Get)
}

// report sets the metrics and emits events about changes. It reports that all addresses
// are there only if some were missing since this process started.
func (w *workloads) report(k Key, found *set, s *said, goal *Goal, wrong *Problem) {
	missing, size := goal.missing()
	w.metrics.set(k, missing, size)
	switch {
	case wrong == nil && s.lacked:
		w.tell(found, event.Normal(EventPreallocated, fmt.Sprintf("All %d addresses of the replicas are there.", size)))
		s.lacked, s.told = false, ""
	case wrong.failed() && wrong.Reason != s.told:
		w.tell(found, event.Warning(EventPreallocationFailed, wrong.Reason+": "+wrong.Message))
		s.lacked, s.told = true, wrong.Reason
	case wrong != nil:
		s.lacked = true
	}
}

func (w *workloads) tell(found *set, e event.Event) {
	e.Record(w.recorder, found.meta, nil, "KeepFixedSet")
}
