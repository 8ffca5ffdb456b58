// SPDX-License-Identifier: Apache-2.0

package day

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
)

// api is an API server in memory for the objects of Kubernetes. Unlike client-go's tracker it sets
// versions, UIDs and times, lets pods end gracefully, and has watches that never overflow. Safe
// for concurrent use.
type api struct {
	*fake.Clientset

	mu      sync.Mutex
	version int
	objects map[schema.GroupVersionResource]map[types.NamespacedName]runtime.Object
	watches map[*apiWatch]bool
	// events are those after version compacted: a watch begins where its list ended.
	events    []apiEvent
	compacted int
}

type apiEvent struct {
	watch.Event
	version   int
	of        schema.GroupVersionResource
	namespace string
}

var _ clienttesting.ObjectTracker = (*api)(nil)

var pods = v1.SchemeGroupVersion.WithResource("pods")

func newAPI() *api {
	a := &api{Clientset: &fake.Clientset{}, objects: map[schema.GroupVersionResource]map[types.NamespacedName]runtime.Object{}, watches: map[*apiWatch]bool{}}
	a.AddReactor("create", "pods", a.bind)
	a.AddReactor("*", "*", clienttesting.ObjectReaction(a))
	a.AddWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		w, err := a.Watch(action.GetResource(), action.GetNamespace(), action.(clienttesting.WatchActionImpl).ListOptions)
		return true, w, err
	})
	return a
}

// bind carries out a Binding.
func (a *api) bind(action clienttesting.Action) (bool, runtime.Object, error) {
	if action.GetSubresource() != "binding" {
		return false, nil, nil
	}
	binding := action.(clienttesting.CreateAction).GetObject().(*v1.Binding)
	a.mu.Lock()
	defer a.mu.Unlock()
	object, err := a.get(pods, binding.Namespace, binding.Name)
	if err != nil {
		return true, nil, err
	}
	pod := object.(*v1.Pod).DeepCopy()
	if pod.Spec.NodeName != "" || binding.UID != "" && binding.UID != pod.UID || pod.DeletionTimestamp != nil {
		return true, nil, apierrors.NewConflict(pods.GroupResource(), pod.Name, errors.New("the pod is bound, another or being deleted"))
	}
	pod.Spec.NodeName = binding.Target.Name
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	maps.Copy(pod.Annotations, binding.Annotations)
	a.put(watch.Modified, pods, pod)
	return true, binding, nil
}

func keyOf(namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// get returns an object that the caller must not change. Under the lock.
func (a *api) get(of schema.GroupVersionResource, namespace, name string) (runtime.Object, error) {
	object := a.objects[of][keyOf(namespace, name)]
	if object == nil {
		return nil, apierrors.NewNotFound(of.GroupResource(), name)
	}
	return object, nil
}

// put stores an object and tells the watches. Under the lock.
func (a *api) put(how watch.EventType, of schema.GroupVersionResource, object runtime.Object) {
	o := object.(metav1.Object)
	a.version++
	o.SetResourceVersion(strconv.Itoa(a.version))
	if a.objects[of] == nil {
		a.objects[of] = map[types.NamespacedName]runtime.Object{}
	}
	if how == watch.Deleted {
		delete(a.objects[of], keyOf(o.GetNamespace(), o.GetName()))
	} else {
		a.objects[of][keyOf(o.GetNamespace(), o.GetName())] = object
	}
	e := apiEvent{watch.Event{Type: how, Object: object}, a.version, of, o.GetNamespace()}
	a.events = append(a.events, e)
	for w := range a.watches {
		w.tell(e)
	}
}

// compact forgets the events, which all watches have.
func (a *api) compact() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events, a.compacted = nil, a.version
}

var expired = apierrors.NewResourceExpired("too old resource version")

// backup saves all objects; restore brings them back, as [ipamtest.Server.Backup] says.
func (a *api) backup() (restore func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	saved := map[schema.GroupVersionResource]map[types.NamespacedName]runtime.Object{}
	for of, objects := range a.objects {
		saved[of] = maps.Clone(objects)
	}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.objects = saved
		a.version += 1_000_000
		a.events, a.compacted = nil, a.version
		for w := range a.watches {
			w.add(watch.Event{Type: watch.Error, Object: expired.ErrStatus.DeepCopy()})
		}
		clear(a.watches)
	}
}

func (a *api) Add(runtime.Object) error { return errors.New("objects are created") }

func (a *api) Apply(schema.GroupVersionResource, runtime.Object, string, ...metav1.PatchOptions) error {
	return errors.New("nobody applies")
}

func (a *api) Get(of schema.GroupVersionResource, namespace, name string, _ ...metav1.GetOptions) (runtime.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	object, err := a.get(of, namespace, name)
	if err != nil {
		return nil, err
	}
	return object.DeepCopyObject(), nil
}

