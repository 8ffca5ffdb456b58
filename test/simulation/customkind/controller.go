// SPDX-License-Identifier: Apache-2.0

package customkind

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/berth-dev/berth/ipam/tombstone"
	"github.com/berth-dev/berth/test/simulation/kubelet"
)

// controller of the workloads of some kinds.
type controller struct {
	api     dynamic.Interface
	kube    kubernetes.Interface
	report  func(workload string, err error)
	queue   workqueue.TypedRateLimitingInterface[key]
	listers map[Kind]cache.GenericLister
}

type key struct {
	kind            Kind
	namespace, name string
}

// hashLabel is the label that says of which template something is.
const hashLabel = "hash"

// Run runs the controllers of kinds until ctx ends or stop is called, which waits for
// them. report is told of requests that failed and are repeated, unless they failed because
// another write came first.
func Run(ctx context.Context, api dynamic.Interface, kube kubernetes.Interface, kinds []Kind, report func(workload string, err error)) (stop func(), err error) {
	c := &controller{
		api: api, kube: kube, report: report, listers: map[Kind]cache.GenericLister{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[key](20*time.Millisecond, time.Second)),
	}
	custom := dynamicinformer.NewDynamicSharedInformerFactory(api, 0)
	factory := informers.NewSharedInformerFactory(kube, 0)
	var synced []cache.InformerSynced
	var errs []error
	follow := func(informer cache.SharedIndexInformer, changed func(object metav1.Object)) {
		handle := func(object any) { changed(tombstone.LastSeen(object).(metav1.Object)) }
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: handle, DeleteFunc: handle, UpdateFunc: func(_, after any) { handle(after) },
		})
		if err != nil {
			errs = append(errs, err)
			return
		}
		synced = append(synced, registration.HasSynced)
	}
	// A pod or ReplicaSet may belong to a workload of any kind that has the name
	// of its label, also one that is an orphan.
	byLabel := func(object metav1.Object) {
		for _, kind := range kinds {
			c.queue.Add(key{kind, object.GetNamespace(), object.GetLabels()["app"]})
		}
	}
	follow(factory.Core().V1().Pods().Informer(), byLabel)
	follow(factory.Apps().V1().ReplicaSets().Informer(), byLabel)
	for _, kind := range kinds {
		informer := custom.ForResource(kind.GVR())
		c.listers[kind] = informer.Lister()
		follow(informer.Informer(), func(object metav1.Object) { c.queue.Add(key{kind, object.GetNamespace(), object.GetName()}) })
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("run custom kinds: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	custom.Start(ctx.Done())
	factory.Start(ctx.Done())
	var workers sync.WaitGroup
	stop = func() {
		cancel()
		c.queue.ShutDown()
		workers.Wait()
		custom.Shutdown()
		factory.Shutdown()
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		stop()
		return nil, errors.New("run custom kinds: their controllers do not get to know their objects")
	}
	for range 4 {
		workers.Go(func() {
			for c.next(ctx) {
			}
		})
	}
	return stop, nil
}

func (c *controller) next(ctx context.Context) bool {
	next, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	defer c.queue.Done(next)
	err := c.reconcile(ctx, next)
	if err == nil {
		c.queue.Forget(next)
		return true
	}
	// Others change pods meanwhile, and names are taken until the last holder is
	// gone.
	expected := apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err)
	if !expected && ctx.Err() == nil {
		c.report(fmt.Sprintf("%s %s/%s", next.kind.Resource, next.namespace, next.name), err)
	}
	c.queue.AddRateLimited(next)
	return true
}

// workload names the workload to be reconciled.
type workload struct {
	*Object
	kind Kind
	hash string // of the template
}

