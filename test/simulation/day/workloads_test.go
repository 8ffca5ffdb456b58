// SPDX-License-Identifier: Apache-2.0

package day

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation/kubelet"
)

// stuck is how long a pod may wait for its node or its end, in the time of the simulation.
const stuck = 10 * time.Minute

// cluster is what workloads run on.
type cluster struct {
	t        *testing.T
	ctx      context.Context
	kube     *api
	kubelets *kubelet.Kubelets
	made     atomic.Int64 // pods
	// deployments: all workloads are.
	deployments bool
}

// workload is a Deployment or a StatefulSet.
type workload struct {
	*cluster
	namespace, name string
	stateful        bool
	policy          v1alpha1.ReleasePolicy
	annotations     map[string]string
	turn            chan struct{} // see workload.inTurn
	replicas        int
	version         int
	owner           metav1.OwnerReference // of the Deployment or StatefulSet
	set             metav1.OwnerReference // of the present ReplicaSet
	pods            []string
}

func newTurn() chan struct{} { return make(chan struct{}, 1) }

// inTurn begins a change of the workload, which must not be before the changes that were begun
// earlier have ended. It waits for a channel: time does not pass in a bubble of synctest while a
// goroutine waits for a Mutex.
func (w *workload) inTurn(change func()) {
	w.turn <- struct{}{}
	defer func() { <-w.turn }()
	change()
}

func (w *workload) template() v1.PodTemplateSpec {
	one := v1.ResourceList{v1alpha1.ResourceIP: *resource.NewQuantity(1, resource.DecimalSI)}
	annotations := map[string]string{v1alpha1.AnnotationReleasePolicy: string(w.policy), "version": fmt.Sprint(w.version)}
	if w.annotations[v1alpha1.AnnotationClaim] != "" {
		delete(annotations, v1alpha1.AnnotationReleasePolicy) // the claim says it
	}
	maps.Copy(annotations, w.annotations)
	return v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": w.name}, Annotations: annotations},
		Spec:       v1.PodSpec{SchedulerName: "berth-scheduler", Containers: []v1.Container{{Name: "main", Image: "none", Resources: v1.ResourceRequirements{Requests: one, Limits: one}}}},
	}
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func reference(kind, name string, uid types.UID) metav1.OwnerReference {
	yes := true
	return metav1.OwnerReference{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: kind, Name: name, UID: uid, Controller: &yes}
}

func (w *workload) meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: w.namespace, Name: w.name}
}

// create makes the objects and all pods, and waits until they run.
func (w *workload) create() {
	w.t.Helper()
	selector, replicas := &metav1.LabelSelector{MatchLabels: map[string]string{"app": w.name}}, int32(w.replicas)
	if w.stateful {
		set, err := w.kube.AppsV1().StatefulSets(w.namespace).Create(w.ctx, &appsv1.StatefulSet{
			ObjectMeta: w.meta(), Spec: appsv1.StatefulSetSpec{Replicas: &replicas, Selector: selector, Template: w.template()},
		}, metav1.CreateOptions{})
		w.must(err)
		w.owner = reference("StatefulSet", w.name, set.UID)
		w.set = w.owner
	} else {
		surge, none := intstr.FromInt32(int32(w.batch())), intstr.FromInt32(0)
		d, err := w.kube.AppsV1().Deployments(w.namespace).Create(w.ctx, &appsv1.Deployment{
			ObjectMeta: w.meta(),
			Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: selector, Template: w.template(), Strategy: appsv1.DeploymentStrategy{
				Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &none},
			}},
		}, metav1.CreateOptions{})
		w.must(err)
		w.owner = reference("Deployment", w.name, d.UID)
		w.makeSet()
	}
	w.grow(w.replicas)
}

// batch is how many pods a rollout replaces at once.
func (w *workload) batch() int { return max(1, w.replicas/4) }

// makeSet makes the ReplicaSet of the present version.
func (w *workload) makeSet() {
	w.t.Helper()
	name, replicas := fmt.Sprintf("%s-%d", w.name, w.version), int32(w.replicas)
	set, err := w.kube.AppsV1().ReplicaSets(w.namespace).Create(w.ctx, &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name, OwnerReferences: []metav1.OwnerReference{w.owner}},
		Spec:       appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": w.name}}, Template: w.template()},
	}, metav1.CreateOptions{})
	w.must(err)
	w.set = reference("ReplicaSet", name, set.UID)
}

// grow makes n more pods and waits until they run.
func (w *workload) grow(n int) {
	w.t.Helper()
	from := len(w.pods)
	for i := range n {
		made := w.made.Add(1)
		name := fmt.Sprintf("%s-%d", w.name, from+i)
		if !w.stateful {
			name = fmt.Sprintf("%s-%d", w.set.Name, made)
		}
		w.pods = append(w.pods, w.startPod(name))
	}
	w.awaitReady(w.pods[from:])
}

