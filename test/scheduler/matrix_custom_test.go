// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
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

// customKinds imitates the controllers of the custom kinds of the matrix: a
// StatefulSet of another API group, whose pods have names that last; a Rollout,
// which owns ReplicaSets; a Fleet, whose pods have random names. All replace
// pods of an old template one by one, with one more than wanted meanwhile where
// names are random.
type customKinds struct {
	w     *world
	api   dynamic.Interface
	queue workqueue.TypedRateLimitingInterface[customKey]
	kinds map[schema.GroupVersionResource]cache.GenericLister
}

type customKey struct {
	gvr             schema.GroupVersionResource
	namespace, name string
}

const customHash = "hash" // label: of the template

// customKinds makes the custom kinds, lets Berth read them, and starts their
// controllers.
func (w *world) customKinds() {
	w.t.Helper()
	api, err := dynamic.NewForConfig(w.config)
	if err != nil {
		w.t.Fatal(err)
	}
	c := &customKinds{w: w, api: api, kinds: map[schema.GroupVersionResource]cache.GenericLister{}}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{
		Name: "berth-custom-kinds", Labels: map[string]string{"rbac.berth.dev/aggregate-to-controller": "true"},
	}}
	for _, name := range []string{"other", "rollout", "fleet"} {
		kind := matrixKinds[name]
		c.kinds[kind.gvr()] = nil
		w.customKind(api, kind)
		role.Rules = append(role.Rules, rbacv1.PolicyRule{
			APIGroups: []string{kind.gvk.Group}, Resources: []string{kind.resource, kind.resource + "/scale"}, Verbs: []string{"get", "list", "watch"},
		})
	}
	if _, err := w.kube.RbacV1().ClusterRoles().Create(w.ctx, role, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.eventually("wait until Berth may read the custom kinds", func() error {
		for _, account := range []string{"berth-controller", "berth-scheduler"} {
			for gvr := range c.kinds {
				if access := "get " + gvr.Group + "/" + gvr.Resource + "/scale"; !w.allowed(account, access) {
					return fmt.Errorf("%s may not %s", account, access)
				}
			}
		}
		return nil
	})
	c.run()
}

// customKind makes a CRD with a scale subresource and waits until it is served.
func (w *world) customKind(api dynamic.Interface, kind matrixKind) {
	w.t.Helper()
	open := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": kind.resource + "." + kind.gvk.Group},
		"spec": map[string]any{
			"group": kind.gvk.Group, "scope": "Namespaced",
			"names": map[string]any{"plural": kind.resource, "singular": strings.ToLower(kind.gvk.Kind), "kind": kind.gvk.Kind, "listKind": kind.gvk.Kind + "List"},
			"versions": []any{map[string]any{
				"name": kind.gvk.Version, "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{"spec": open, "status": open}}},
				"subresources": map[string]any{
					"status": map[string]any{},
					"scale":  map[string]any{"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
				},
			}},
		},
	}}
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	if _, err := api.Resource(crds).Create(w.ctx, crd, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.eventually("wait for "+kind.resource+" to be served", func() error {
		_, err := api.Resource(kind.gvr()).List(w.ctx, metav1.ListOptions{})
		return err
	})
}

