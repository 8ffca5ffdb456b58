// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/lastnode"
	"github.com/berth-dev/berth/ipam/tombstone"
	"github.com/berth-dev/berth/ipam/view"
)

// Indexes of the FloatingIP informer.
const (
	// byPodUID has the addresses of a pod: those that it holds, and those whose twin it is.
	byPodUID = "podUID"
	byOwner  = "owner"
	// byPodName has the addresses that are kept for a pod name or belong to a pod.
	byPodName = "podName"
	// byNode has the addresses that are kept for a node, or that a Node owns.
	byNode = "ownerNode"
	// byNamespace has the addresses of owners in a namespace.
	byNamespace = "ownerNamespace"
	// byLastNode has the addresses in cooldown that a node may still carry.
	byLastNode = "lastNode"
	// byPool has the addresses that depend on a field of the pool: addresses in cooldown, addresses of
	// an IPClaim with a retainFor, and addresses of Nodes.
	byPool = "byPool"
)

func indexers() cache.Indexers {
	of := func(key func(spec *v1alpha1.FloatingIPSpec) string) cache.IndexFunc {
		return func(object any) ([]string, error) {
			if key := key(&object.(*v1alpha1.FloatingIP).Spec); key != "" {
				return []string{key}, nil
			}
			return nil, nil
		}
	}
	ofOwner := func(key func(owner *v1alpha1.Owner) string) cache.IndexFunc {
		return of(func(spec *v1alpha1.FloatingIPSpec) string {
			if spec.Owner == nil {
				return ""
			}
			return key(spec.Owner)
		})
	}
	return cache.Indexers{
		byPodUID: func(object any) (uids []string, _ error) {
			spec := &object.(*v1alpha1.FloatingIP).Spec
			if spec.Pod != nil {
				uids = append(uids, string(spec.Pod.UID))
			}
			if spec.Twin != nil {
				uids = append(uids, string(spec.Twin.Pod.UID))
			}
			return uids, nil
		},
		byOwner: ofOwner(func(owner *v1alpha1.Owner) string { return ownerKey(owner.Kind, owner.Namespace, owner.Name) }),
		byPodName: ofOwner(func(owner *v1alpha1.Owner) string {
			switch {
			case isPod(owner):
				return podKey(owner.Namespace, owner.Name)
			case owner.PodName != "":
				return podKey(owner.Namespace, owner.PodName)
			}
			return ""
		}),
		byNamespace: ofOwner(func(owner *v1alpha1.Owner) string { return owner.Namespace }),
		byNode: ofOwner(func(owner *v1alpha1.Owner) string {
			if owner.IsNode() {
				return owner.Name
			}
			return owner.NodeName
		}),
		byLastNode: of(func(spec *v1alpha1.FloatingIPSpec) string {
			if spec.LastNode == nil || spec.Owner != nil || spec.ReleasedAt == nil {
				return ""
			}
			return spec.LastNode.Name
		}),
		byPool: of(func(spec *v1alpha1.FloatingIPSpec) string {
			cools := spec.Owner == nil && spec.ReleasedAt != nil
			if cools || spec.Owner.IsNode() || spec.Owner != nil && spec.Owner.IsClaim() && spec.Pod == nil && spec.RetainFor != nil {
				return spec.Pool
			}
			return ""
		}),
	}
}

func ownerKey(kind, namespace, name string) string { return kind + "/" + namespace + "/" + name }

func podKey(namespace, name string) string { return namespace + "/" + name }

func (r *Reclaimer) indexed(index, key string) []*v1alpha1.FloatingIP {
	return view.Indexed[*v1alpha1.FloatingIP](r.index, index, key)
}

// Recorded returns the addresses that record a pod, as the holder or as the twin, as the cache has
// them. It does not block.
func (r *Reclaimer) Recorded(uid types.UID) []*v1alpha1.FloatingIP {
	return r.indexed(byPodUID, string(uid))
}

// livePod returns the pod that an address records, if the cache has it and it is alive;
// else nil.
func (r *Reclaimer) livePod(ip *v1alpha1.FloatingIP) *v1.Pod {
	if ip.Spec.Pod == nil || ip.Spec.Owner == nil {
		return nil
	}
	pod, err := r.cachedPod(ip.Spec.Owner.Namespace, ip.Spec.Pod.Name)
	if err != nil || pod.UID != ip.Spec.Pod.UID || finished(pod) {
		return nil
	}
	return pod
}

// liveHolder returns the result of livePod and all addresses that record this pod.
func (r *Reclaimer) liveHolder(ip *v1alpha1.FloatingIP) (*v1.Pod, []*v1alpha1.FloatingIP) {
	pod := r.livePod(ip)
	if pod == nil {
		return nil, nil
	}
	return pod, r.Recorded(pod.UID)
}