func (a *api) Create(of schema.GroupVersionResource, object runtime.Object, namespace string, _ ...metav1.CreateOptions) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	object = object.DeepCopyObject()
	o := object.(metav1.Object)
	if _, err := a.get(of, namespace, o.GetName()); err == nil {
		return apierrors.NewAlreadyExists(of.GroupResource(), o.GetName())
	}
	o.SetNamespace(namespace)
	o.SetUID(types.UID(fmt.Sprintf("%s-%d", of.Resource, a.version+1)))
	o.SetCreationTimestamp(metav1.Now())
	a.put(watch.Added, of, object)
	return nil
}

func (a *api) Update(of schema.GroupVersionResource, object runtime.Object, namespace string, _ ...metav1.UpdateOptions) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	object = object.DeepCopyObject()
	o := object.(metav1.Object)
	now, err := a.get(of, namespace, o.GetName())
	if err != nil {
		return err
	}
	is := now.(metav1.Object)
	if o.GetUID() != is.GetUID() || o.GetResourceVersion() != is.GetResourceVersion() {
		return apierrors.NewConflict(of.GroupResource(), o.GetName(), errors.New("the object has been modified"))
	}
	a.put(watch.Modified, of, object)
	return nil
}

func (a *api) Patch(of schema.GroupVersionResource, object runtime.Object, namespace string, _ ...metav1.PatchOptions) error {
	return a.Update(of, object, namespace)
}

// Delete removes an object; a pod that is bound only if it need not end first.
func (a *api) Delete(of schema.GroupVersionResource, namespace, name string, options ...metav1.DeleteOptions) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	object, err := a.get(of, namespace, name)
	if err != nil {
		return err
	}
	object = object.DeepCopyObject()
	var grace *int64
	for _, o := range options {
		if p := o.Preconditions; p != nil && p.UID != nil && *p.UID != object.(metav1.Object).GetUID() {
			return apierrors.NewConflict(of.GroupResource(), name, errors.New("it is another object"))
		}
		grace = o.GracePeriodSeconds
	}
	if pod, ok := object.(*v1.Pod); ok && pod.Spec.NodeName != "" && (grace == nil || *grace > 0) {
		if pod.DeletionTimestamp == nil {
			now := metav1.Now()
			pod.DeletionTimestamp = &now
			a.put(watch.Modified, of, pod)
		}
		return nil
	}
	a.put(watch.Deleted, of, object)
	return nil
}

func (a *api) List(of schema.GroupVersionResource, kind schema.GroupVersionKind, namespace string, _ ...metav1.ListOptions) (runtime.Object, error) {
	kind.Kind += "List"
	list, err := scheme.Scheme.New(kind)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var objects []runtime.Object
	for key, object := range a.objects[of] {
		if namespace == "" || key.Namespace == namespace {
			objects = append(objects, object.DeepCopyObject())
		}
	}
	slices.SortFunc(objects, func(a, b runtime.Object) int {
		return strings.Compare(a.(metav1.Object).GetName(), b.(metav1.Object).GetName())
	})
	list.(metav1.ListInterface).SetResourceVersion(strconv.Itoa(a.version))
	return list, meta.SetList(list, objects)
}

func (a *api) Watch(of schema.GroupVersionResource, namespace string, options ...metav1.ListOptions) (watch.Interface, error) {
	since, err := strconv.Atoi(options[0].ResourceVersion)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &apiWatch{of: of, namespace: namespace, stop: cancel, more: make(chan struct{}, 1), result: make(chan watch.Event)}
	a.mu.Lock()
	defer a.mu.Unlock()
	if since < a.compacted {
		cancel()
		return nil, expired
	}
	for _, e := range a.events {
		if e.version > since {
			w.tell(e)
		}
	}
	a.watches[w] = true
	go func() {
		w.run(ctx)
		a.mu.Lock()
		delete(a.watches, w)
		a.mu.Unlock()
	}()
	return w, nil
}

// apiWatch has as much room as it needs.
type apiWatch struct {
	of        schema.GroupVersionResource
	namespace string
	stop      context.CancelFunc
	more      chan struct{}
	result    chan watch.Event

	mu     sync.Mutex
	events []watch.Event
}

func (w *apiWatch) Stop() { w.stop() }

func (w *apiWatch) ResultChan() <-chan watch.Event { return w.result }

func (w *apiWatch) tell(e apiEvent) {
	if w.of == e.of && (w.namespace == "" || w.namespace == e.namespace) {
		w.add(watch.Event{Type: e.Type, Object: e.Object.DeepCopyObject()})
	}
}

func (w *apiWatch) add(e watch.Event) {
	w.mu.Lock()
	w.events = append(w.events, e)
	w.mu.Unlock()
	select {
	case w.more <- struct{}{}:
	default:
	}
}

func (w *apiWatch) run(ctx context.Context) {
	defer close(w.result)
	for {
		w.mu.Lock()
		events := w.events
		w.events = nil
		w.mu.Unlock()
		for _, e := range events {
			select {
			case w.result <- e:
			case <-ctx.Done():
				return
			}
		}
		if len(events) > 0 {
			continue
		}
		select {
		case <-w.more:
		case <-ctx.Done():
			return
		}
	}
}
