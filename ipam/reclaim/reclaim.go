// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/store"
)

// Indexes of the FloatingIP informer.
const (
	byPodUID = "podUID"
	byOwner  = "owner"
)

// Indexers are what a Reclaimer needs the FloatingIP informer to have.
func Indexers() cache.Indexers {
	return cache.Indexers{
		byPodUID: func(object any) ([]string, error) {
			if ip := object.(*v1alpha1.FloatingIP); ip.Spec.Pod != nil {
				return []string{string(ip.Spec.Pod.UID)}, nil
			}
			return nil, nil
		},
		byOwner: func(object any) ([]string, error) {
			if owner := object.(*v1alpha1.FloatingIP).Spec.Owner; owner != nil {
				return []string{ownerKey(owner.Kind, owner.Namespace, owner.Name)}, nil
			}
			return nil, nil
		},
	}
}

func ownerKey(kind, namespace, name string) string { return kind + "/" + namespace + "/" + name }

// ips writes FloatingIPs; both fail with store.ErrChanged if the object is not as
// seen. Blocking, safe in parallel.
type ips interface {
	Update(ctx context.Context, seen *v1alpha1.FloatingIP, spec v1alpha1.FloatingIPSpec) (*v1alpha1.FloatingIP, error)
	Delete(ctx context.Context, seen *v1alpha1.FloatingIP) error
}

// Reclaimer frees addresses by release policy. One runs at a time: the leader.
type Reclaimer struct {
	client    kubernetes.Interface
	ips       ips
	index     cache.Indexer
	pods      corelisters.PodLister
	workloads workloads
	queue     workqueue.TypedRateLimitingInterface[string]
	synced    []cache.DoneChecker
}

// New returns a Reclaimer on informers that the caller runs; floatingIPs must
// have Indexers. It does nothing until Run.
func New(client kubernetes.Interface, ips ips, floatingIPs cache.SharedIndexInformer, factory informers.SharedInformerFactory) (*Reclaimer, error) {
	apps := factory.Apps().V1()
	pods := factory.Core().V1().Pods()
	r := &Reclaimer{
		client: client,
		ips:    ips,
		index:  floatingIPs.GetIndexer(),
		pods:   pods.Lister(),
		workloads: workloads{
			client: client, statefulSets: apps.StatefulSets().Lister(), deployments: apps.Deployments().Lister(),
		},
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](50*time.Millisecond, time.Minute),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "reclaim"}),
	}
	for _, watched := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandlerFuncs
	}{
		{floatingIPs, everyChange(r.addressChanged)},
		{pods.Informer(), everyChange(r.podChanged)},
		{apps.StatefulSets().Informer(), everyChange(r.workloadChanged)},
		{apps.Deployments().Informer(), everyChange(r.workloadChanged)},
	} {
		registration, err := watched.informer.AddEventHandler(watched.handler)
		if err != nil {
			return nil, fmt.Errorf("add an event handler: %w", err)
		}
		r.synced = append(r.synced, registration.HasSyncedChecker())
	}
	return r, nil
}

func everyChange(handle func(object any)) cache.ResourceEventHandlerFuncs {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    handle,
		UpdateFunc: func(_, after any) { handle(after) },
		DeleteFunc: func(object any) {
			if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			handle(object)
		},
	}
}

func (r *Reclaimer) enqueue(object any) { r.queue.Add(object.(*v1alpha1.FloatingIP).Name) }

func (r *Reclaimer) enqueueIndexed(index, key string) {
	objects, err := r.index.ByIndex(index, key)
	if err != nil {
		panic(fmt.Sprintf("the FloatingIP informer was made without reclaim.Indexers: %v", err))
	}
	for _, object := range objects {
		r.enqueue(object)
	}
}

// addressChanged also looks at other addresses of the pod: one of them may be
// surplus now.
func (r *Reclaimer) addressChanged(object any) {
	r.enqueue(object)
	if pod := object.(*v1alpha1.FloatingIP).Spec.Pod; pod != nil {
		r.enqueueIndexed(byPodUID, string(pod.UID))
	}
}