// asked returns the number of addresses that the live pod of an address requests.
func (r *Reclaimer) asked(ip *v1alpha1.FloatingIP) int64 {
	if pod := r.livePod(ip); pod != nil {
		return requested(&pod.Spec)
	}
	return 0
}

// watch adds the indexes and the event handlers.
func (r *Reclaimer) watch(config Config) error {
	apps, core := config.Factory.Apps().V1(), config.Factory.Core().V1()
	if err := config.View.FloatingIPs.AddIndexers(indexers()); err != nil {
		return fmt.Errorf("index FloatingIPs: %w", err)
	}
	type source struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}
	sources := []source{
		{config.View.FloatingIPs, r.addressHandler()},
		{config.View.IPPools, handler(r.poolChanged, reconsider)},
		{config.View.IPClaims, handler(r.workloadChanged("IPClaim"), reconsider)},
		{core.Pods().Informer(), r.noteEnd(handler(r.podChanged, podChanged))},
		{core.Namespaces().Informer(), handler(r.namespaceChanged, madeAgain)},
		{core.Nodes().Informer(), handler(r.nodeChanged, nodeChanged)},
		{apps.StatefulSets().Informer(), handler(r.workloadChanged("StatefulSet"), updated)},
		{apps.Deployments().Informer(), handler(r.workloadChanged("Deployment"), updated)},
		{apps.DaemonSets().Informer(), handler(r.workloadChanged("DaemonSet"), reconsider)},
		{apps.ReplicaSets().Informer(), r.controlled("ReplicaSet", reconsider)},
		{config.Factory.Batch().V1().Jobs().Informer(), r.controlled("Job", jobChanged)},
		{config.Factory.Batch().V1().CronJobs().Informer(), handler(r.workloadChanged("CronJob"), updated)},
	}
	if config.Services {
		sources = append(sources, source{core.Services().Informer(), handler(r.workloadChanged("Service"), reconsider)})
	}
	for _, watched := range sources {
		registration, err := watched.informer.AddEventHandler(watched.handler)
		if err != nil {
			return fmt.Errorf("add an event handler: %w", err)
		}
		r.synced = append(r.synced, registration.HasSyncedChecker())
	}
	return nil
}

// handler calls changed with the last state of an object that is created, deleted, or
// updated in a way that matters reports.
func handler[T any](changed func(object T, gone bool), matters func(before, after T) bool) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { changed(object.(T), false) },
		UpdateFunc: func(before, after any) {
			if matters(before.(T), after.(T)) {
				changed(after.(T), false)
			}
		},
		DeleteFunc: func(object any) { changed(tombstone.LastSeen(object).(T), true) },
	}
}

// podEnd is the deletion of a pod: whether it was bound, and when its event came. Safe for
// concurrent use.
type podEnd struct {
	bound bool
	at    time.Time

	mu sync.Mutex
	// doubted says that the API server must be asked.
	doubted bool
	// told are the names of addresses for which the deletion has counted.
	told map[string]bool
}

// doubt makes every later decision ask the API server.
func (e *podEnd) doubt() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.doubted = true
}

func (r *Reclaimer) doubt(pod *v1alpha1.PodReference) {
	if end, known := r.deleted.Get(pod.UID); known {
		end.(*podEnd).doubt()
	}
}

// believed is how long a deletion event of the watch counts without a question to the API server.
const believed = 30 * time.Second

// counts returns whether the deletion counts for an address without a question to the API server.
// It counts once, at the look that its event triggers. The API server may be restored from a backup
// after this look, or before a second look if the first could not write. Then the pod may exist
// again, and this process may see the FloatingIP before the pod.
func (e *podEnd) counts(name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	first := !e.doubted && !e.told[name] && time.Since(e.at) < believed
	if e.told == nil {
		e.told = map[string]bool{}
	}
	e.told[name] = true
	return first
}

