// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// Custom kinds with a scale subresource: pods of a fleet have random names, those
// of a crew numbers.
const (
	fleet = "Fleet"
	crew  = "Crew"
)

var customGroup = schema.GroupVersion{Group: "chaos.berth.test", Version: "v1"}

func customResource(kind string) schema.GroupVersionResource {
	return customGroup.WithResource(strings.ToLower(kind) + "s")
}

// customObject is what the imitated controller reads and writes of one.
type customObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Replicas int32              `json:"replicas"`
		Template v1.PodTemplateSpec `json:"template"`
	} `json:"spec"`
	Status customStatus `json:"status,omitzero"`
}

type customStatus struct {
	ObservedGeneration int64 `json:"observedGeneration"`
	Replicas           int32 `json:"replicas"`
	Updated            int32 `json:"updated"`
	Ready              int32 `json:"ready"`
}

func readCustom(object *unstructured.Unstructured) (*customObject, error) {
	custom := &customObject{}
	return custom, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, custom)
}

func (o *customObject) atRest() bool {
	want := o.Spec.Replicas
	return o.Status == customStatus{ObservedGeneration: o.Generation, Replicas: want, Updated: want, Ready: want}
}

// fleets imitates the controllers of the custom kinds.
type fleets struct {
	w     *world
	api   dynamic.Interface
	queue workqueue.TypedRateLimitingInterface[fleetKey]
}

type fleetKey struct{ kind, namespace, name string }

// makeCustomKinds makes the kinds and lets Berth's controller read them.
func (w *world) makeCustomKinds(api dynamic.Interface) {
	w.t.Helper()
	open := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "berth-chaos-kinds", Labels: map[string]string{"rbac.berth.dev/aggregate-to-controller": "true"}}}
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	for _, kind := range []string{fleet, crew} {
		gvr := customResource(kind)
		crd := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"metadata": map[string]any{"name": gvr.Resource + "." + gvr.Group},
			"spec": map[string]any{
				"group": gvr.Group, "scope": "Namespaced",
				"names": map[string]any{"plural": gvr.Resource, "singular": strings.ToLower(kind), "kind": kind, "listKind": kind + "List"},
				"versions": []any{map[string]any{
					"name": gvr.Version, "served": true, "storage": true,
					"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{"spec": open, "status": open}}},
					"subresources": map[string]any{
						"status": map[string]any{},
						"scale":  map[string]any{"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
					},
				}},
			},
		}}
		if _, err := api.Resource(crds).Create(w.ctx, crd, metav1.CreateOptions{}); err != nil {
			w.t.Fatal(err)
		}
		role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{gvr.Group}, Resources: []string{gvr.Resource, gvr.Resource + "/scale"}, Verbs: []string{"get", "list", "watch"}})
	}
	if _, err := w.kube.RbacV1().ClusterRoles().Create(w.ctx, role, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	for _, kind := range []string{fleet, crew} {
		w.eventually("wait for the custom kinds to be served", func() error {
			_, err := api.Resource(customResource(kind)).List(w.ctx, metav1.ListOptions{})
			return err
		})
	}
}

// startCustomKinds runs the imitated controllers until the test ends.
func (w *world) startCustomKinds(api dynamic.Interface) {
	w.t.Helper()
	f := &fleets{w: w, api: api, queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[fleetKey](50*time.Millisecond, 2*time.Second))}
	follow := func(informer cache.SharedIndexInformer, key func(metav1.Object) fleetKey) {
		handle := func(object any) {
			if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			if k := key(object.(metav1.Object)); k.kind != "" {
				f.queue.Add(k)
			}
		}
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: handle, DeleteFunc: handle, UpdateFunc: func(_, after any) { handle(after) }}); err != nil {
			w.t.Fatal(err)
		}
	}
	pods := informers.NewSharedInformerFactory(w.kube, 0)
	custom := dynamicinformer.NewDynamicSharedInformerFactory(api, 0)
	follow(pods.Core().V1().Pods().Informer(), func(pod metav1.Object) fleetKey {
		if owner := metav1.GetControllerOf(pod); owner != nil && owner.APIVersion == customGroup.String() {
			return fleetKey{owner.Kind, pod.GetNamespace(), owner.Name}
		}
		return fleetKey{}
	})
	for _, kind := range []string{fleet, crew} {
		follow(custom.ForResource(customResource(kind)).Informer(), func(object metav1.Object) fleetKey {
			return fleetKey{kind, object.GetNamespace(), object.GetName()}
		})
	}
	pods.Start(w.ctx.Done())
	custom.Start(w.ctx.Done())
	for range 2 {
		go func() {
			for f.next() {
			}
		}()
	}
	w.t.Cleanup(f.queue.ShutDown)
}