func (r *Reclaimer) podChanged(object any) {
	pod := object.(*v1.Pod)
	r.enqueueIndexed(byPodUID, string(pod.UID))
	r.enqueueIndexed(byOwner, ownerKey("Pod", pod.Namespace, pod.Name))
}

func (r *Reclaimer) workloadChanged(object any) {
	switch w := object.(type) {
	case *appsv1.StatefulSet:
		r.enqueueIndexed(byOwner, ownerKey("StatefulSet", w.Namespace, w.Name))
	case *appsv1.Deployment:
		r.enqueueIndexed(byOwner, ownerKey("Deployment", w.Namespace, w.Name))
	}
}

// Run reconciles with some workers until ctx ends. It blocks until they are
// done.
func (r *Reclaimer) Run(ctx context.Context, workers int) {
	if !cache.WaitFor(ctx, "the reclaimer's caches", r.synced...) {
		return
	}
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for r.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	r.queue.ShutDown()
	group.Wait()
}

func (r *Reclaimer) next(ctx context.Context) bool {
	name, shutdown := r.queue.Get()
	if shutdown {
		return false
	}
	defer r.queue.Done(name)
	err := r.reconcile(ctx, name)
	switch {
	case err == nil:
		r.queue.Forget(name)
	case errors.Is(err, store.ErrChanged):
		// The watch brings what it is now, unless it did before we wrote.
		r.queue.AddRateLimited(name)
	default:
		klog.FromContext(ctx).Error(err, "Failed to reconcile a floating IP, will retry", "ip", name)
		r.queue.AddRateLimited(name)
	}
	return true
}

func (r *Reclaimer) reconcile(ctx context.Context, name string) error {
	object, exists, err := r.index.GetByKey(name)
	if err != nil || !exists {
		return err
	}
	ip := object.(*v1alpha1.FloatingIP)
	if ip.Spec.Reserved || ip.Spec.Owner == nil {
		return nil
	}
	pod, podExists, err := r.pod(ctx, ip)
	if err != nil {
		return err
	}
	if pod != nil {
		if pod.Spec.NodeName == "" || pod.Spec.NodeName == ip.Spec.Node {
			return nil
		}
		if isNamed(ip, pod) {
			return r.correctNode(ctx, ip, pod.Spec.NodeName)
		}
		if !r.hasAnother(ip, pod) {
			return nil
		}
		if ip.Generation == 1 {
			// Written once, for this pod, which was bound with another: nobody ever
			// had it.
			return r.free(ctx, ip)
		}
	}
	var owner workload
	if ip.Spec.ReleasePolicy == v1alpha1.ReleaseRetain {
		if owner, err = r.workloads.find(ctx, ip.Spec.Owner, podExists); err != nil {
			return err
		}
	}
	switch decide(&ip.Spec, false, owner, r.rank(ip)) {
	case free:
		return r.free(ctx, ip)
	case retain:
		return r.retain(ctx, ip)
	}
	return nil
}

func (r *Reclaimer) free(ctx context.Context, ip *v1alpha1.FloatingIP) error {
	if err := r.ips.Delete(ctx, ip); err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("Freed a floating IP", "ip", ip.Spec.Address, "pool", ip.Spec.Pool, "policy", ip.Spec.ReleasePolicy, "owner", ip.Spec.Owner.Name, "namespace", ip.Spec.Owner.Namespace)
	return nil
}

func (r *Reclaimer) retain(ctx context.Context, ip *v1alpha1.FloatingIP) error {
	spec := ip.Spec.DeepCopy()
	spec.Pod = nil
	spec.Node = ""
	now := metav1.Now()
	spec.Since = &now
	if _, err := r.ips.Update(ctx, ip, *spec); err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("Retained a floating IP for its owner", "ip", ip.Spec.Address, "pool", ip.Spec.Pool, "policy", ip.Spec.ReleasePolicy, "owner", ip.Spec.Owner.Name, "namespace", ip.Spec.Owner.Namespace)
	return nil
}