// addressHandler makes decisions ask the API server about a FloatingIP's pod if the FloatingIP
// comes from a list, or in an older version than before: a backup of etcd may have been restored,
// and the pod may exist again. It also notes deleted FloatingIPs whose address must go into
// cooldown. Only a real deletion event counts: with a tombstone after a broken watch, the cooldown
// may be over already.
func (r *Reclaimer) addressHandler() cache.ResourceEventHandler {
	changed := func(ip *v1alpha1.FloatingIP, again bool) {
		if again && ip.Spec.Pod != nil {
			r.doubt(ip.Spec.Pod)
		}
		if again && ip.Spec.Twin != nil {
			r.doubt(&ip.Spec.Twin.Pod)
		}
		r.addressChanged(ip, false)
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { changed(object.(*v1alpha1.FloatingIP), true) },
		UpdateFunc: func(before, after any) {
			ip := after.(*v1alpha1.FloatingIP)
			order, err := resourceversion.CompareResourceVersion(before.(*v1alpha1.FloatingIP).ResourceVersion, ip.ResourceVersion)
			changed(ip, err != nil || order >= 0)
		},
		DeleteFunc: func(object any) {
			if ip, ok := object.(*v1alpha1.FloatingIP); ok {
				if cooldown := r.cooldown(ip); ip.Spec.IsToRest(cooldown) {
					r.deletions.begin(ip, cooldown)
				}
			}
			r.addressChanged(tombstone.LastSeen(object).(*v1alpha1.FloatingIP), true)
		},
	}
}

// noteEnd notes deleted pods, and whether they were bound, before it passes the event
// on. Only a real deletion event counts. A tombstone after a broken watch may hold a
// state from before the pod was bound, and the pod may exist again.
func (r *Reclaimer) noteEnd(next cache.ResourceEventHandler) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			pod := object.(*v1.Pod)
			// A backup of etcd was restored.
			r.deleted.Remove(pod.UID)
			r.ended.Remove(pod.UID)
			r.noteStop(pod, lastnode.HasStopped(pod))
			next.OnAdd(object, false)
		},
		UpdateFunc: func(before, after any) {
			pod := after.(*v1.Pod)
			r.noteStop(pod, lastnode.HasStopped(pod))
			if lastnode.WasRejected(before.(*v1.Pod), pod) && requested(&pod.Spec) > 0 {
				r.rejected.Add(pod.UID, nil)
			}
			next.OnUpdate(before, after)
		},
		DeleteFunc: func(object any) {
			if pod, ok := object.(*v1.Pod); ok {
				r.deleted.Add(pod.UID, &podEnd{bound: pod.Spec.NodeName != "", at: time.Now()})
				r.noteStop(pod, pod.Spec.NodeName == "" || lastnode.HasStopped(pod))
			}
			next.OnDelete(object)
		},
	}
}

// noteStop notes whether the node of a pod has stopped carrying the pod's addresses. It is also
// called before the pod is deleted, because a deleted pod leaves the cache before the event comes.
func (r *Reclaimer) noteStop(pod *v1.Pod, stopped bool) {
	switch {
	case !stopped:
		r.stopped.Remove(pod.UID)
	case pod.Spec.NodeName == "" || requested(&pod.Spec) > 0:
		r.stopped.Add(pod.UID, nil)
	}
}

// reconsider reports whether a workload changed in more than its status.
func reconsider(before, after metav1.Object) bool {
	return before.GetUID() != after.GetUID() || before.GetGeneration() != after.GetGeneration() ||
		(before.GetDeletionTimestamp() == nil) != (after.GetDeletionTimestamp() == nil) ||
		controllerUID(before) != controllerUID(after)
}

func controllerUID(object metav1.Object) types.UID {
	if controller := metav1.GetControllerOfNoCopy(object); controller != nil {
		return controller.UID
	}
	return ""
}

func podChanged(before, after *v1.Pod) bool {
	return before.UID != after.UID || before.Spec.NodeName != after.Spec.NodeName || finished(before) != finished(after) ||
		controllerUID(before) != controllerUID(after) ||
		before.Annotations[v1alpha1.AnnotationTookOver] != after.Annotations[v1alpha1.AnnotationTookOver] ||
		before.Annotations[v1alpha1.AnnotationMigrated] != after.Annotations[v1alpha1.AnnotationMigrated] ||
		!slices.Equal(before.Status.PodIPs, after.Status.PodIPs)
}

// updated is reconsider for workloads with a status that shows whether an update is done.
func updated(before, after metav1.Object) bool {
	return reconsider(before, after) || isUpdating(before) != isUpdating(after)
}

func jobChanged(before, after metav1.Object) bool {
	return reconsider(before, after) || ended(before.(*batchv1.Job)) != ended(after.(*batchv1.Job))
}

// nodeChanged compares slim nodes, which have only taints that matter.
func nodeChanged(before, after *v1.Node) bool {
	return before.UID != after.UID || !maps.Equal(before.Labels, after.Labels) || len(before.Spec.Taints) != len(after.Spec.Taints) ||
		!slices.Equal(before.Status.Addresses, after.Status.Addresses)
}

func (r *Reclaimer) enqueue(list []*v1alpha1.FloatingIP) {
	for _, ip := range list {
		r.queue.Add(ip.Name)
	}
}