func (c *controller) reconcile(ctx context.Context, key key) error {
	if _, err := c.listers[key.kind].ByNamespace(key.namespace).Get(key.name); err != nil {
		return nil //nolint:nilerr // deleted, or of another kind
	}
	live, err := c.api.Resource(key.kind.GVR()).Namespace(key.namespace).Get(ctx, key.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	object, err := Read(live)
	if err != nil || object.DeletionTimestamp != nil {
		return err // the garbage collector's
	}
	text, err := json.Marshal(object.Spec.Template)
	if err != nil {
		return err
	}
	hash := fnv.New32a()
	_, _ = hash.Write(text) // a hash takes everything
	w := &workload{Object: object, kind: key.kind, hash: fmt.Sprintf("%x", hash.Sum32())}
	if key.kind.Sets {
		return c.rollOut(ctx, w)
	}
	return c.replace(ctx, w)
}

// patcher is a client that changes objects of one kind.
type patcher[T any] interface {
	Patch(ctx context.Context, name string, kind types.PatchType, patch []byte, options metav1.PatchOptions, subresources ...string) (T, error)
}

// owns says whether an object is the workload's, which adopts orphans if its kind
// does.
func owns[T any](ctx context.Context, c *controller, w *workload, objects patcher[T], object metav1.Object) (bool, error) {
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
		return owner.UID == w.UID, nil
	}
	if !w.kind.Adopts || object.GetDeletionTimestamp() != nil {
		return false, nil
	}
	// Maybe the workload itself was deleted, and left the orphan.
	now, err := c.api.Resource(w.kind.GVR()).Namespace(w.Namespace).Get(ctx, w.Name, metav1.GetOptions{})
	if err != nil || now.GetUID() != w.UID || now.GetDeletionTimestamp() != nil {
		return false, err
	}
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": object.GetUID(), "ownerReferences": w.refs()}})
	if err != nil {
		return false, err
	}
	_, err = objects.Patch(ctx, object.GetName(), types.MergePatchType, text, metav1.PatchOptions{})
	return true, err
}

func (w *workload) refs() []metav1.OwnerReference {
	return []metav1.OwnerReference{*metav1.NewControllerRef(w, w.GroupVersionKind())}
}

// labels of what the workload makes.
func (w *workload) labels() map[string]string {
	labels := map[string]string{"app": w.Name, hashLabel: w.hash}
	maps.Copy(labels, w.Spec.Template.Labels)
	return labels
}