// run reconciles until the end of the test.
func (c *customKinds) run() {
	c.w.t.Helper()
	c.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[customKey](20*time.Millisecond, time.Second))
	custom := dynamicinformer.NewDynamicSharedInformerFactory(c.api, 0)
	factory := informers.NewSharedInformerFactory(c.w.kube, 0)
	var synced []cache.InformerSynced
	follow := func(informer cache.SharedIndexInformer, key func(object metav1.Object)) {
		handle := func(object any) {
			if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			key(object.(metav1.Object))
		}
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: handle, DeleteFunc: handle, UpdateFunc: func(_, after any) { handle(after) },
		})
		if err != nil {
			c.w.t.Fatal(err)
		}
		synced = append(synced, registration.HasSynced)
	}
	// A pod or ReplicaSet may belong to a workload of any kind that has the name
	// of its label, also one that is an orphan.
	byLabel := func(object metav1.Object) {
		for gvr := range c.kinds {
			c.queue.Add(customKey{gvr, object.GetNamespace(), object.GetLabels()["app"]})
		}
	}
	follow(factory.Core().V1().Pods().Informer(), byLabel)
	follow(factory.Apps().V1().ReplicaSets().Informer(), byLabel)
	for gvr := range c.kinds {
		informer := custom.ForResource(gvr)
		c.kinds[gvr] = informer.Lister()
		follow(informer.Informer(), func(object metav1.Object) { c.queue.Add(customKey{gvr, object.GetNamespace(), object.GetName()}) })
	}
	ctx, cancel := context.WithCancel(c.w.ctx)
	custom.Start(ctx.Done())
	factory.Start(ctx.Done())
	var workers sync.WaitGroup
	c.w.t.Cleanup(func() {
		cancel()
		c.queue.ShutDown()
		workers.Wait()
		custom.Shutdown()
		factory.Shutdown()
	})
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		c.w.t.Fatal("the imitated controllers do not get to know their objects")
	}
	for range 4 {
		workers.Go(func() {
			for c.next(ctx) {
			}
		})
	}
}

func (c *customKinds) next(ctx context.Context) bool {
	key, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	defer c.queue.Done(key)
	err := c.reconcile(ctx, key)
	if err == nil {
		c.queue.Forget(key)
		return true
	}
	// Others change pods meanwhile, and names are taken until the last holder is
	// gone.
	expected := apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err)
	if !expected && ctx.Err() == nil {
		c.w.t.Errorf("the imitated controller of %s %s/%s: %v", key.gvr.Resource, key.namespace, key.name, err)
	}
	c.queue.AddRateLimited(key)
	return true
}

// customWorkload is what the controllers read of a workload.
type customWorkload struct {
	customObject
	hash string // of the template
}

type customObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Replicas int32              `json:"replicas"`
		Template v1.PodTemplateSpec `json:"template"`
	} `json:"spec"`
}

func (c *customKinds) reconcile(ctx context.Context, key customKey) error {
	if _, err := c.kinds[key.gvr].ByNamespace(key.namespace).Get(key.name); err != nil {
		return nil // deleted, or of another kind
	}
	object, err := c.api.Resource(key.gvr).Namespace(key.namespace).Get(ctx, key.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if object.GetDeletionTimestamp() != nil {
		return nil // the garbage collector's
	}
	workload := &customWorkload{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &workload.customObject); err != nil {
		return err
	}
	text, err := json.Marshal(workload.Spec.Template)
	if err != nil {
		return err
	}
	hash := fnv.New32a()
	_, _ = hash.Write(text) // a hash takes everything
	workload.hash = fmt.Sprintf("%x", hash.Sum32())
	if key.gvr.Resource == "rollouts" {
		return c.rollout(ctx, workload)
	}
	return c.pods(ctx, workload, key.gvr.Resource == "statefulsets")
}

// adopt makes an orphan its own; it says whether the object is the workload's.
func (c *customKinds) adopt(ctx context.Context, workload *customWorkload, object metav1.Object,
	patch func(ctx context.Context, name string, text []byte) error,
) (bool, error) {
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
		return owner.UID == workload.UID, nil
	}
	if object.GetDeletionTimestamp() != nil {
		return false, nil
	}
	// The workload itself may be what was deleted and left the orphan.
	gvr, _ := meta.UnsafeGuessKindToResource(workload.GroupVersionKind())
	now, err := c.api.Resource(gvr).Namespace(workload.Namespace).Get(ctx, workload.Name, metav1.GetOptions{})
	if err != nil || now.GetUID() != workload.UID || now.GetDeletionTimestamp() != nil {
		return false, err
	}
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": object.GetUID(), "ownerReferences": workload.refs()}})
	if err != nil {
		return false, err
	}
	return true, patch(ctx, object.GetName(), text)
}

func (w *customWorkload) refs() []metav1.OwnerReference {
	return []metav1.OwnerReference{*metav1.NewControllerRef(w, w.GroupVersionKind())}
}

// labels of what the workload makes.
func (w *customWorkload) labels() map[string]string {
	return map[string]string{"app": w.Name, customHash: w.hash}
}

