// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appsclient "k8s.io/client-go/kubernetes/typed/apps/v1"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/tombstone"
	"github.com/berth-dev/berth/ipam/view"
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

// Parts has the dependencies of Workloads. The caller runs the view and the informers.
// New adds an index to the FloatingIP informer.
type Parts struct {
	Kube         kubernetes.Interface
	Preallocator Preallocator
	Recorder     event.Recorder
	Metrics      *Metrics

	View    *view.View
	Factory informers.SharedInformerFactory
}

// Workloads preallocates the fixed sets of Deployments and ReplicaSets that ask for it.
// One runs at a time: the leader.
//
// The scheduler gives addresses to the pods of the same workloads, and neither waits for
// the other. If both take addresses at once, the workload has too many for a moment, and
// the reclaimer frees addresses without a pod.
type Workloads struct {
	apps     appsclient.AppsV1Interface
	taker    Taker
	recorder event.Recorder
	metrics  *Metrics

	deployments appslisters.DeploymentLister
	replicaSets appslisters.ReplicaSetLister
	namespaces  corelisters.NamespaceLister
	ips         cache.Indexer
	pools       *pools.Source
	synced      []cache.DoneChecker
	queue       workqueue.TypedRateLimitingInterface[key]
	states      States[key, state]
}

// state is remembered for a workload between reconciles.
type state struct {
	progress Progress
	// lacked: addresses were missing since the last event, or since the start. told is
	// the reason in the last Warning event.
	lacked bool
	told   string
}

// workers is the number of workloads that are reconciled concurrently.
const workers = 4

// byWorkload is the index of FloatingIPs by the workload that owns them.
const byWorkload = "workload"

func workloadIndex(object any) ([]string, error) {
	if k, ok := keyOf(object.(*v1alpha1.FloatingIP)); ok {
		return []string{k.String()}, nil
	}
	return nil, nil
}

// New returns Workloads. It does nothing until Run.
func New(parts Parts) (*Workloads, error) {
	apps := parts.Factory.Apps().V1()
	w := &Workloads{
		apps: parts.Kube.AppsV1(), recorder: parts.Recorder, metrics: parts.Metrics,
		deployments: apps.Deployments().Lister(), replicaSets: apps.ReplicaSets().Lister(),
		namespaces: parts.Factory.Core().V1().Namespaces().Lister(),
		ips:        parts.View.FloatingIPs.GetIndexer(), pools: parts.View.Pools,
		synced: []cache.DoneChecker{parts.View.PoolsSynced},
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[key](Interval, patience),
			workqueue.TypedRateLimitingQueueConfig[key]{Name: "preallocation"}),
	}
	quotas := parts.Factory.Core().V1().ResourceQuotas()
	w.taker = Taker{
		Preallocator: parts.Preallocator, Pools: w.pools.Snapshot, Clock: clock.RealClock{},
		Quota: func(namespace string) *int64 { return QuotaOf(quotas.Lister(), namespace) },
	}
	if err := parts.View.FloatingIPs.AddIndexers(cache.Indexers{byWorkload: workloadIndex}); err != nil {
		return nil, fmt.Errorf("index FloatingIPs by workload: %w", err)
	}
	for _, watched := range []struct {
		informer cache.SharedIndexInformer
		changed  func(before, after any)
	}{
		{apps.Deployments().Informer(), func(before, after any) { w.workloadChanged(kindDeployment, before, after) }},
		{apps.ReplicaSets().Informer(), func(before, after any) { w.workloadChanged(kindReplicaSet, before, after) }},
		{parts.View.FloatingIPs, w.addressChanged},
		{parts.Factory.Core().V1().Namespaces().Informer(), w.namespaceChanged},
		{quotas.Informer(), w.quotaChanged},
	} {
		registration, err := watched.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { watched.changed(nil, object) },
			UpdateFunc: watched.changed,
			DeleteFunc: func(object any) { watched.changed(tombstone.LastSeen(object), nil) },
		})
		if err != nil {
			return nil, fmt.Errorf("add an event handler: %w", err)
		}
		w.synced = append(w.synced, registration.HasSyncedChecker())
	}
	return w, nil
}

// workloadChanged enqueues a workload that preallocates its set, or did before.
func (w *Workloads) workloadChanged(kind string, before, after any) {
	now := after
	if now == nil {
		now = before
	}
	object := now.(workload)
	k := key{kind, object.GetNamespace(), object.GetName()}
	if _, asks := setOf(object); !asks && !w.states.Has(k) {
		return
	}
	if was, ok := before.(metav1.Object); ok && after != nil && was.GetUID() == object.GetUID() && was.GetGeneration() == object.GetGeneration() &&
		(was.GetDeletionTimestamp() == nil) == (object.GetDeletionTimestamp() == nil) &&
		(metav1.GetControllerOfNoCopy(was) == nil) == (metav1.GetControllerOfNoCopy(object) == nil) {
		return // its status
	}
	w.queue.Add(k)
}