// addressChanged also enqueues the other addresses of the pod and of the pod name. It enqueues the
// lowest-ranked addresses of the owner, or the addresses of its pod names without pods, because
// they may be surplus now.
func (r *Reclaimer) addressChanged(ip *v1alpha1.FloatingIP, gone bool) {
	if gone || ip.Spec.Owner != nil {
		r.left.Delete(ip.Name)
		r.told.Delete(ip.Name)
	}
	if gone {
		r.rankings.remove(ip.Name)
	} else {
		r.deletions.Delete(ip.Name)
	}
	if !gone && r.rankings.put(ip) {
		for _, last := range r.rankings.lastYielding(ip.Spec.Owner) {
			r.queue.Add(last)
		}
	}
	r.queue.Add(ip.Name)
	if gone || ip.Spec.Pod == nil {
		return
	}
	r.enqueue(r.Recorded(ip.Spec.Pod.UID))
	if owner := ip.Spec.Owner; owner != nil && owner.PodName != "" {
		r.enqueue(r.indexed(byPodName, podKey(owner.Namespace, owner.PodName)))
		if numbersItself(owner) {
			r.enqueue(slices.DeleteFunc(r.indexed(byOwner, ownerKey(owner.Kind, owner.Namespace, owner.Name)), hasUser))
		}
	}
}

func (r *Reclaimer) podChanged(pod *v1.Pod, gone bool) {
	held := r.Recorded(pod.UID)
	r.rankings.podChanged(held)
	if len(held) > 0 && (gone || finished(pod)) {
		if _, known := r.ended.Get(pod.UID); !known {
			r.ended.Add(pod.UID, time.Now())
		}
	}
	r.enqueue(held)
	r.enqueue(r.indexed(byPodName, podKey(pod.Namespace, pod.Name)))
}

// namespaceChanged enqueues the addresses of a namespace that is gone or may have been
// created again.
func (r *Reclaimer) namespaceChanged(namespace *v1.Namespace, _ bool) {
	r.enqueue(r.indexed(byNamespace, namespace.Name))
}

func madeAgain(before, after *v1.Namespace) bool { return before.UID != after.UID }

func (r *Reclaimer) nodeChanged(node *v1.Node, _ bool) {
	r.enqueue(r.indexed(byNode, node.Name))
	r.enqueue(r.indexed(byLastNode, node.Name))
}

func (r *Reclaimer) poolChanged(pool metav1.Object, _ bool) {
	r.enqueue(r.indexed(byPool, pool.GetName()))
}

func (r *Reclaimer) ownerChanged(kind, namespace, name string) {
	r.enqueue(r.indexed(byOwner, ownerKey(kind, namespace, name)))
}

func (r *Reclaimer) workloadChanged(kind string) func(object metav1.Object, gone bool) {
	return func(object metav1.Object, _ bool) { r.ownerChanged(kind, object.GetNamespace(), object.GetName()) }
}

// controlled handles objects that stand between pods and their workload. It also enqueues the
// addresses of the object's controller, because the controller may have adopted the object. It does
// not do this at each step of a rolling update, which scales the object.
func (r *Reclaimer) controlled(kind string, matters func(before, after metav1.Object) bool) cache.ResourceEventHandler {
	changed := func(object metav1.Object, owned bool) {
		r.ownerChanged(kind, object.GetNamespace(), object.GetName())
		if controller := metav1.GetControllerOfNoCopy(object); controller != nil && owned {
			r.ownerChanged(controller.Kind, object.GetNamespace(), controller.Name)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { changed(object.(metav1.Object), true) },
		UpdateFunc: func(before, after any) {
			if before, after := before.(metav1.Object), after.(metav1.Object); matters(before, after) {
				changed(after, before.GetUID() != after.GetUID() || controllerUID(before) != controllerUID(after))
			}
		},
		DeleteFunc: func(object any) { changed(tombstone.LastSeen(object).(metav1.Object), true) },
	}
}

// isBuiltIn reports whether a workload is of a built-in API group.
func isBuiltIn(owner *v1alpha1.Owner) bool {
	switch groupKind(owner.APIVersion, owner.Kind).Group {
	case "", appsv1.GroupName, batchv1.GroupName, v1alpha1.GroupName:
		return true
	}
	return false
}

// needsOwnerOf reports whether the decision about an address depends on workloads of a
// group.
func needsOwnerOf(ip *v1alpha1.FloatingIP, group string) bool {
	return ip.Spec.Owner != nil && needsOwner(&ip.Spec) && groupKind(ip.Spec.Owner.APIVersion, ip.Spec.Owner.Kind).Group == group
}