// pods keeps the pods of a workload without ReplicaSets.
func (c *customKinds) pods(ctx context.Context, workload *customWorkload, named bool) error {
	api := c.w.kube.CoreV1().Pods(workload.Namespace)
	list, err := api.List(ctx, metav1.ListOptions{LabelSelector: "app=" + workload.Name})
	if err != nil {
		return err
	}
	remove := func(pod *v1.Pod) error {
		return api.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	}
	wanted := map[string]bool{}
	for i := range workload.Spec.Replicas {
		wanted[fmt.Sprintf("%s-%d", workload.Name, i)] = named
	}
	var old, current []*v1.Pod
	ready := 0
	for i := range list.Items {
		pod := &list.Items[i]
		ours, err := c.adopt(ctx, workload, pod, func(ctx context.Context, name string, text []byte) error {
			_, err := api.Patch(ctx, name, types.MergePatchType, text, metav1.PatchOptions{})
			return err
		})
		if err != nil {
			return err
		}
		switch {
		case !ours || pod.DeletionTimestamp != nil:
			continue
		case finished(pod) || named && !wanted[pod.Name]:
			if err := remove(pod); err != nil {
				return err
			}
			continue
		case pod.Labels[customHash] == workload.hash:
			current = append(current, pod)
		default:
			old = append(old, pod)
		}
		delete(wanted, pod.Name)
		if pod.Status.Phase == v1.PodRunning {
			ready++
		}
	}
	if named {
		for name := range wanted {
			if err := c.pod(ctx, workload, name); err != nil {
				return err
			}
		}
		if len(old) > 0 && ready == int(workload.Spec.Replicas) {
			return remove(old[0])
		}
		return nil
	}
	most := int(workload.Spec.Replicas)
	if len(old) > 0 {
		most++
	}
	for range min(most-len(old), int(workload.Spec.Replicas)) - len(current) {
		if err := c.pod(ctx, workload, ""); err != nil {
			return err
		}
	}
	switch surplus := len(old) + len(current) - int(workload.Spec.Replicas); {
	case surplus > 0 && len(old) > 0 && (ready > int(workload.Spec.Replicas) || workload.Spec.Replicas == 0):
		return remove(old[0])
	case surplus > 0 && len(old) == 0:
		slices.SortFunc(current, func(a, b *v1.Pod) int { return strings.Compare(a.Name, b.Name) })
		for _, pod := range current[:surplus] {
			if err := remove(pod); err != nil {
				return err
			}
		}
	}
	return nil
}

// pod makes one; without a name it gets a random one.
func (c *customKinds) pod(ctx context.Context, workload *customWorkload, name string) error {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: workload.labels(), Annotations: workload.Spec.Template.Annotations, OwnerReferences: workload.refs(),
		},
		Spec: *workload.Spec.Template.Spec.DeepCopy(),
	}
	if name == "" {
		pod.GenerateName = workload.Name + "-"
	}
	_, err := c.w.kube.CoreV1().Pods(workload.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// rollout keeps the ReplicaSets of a Rollout: one of the present template, and
// those before it until they are empty.
func (c *customKinds) rollout(ctx context.Context, workload *customWorkload) error {
	api := c.w.kube.AppsV1().ReplicaSets(workload.Namespace)
	list, err := api.List(ctx, metav1.ListOptions{LabelSelector: "app=" + workload.Name})
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
		ours, err := c.adopt(ctx, workload, set, func(ctx context.Context, name string, text []byte) error {
			_, err := api.Patch(ctx, name, types.MergePatchType, text, metav1.PatchOptions{})
			return err
		})
		switch {
		case err != nil:
			return err
		case !ours || set.DeletionTimestamp != nil:
		case set.Labels[customHash] == workload.hash:
			current = set
		case *set.Spec.Replicas > 0:
			old = set
		}
	}
	want := workload.Spec.Replicas
	if current == nil {
		replicas := want
		if old != nil {
			replicas = 0
		}
		template := workload.Spec.Template
		template.Labels = workload.labels()
		_, err := api.Create(ctx, &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: workload.Name + "-" + workload.hash, Labels: workload.labels(), OwnerReferences: workload.refs()},
			Spec: appsv1.ReplicaSetSpec{
				Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: workload.labels()}, Template: template,
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