func (f *fleets) next() bool {
	key, shutdown := f.queue.Get()
	if shutdown {
		return false
	}
	defer f.queue.Done(key)
	// Others delete pods meanwhile, and a name is taken until its last holder is gone.
	err := f.reconcile(f.w.ctx, key)
	if err == nil {
		f.queue.Forget(key)
		return true
	}
	if !expected(err) && f.w.ctx.Err() == nil {
		f.w.say("the imitated controller of %s %s/%s: %v", key.kind, key.namespace, key.name, err)
	}
	f.queue.AddRateLimited(key)
	return true
}

const customHash = "chaos/template"

// reconcile keeps as many pods as are wanted, and replaces those of an older
// template one by one.
func (f *fleets) reconcile(ctx context.Context, key fleetKey) error {
	api := f.api.Resource(customResource(key.kind)).Namespace(key.namespace)
	live, err := api.Get(ctx, key.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	object, err := readCustom(live)
	if err != nil || object.DeletionTimestamp != nil {
		return err // the garbage collector's
	}
	text, err := json.Marshal(object.Spec.Template)
	if err != nil {
		return err
	}
	hash := fnv.New32a()
	_, _ = hash.Write(text) // takes everything
	version := fmt.Sprintf("%x", hash.Sum32())
	list, err := f.w.kube.CoreV1().Pods(key.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + key.name})
	if err != nil {
		return err
	}
	missing := map[string]bool{} // numbers of a crew
	if key.kind == crew {
		for i := range object.Spec.Replicas {
			missing[fmt.Sprintf("%s-%d", key.name, i)] = true
		}
	}
	var pods, surplus []*v1.Pod
	status := customStatus{ObservedGeneration: object.Generation}
	for i := range list.Items {
		pod := &list.Items[i]
		if owner := metav1.GetControllerOf(pod); owner == nil || owner.UID != object.UID || pod.DeletionTimestamp != nil {
			continue
		}
		if finished(pod) || key.kind == crew && !missing[pod.Name] {
			surplus = append(surplus, pod)
			continue
		}
		delete(missing, pod.Name)
		pods = append(pods, pod)
		status.Replicas++
		if pod.Annotations[customHash] == version {
			status.Updated++
		}
		if isReady(pod) {
			status.Ready++
		}
	}
	// Those of an older template go first.
	slices.SortFunc(pods, func(a, b *v1.Pod) int {
		if old := a.Annotations[customHash] != version; old != (b.Annotations[customHash] != version) {
			if old {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
	switch more := len(pods) - int(object.Spec.Replicas); {
	case more > 0:
		surplus = append(surplus, pods[:more]...)
	case more == 0 && status.Updated < status.Replicas && status.Ready == status.Replicas:
		surplus = append(surplus, pods[0])
	}
	if object.Status != status {
		patch, err := json.Marshal(map[string]any{"status": status})
		if err != nil {
			return err
		}
		if _, err := api.Patch(ctx, key.name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			return err
		}
	}
	for _, pod := range surplus {
		err := f.w.kube.CoreV1().Pods(key.namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	if key.kind == fleet {
		for range int(object.Spec.Replicas) - len(pods) {
			if err := f.create(ctx, object, version, ""); err != nil {
				return err
			}
		}
	}
	for name := range missing {
		if err := f.create(ctx, object, version, name); err != nil {
			return err
		}
	}
	return nil
}

func (f *fleets) create(ctx context.Context, object *customObject, version, name string) error {
	pod := &v1.Pod{ObjectMeta: *object.Spec.Template.ObjectMeta.DeepCopy(), Spec: *object.Spec.Template.Spec.DeepCopy()}
	if pod.Name = name; name == "" {
		pod.GenerateName = object.Name + "-"
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[customHash] = version
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(object, object.GroupVersionKind())}
	_, err := f.w.kube.CoreV1().Pods(object.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// createCustom makes the API object of a workload.
func (w *world) createCustom(wl *workload) error {
	template, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&v1.PodTemplateSpec{ObjectMeta: wl.template().ObjectMeta, Spec: wl.template().Spec})
	if err != nil {
		return err
	}
	_, err = w.dynamic.Resource(wl.resource()).Namespace(wl.namespace).Create(w.ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": customGroup.String(), "kind": wl.kind, "metadata": map[string]any{"name": wl.name, "namespace": wl.namespace},
		"spec": map[string]any{"replicas": int64(wl.replicas), "template": template},
	}}, metav1.CreateOptions{})
	return err
}