// replace keeps the pods of a workload without ReplicaSets.
func (c *controller) replace(ctx context.Context, w *workload) error {
	api := c.kube.CoreV1().Pods(w.Namespace)
	list, err := api.List(ctx, metav1.ListOptions{LabelSelector: "app=" + w.Name})
	if err != nil {
		return err
	}
	replicas := int(w.Spec.Replicas)
	missing := map[string]bool{} // names
	if w.kind.Numbered {
		for i := range replicas {
			missing[fmt.Sprintf("%s-%d", w.Name, w.kind.First+i)] = true
		}
	}
	g, err := c.group(ctx, w, api, list.Items, missing)
	if err != nil {
		return err
	}
	old, current, surplus, status := g.old, g.current, g.surplus, g.status
	surge := w.kind.Surge
	if len(old) == 0 || replicas == 0 {
		surge = 0
	}
	byName := func(a, b *v1.Pod) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(old, byName)
	slices.SortFunc(current, byName)
	pods := slices.Concat(old, current) // pods of an older template go first
	switch more := len(pods) - replicas - surge; {
	case more > 0:
		surplus = append(surplus, pods[:more]...)
	case more == 0 && len(old) > 0 && status.Ready == status.Replicas:
		surplus = append(surplus, old[0])
	}
	if err := c.setStatus(ctx, w, status); err != nil {
		return err
	}
	for _, pod := range surplus {
		err := api.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	names := slices.Collect(maps.Keys(missing))
	if !w.kind.Numbered {
		names = make([]string, max(0, min(replicas+surge-len(old), replicas)-len(current)))
	}
	for _, name := range names {
		if err := c.create(ctx, w, name); err != nil {
			return err
		}
	}
	return nil
}

// groups are a workload's pods: of an older template, of the current one, and too many.
type groups struct {
	old, current, surplus []*v1.Pod
	status                Status
}

// group sorts the pods, and removes the names that they have from missing.
func (c *controller) group(ctx context.Context, w *workload, api patcher[*v1.Pod], pods []v1.Pod, missing map[string]bool) (*groups, error) {
	g := &groups{status: Status{ObservedGeneration: w.Generation}}
	for i := range pods {
		pod := &pods[i]
		ours, err := owns(ctx, c, w, api, pod)
		switch {
		case err != nil:
			return nil, err
		case !ours || pod.DeletionTimestamp != nil:
			continue
		case kubelet.Finished(pod) || w.kind.Numbered && !missing[pod.Name]:
			g.surplus = append(g.surplus, pod)
			continue
		case pod.Labels[hashLabel] == w.hash:
			g.current = append(g.current, pod)
			g.status.Updated++
		default:
			g.old = append(g.old, pod)
		}
		delete(missing, pod.Name)
		g.status.Replicas++
		if kubelet.IsReady(pod) {
			g.status.Ready++
		}
	}
	return g, nil
}

func (c *controller) setStatus(ctx context.Context, w *workload, status Status) error {
	if !w.kind.Status || w.Status == status {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	_, err = c.api.Resource(w.kind.GVR()).Namespace(w.Namespace).Patch(ctx, w.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// create makes a pod; without a name it gets a random one.
func (c *controller) create(ctx context.Context, w *workload, name string) error {
	pod := &v1.Pod{ObjectMeta: *w.Spec.Template.ObjectMeta.DeepCopy(), Spec: *w.Spec.Template.Spec.DeepCopy()}
	if pod.Name = name; name == "" {
		pod.GenerateName = w.Name + "-"
	}
	pod.Labels, pod.OwnerReferences = w.labels(), w.refs()
	_, err := c.kube.CoreV1().Pods(w.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// rollOut keeps the ReplicaSets of a Rollout: one of the present template, and
// earlier ones until they are empty.
func (c *controller) rollOut(ctx context.Context, w *workload) error {
	api := c.kube.AppsV1().ReplicaSets(w.Namespace)
	list, err := api.List(ctx, metav1.ListOptions{LabelSelector: "app=" + w.Name})
	if err != nil {
		return err
	}
	scale := func(set *appsv1.ReplicaSet, replicas int32) error {
		if *set.Spec.Replicas == replicas {
			return nil
		}
		set = set.DeepCopy()
		set.Spec.Replicas = &replicas
		_, err := api.Update(ctx, set, metav1.UpdateOptions{})
		return err
	}
	var current, old *appsv1.ReplicaSet
	for i := range list.Items {
		set := &list.Items[i]
		ours, err := owns(ctx, c, w, api, set)
		switch {
		case err != nil:
			return err
		case !ours || set.DeletionTimestamp != nil:
		case set.Labels[hashLabel] == w.hash:
			current = set
		case *set.Spec.Replicas > 0:
			old = set
		}
	}
	want := w.Spec.Replicas
	if current == nil {
		replicas := want
		if old != nil {
			replicas = 0
		}
		template := w.Spec.Template
		template.Labels = w.labels()
		_, err := api.Create(ctx, &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: w.Name + "-" + w.hash, Labels: w.labels(), OwnerReferences: w.refs()},
			Spec: appsv1.ReplicaSetSpec{
				Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: w.labels()}, Template: template,
			},
		}, metav1.CreateOptions{})
		return err
	}
	if old == nil {
		return scale(current, want)
	}
	now, before := *current.Spec.Replicas, *old.Spec.Replicas
	switch {
	case now < want && now+before <= want:
		return scale(current, now+1)
	case current.Status.ReadyReplicas == now && current.Status.ObservedGeneration == current.Generation:
		return scale(old, before-1)
	}
	return nil
}