// isNamed says whether the annotation that came with the pod's Binding names the
// address. The pod's author can change it: it proves nothing by itself.
func isNamed(ip *v1alpha1.FloatingIP, pod *v1.Pod) bool {
	return slices.Contains(strings.Split(pod.Annotations[v1alpha1.AnnotationFloatingIPs], ","), ip.Name)
}

// hasAnother says whether another address is recorded for the pod on the node
// where it is bound. An address of the pod that is recorded for another node is
// then surplus: an attempt to schedule the pod claimed it, and a later one, or
// another scheduler, bound the pod with the other address.
func (r *Reclaimer) hasAnother(ip *v1alpha1.FloatingIP, pod *v1.Pod) bool {
	objects, err := r.index.ByIndex(byPodUID, string(pod.UID))
	if err != nil {
		return false
	}
	return slices.ContainsFunc(objects, func(object any) bool {
		other := object.(*v1alpha1.FloatingIP)
		return other.Name != ip.Name && other.Spec.Node == pod.Spec.NodeName
	})
}

// correctNode writes where the pod is. A scheduler that was slow wrote where it
// meant to bind the pod, after another had bound it.
func (r *Reclaimer) correctNode(ctx context.Context, ip *v1alpha1.FloatingIP, node string) error {
	spec := ip.Spec.DeepCopy()
	spec.Node = node
	if _, err := r.ips.Update(ctx, ip, *spec); err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("Corrected the node of a floating IP", "ip", ip.Spec.Address, "was", ip.Spec.Node, "node", node)
	return nil
}

// pod returns the pod that holds the address if it is alive: there under the
// recorded UID, and not finished. exists is also true for a finished one, and
// for the pod that a retained address belongs to.
func (r *Reclaimer) pod(ctx context.Context, ip *v1alpha1.FloatingIP) (holder *v1.Pod, exists bool, err error) {
	owner := ip.Spec.Owner
	name, uid := owner.PodName, owner.UID
	if ip.Spec.Pod != nil {
		name, uid = ip.Spec.Pod.Name, ip.Spec.Pod.UID
	} else if owner.Kind != "Pod" {
		return nil, false, nil
	}
	pod, err := r.pods.Pods(owner.Namespace).Get(name)
	if err != nil || pod.UID != uid {
		pod, err = r.client.CoreV1().Pods(owner.Namespace).Get(ctx, name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("get pod %s/%s: %w", owner.Namespace, name, err)
	}
	if pod.UID != uid {
		return nil, false, nil
	}
	if finished := pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed; ip.Spec.Pod == nil || finished {
		return nil, true, nil
	}
	return pod, true, nil
}

// rank is the position of the address among those its owner keeps, for the same
// pod name if the owner's pods have names that last, the oldest first.
func (r *Reclaimer) rank(ip *v1alpha1.FloatingIP) int {
	owner := ip.Spec.Owner
	objects, err := r.index.ByIndex(byOwner, ownerKey(owner.Kind, owner.Namespace, owner.Name))
	if err != nil {
		return 0
	}
	rank := 0
	for _, object := range objects {
		other := object.(*v1alpha1.FloatingIP)
		if other.Spec.Owner.UID == owner.UID && other.Spec.Owner.PodName == owner.PodName && older(other, ip) {
			rank++
		}
	}
	return rank
}

func older(a, b *v1alpha1.FloatingIP) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) < 0
}

// Slim is a transform for the pod informer: of a pod, only what Reclaimer reads
// is kept, since a cluster has many.
func Slim(object any) (any, error) {
	pod, ok := object.(*v1.Pod)
	if !ok {
		return object, nil
	}
	slim := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion},
		Spec:       v1.PodSpec{NodeName: pod.Spec.NodeName},
		Status:     v1.PodStatus{Phase: pod.Status.Phase},
	}
	if names, ok := pod.Annotations[v1alpha1.AnnotationFloatingIPs]; ok {
		slim.Annotations = map[string]string{v1alpha1.AnnotationFloatingIPs: names}
	}
	return slim, nil
}