func (w *Workloads) addressChanged(before, after any) {
	was, _ := before.(*v1alpha1.FloatingIP)
	is, _ := after.(*v1alpha1.FloatingIP)
	for _, ip := range []*v1alpha1.FloatingIP{was, is} {
		if ip == nil {
			continue
		}
		if k, ok := keyOf(ip); ok && w.states.Has(k) {
			w.queue.AddAfter(k, Gather)
		}
	}
	if namespace, ok := Freed(was, is); ok {
		for _, k := range w.states.Keys(func(k key, s *state) bool {
			return s.progress.WaitsFor(was.Family()) && (namespace == "" || namespace == k.namespace)
		}) {
			w.queue.AddAfter(k, Interval)
		}
	}
}

func (w *Workloads) namespaceChanged(before, after any) {
	is, ok := after.(*v1.Namespace)
	if !ok {
		return
	}
	if was, ok := before.(*v1.Namespace); ok && was.UID == is.UID && labels.Equals(was.Labels, is.Labels) {
		return
	}
	for _, k := range w.states.Keys(func(k key, _ *state) bool { return k.namespace == is.Name }) {
		w.queue.Add(k)
	}
}

// quotaChanged enqueues the workloads of a namespace with another quota.
func (w *Workloads) quotaChanged(before, after any) {
	was, _ := before.(*v1.ResourceQuota)
	is, _ := after.(*v1.ResourceQuota)
	if was != nil && is != nil && equality.Semantic.DeepEqual(was.Spec, is.Spec) {
		return
	}
	if is == nil {
		is = was
	}
	for _, k := range w.states.Keys(func(k key, _ *state) bool { return k.namespace == is.Namespace }) {
		w.queue.Add(k)
	}
}

// Run takes addresses until ctx ends. It blocks until its workers are done.
func (w *Workloads) Run(ctx context.Context) {
	Loop[key]{
		Name: "the caches of preallocation", Synced: w.synced, Pools: w.pools, Queue: w.queue, Reconcile: w.reconcile,
		Keys: func() []key { return w.states.Keys(func(key, *state) bool { return true }) },
		Failed: func(k key, err error) {
			klog.FromContext(ctx).Error(err, "Failed to preallocate the addresses of a workload, will retry", "workload", k)
		},
	}.Run(ctx, workers)
}

// find returns the set of a workload in the cache; false if it does not preallocate.
func (w *Workloads) find(k key) (set, bool) {
	var object workload
	var err error
	if k.kind == kindReplicaSet {
		object, err = w.replicaSets.ReplicaSets(k.namespace).Get(k.name)
	} else {
		object, err = w.deployments.Deployments(k.namespace).Get(k.name)
	}
	if err != nil {
		return set{}, false
	}
	return setOf(object)
}

// reconcile takes the missing addresses of one workload. It returns when to look again; 0
// means at the next event.
func (w *Workloads) reconcile(ctx context.Context, k key) (again time.Duration, err error) {
	found, ok := w.find(k)
	if !ok {
		w.metrics.forget(k)
		w.states.Forget(k)
		return 0, nil
	}
	s := w.states.Of(k, found.meta.GetUID())
	request, err := found.request()
	if err != nil {
		s.progress.Wait()
		w.report(k, &found, s, &Goal{}, &Problem{ReasonInvalid, err.Error()})
		return 0, nil //nolint:nilerr // it was reported, and only a change of the workload helps
	}
	namespace, err := w.namespaces.Get(k.namespace)
	if err != nil {
		return 0, fmt.Errorf("get namespace %s: %w", k.namespace, err)
	}
	request.NamespaceMeta = namespace
	goal, has := found.goal(request, w.pools.Snapshot(), view.Indexed[*v1alpha1.FloatingIP](w.ips, byWorkload, k.String()))
	goal.Confirm = func(ctx context.Context) error { return w.stillThere(ctx, &found) }
	if left := s.progress.Unsettled(has, w.taker.Clock.Now()); left > 0 {
		w.report(k, &found, s, &goal, s.progress.Shortfall(goal))
		return left, nil
	}
	wrong, again, err := s.progress.Take(ctx, w.taker, goal, has)
	if err != nil {
		return 0, err
	}
	w.report(k, &found, s, &goal, wrong)
	return again, nil
}

// stillThere asks the API server whether the workload is still as in the cache.
func (w *Workloads) stillThere(ctx context.Context, found *set) error {
	if found.kind == kindReplicaSet {
		return StillThere(ctx, found.meta, w.apps.ReplicaSets(found.meta.GetNamespace()).Get)
	}
	return StillThere(ctx, found.meta, w.apps.Deployments(found.meta.GetNamespace()).Get)
}

// report sets the metrics and emits events about changes. It reports that all addresses
// are there only if some were missing since this process started.
func (w *Workloads) report(k key, found *set, s *state, goal *Goal, wrong *Problem) {
	missing, size := goal.missing()
	w.metrics.set(k, missing, size)
	switch {
	case wrong == nil && s.lacked:
		w.tell(found, event.Normal(EventPreallocated, fmt.Sprintf("All %d addresses of the replicas are there.", size)))
		s.lacked, s.told = false, ""
	case wrong.Failed() && wrong.Reason != s.told:
		w.tell(found, event.Warning(EventPreallocationFailed, wrong.Reason+": "+wrong.Message))
		s.lacked, s.told = true, wrong.Reason
	case wrong != nil:
		s.lacked = true
	}
}

func (w *Workloads) tell(found *set, e event.Event) {
	e.Record(w.recorder, found.meta, nil, "KeepFixedSet")
}