func (w *workload) startPod(name string) string {
	w.t.Helper()
	template := w.template()
	template.Name, template.Namespace = name, w.namespace
	if w.set.Name != "" {
		template.OwnerReferences = []metav1.OwnerReference{w.set}
	}
	_, err := w.kube.CoreV1().Pods(w.namespace).Create(w.ctx, &v1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec, Status: v1.PodStatus{Phase: v1.PodPending}}, metav1.CreateOptions{})
	w.must(err)
	return name
}

// await waits until something is so of each pod, or fails the test.
func (w *workload) await(names []string, what string, is func(*v1.Pod) bool) {
	w.t.Helper()
	since := time.Now()
	for _, name := range names {
		for {
			pod, err := w.kubelets.Pods.Pods(w.namespace).Get(name)
			if apierrors.IsNotFound(err) {
				pod, err = nil, nil
			}
			w.must(err)
			if is(pod) {
				break
			}
			if time.Since(since) > stuck {
				w.t.Fatalf("after %s pod %s/%s is not %s: %+v", stuck, w.namespace, name, what, pod)
			}
			select {
			case <-time.After(time.Second):
			case <-w.ctx.Done():
				return
			}
		}
	}
}

func (w *workload) awaitReady(names []string) {
	w.t.Helper()
	w.await(names, "ready", func(pod *v1.Pod) bool { return pod != nil && kubelet.IsReady(pod) })
}

// end ends pods and waits until they are gone.
func (w *workload) end(names []string) {
	w.t.Helper()
	for _, name := range names {
		w.must(w.kube.CoreV1().Pods(w.namespace).Delete(w.ctx, name, metav1.DeleteOptions{}))
	}
	w.await(names, "gone", func(pod *v1.Pod) bool { return pod == nil })
}

// rollOut replaces all pods by those of another version, as RollingUpdate does.
func (w *workload) rollOut() {
	w.t.Helper()
	w.version++
	w.update(func() {})
	if w.stateful {
		for _, name := range slices.Backward(w.pods) {
			w.end([]string{name})
			w.awaitReady([]string{w.startPod(name)})
		}
		return
	}
	before := w.set
	w.makeSet()
	old := w.pods
	w.pods = nil
	for len(old) > 0 {
		n := min(w.batch(), len(old))
		w.grow(n)
		w.end(old[:n])
		old = old[n:]
	}
	w.must(w.kube.AppsV1().ReplicaSets(w.namespace).Delete(w.ctx, before.Name, metav1.DeleteOptions{}))
}

// update changes the object of the workload.
func (w *workload) update(change func()) {
	w.t.Helper()
	change()
	replicas := int32(w.replicas)
	if w.stateful {
		sets := w.kube.AppsV1().StatefulSets(w.namespace)
		set, err := sets.Get(w.ctx, w.name, metav1.GetOptions{})
		w.must(err)
		set.Spec.Replicas, set.Spec.Template = &replicas, w.template()
		_, err = sets.Update(w.ctx, set, metav1.UpdateOptions{})
		w.must(err)
		return
	}
	deployments := w.kube.AppsV1().Deployments(w.namespace)
	d, err := deployments.Get(w.ctx, w.name, metav1.GetOptions{})
	w.must(err)
	d.Spec.Replicas, d.Spec.Template = &replicas, w.template()
	_, err = deployments.Update(w.ctx, d, metav1.UpdateOptions{})
	w.must(err)
}

// scale changes the number of pods.
func (w *workload) scale(to int) {
	w.t.Helper()
	w.update(func() { w.replicas = to })
	if n := to - len(w.pods); n > 0 {
		w.grow(n)
	} else {
		w.end(w.pods[to:])
		w.pods = w.pods[:to]
	}
}

// remove deletes the workload.
func (w *workload) remove() {
	w.t.Helper()
	if w.stateful {
		w.must(w.kube.AppsV1().StatefulSets(w.namespace).Delete(w.ctx, w.name, metav1.DeleteOptions{}))
	} else {
		w.must(w.kube.AppsV1().Deployments(w.namespace).Delete(w.ctx, w.name, metav1.DeleteOptions{}))
		w.must(w.kube.AppsV1().ReplicaSets(w.namespace).Delete(w.ctx, w.set.Name, metav1.DeleteOptions{}))
	}
	w.end(w.pods)
	w.pods = nil
}

// newWorkload draws one.
func (c *cluster) newWorkload(random *rand.Rand, serial, replicas int) *workload {
	w := &workload{cluster: c, namespace: fmt.Sprintf("team-%d", serial%20), name: fmt.Sprintf("app-%d", serial), replicas: replicas, policy: v1alpha1.ReleasePodDeleted, turn: newTurn()}
	switch random.IntN(10) {
	case 0, 1, 2:
		w.stateful, w.policy = !c.deployments, v1alpha1.ReleaseRetain
	case 3, 4, 5:
		w.policy = v1alpha1.ReleaseRetain
	}
	return w
}
