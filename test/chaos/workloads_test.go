// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Kinds of workloads. A pod of its own is one too.
const (
	statefulSet = "StatefulSet"
	deployment  = "Deployment"
	replicaSet  = "ReplicaSet"
	daemonSet   = "DaemonSet"
	job         = "Job"
	barePod     = "Pod"
)

// workload is one as the test wants it.
type workload struct {
	kind, namespace, name string
	replicas              int
	// start is the first ordinal of a StatefulSet.
	start       int
	annotations map[string]string
	// shape is the shape of the addresses annotation; nil: there is none.
	shape shape
	asks  int
	// variant chooses between ways to update.
	variant int
	version int
	deleted bool
}

func (wl *workload) String() string {
	return fmt.Sprintf("%s %s/%s", wl.kind, wl.namespace, wl.name)
}

// pods is how many it makes at most.
func (wl *workload) pods(nodes int) int {
	switch {
	case wl.deleted:
		return 0
	case wl.kind == daemonSet:
		return nodes
	}
	return wl.replicas
}

func (wl *workload) labels() map[string]string { return map[string]string{"app": wl.name} }

func (wl *workload) template() v1.PodTemplateSpec {
	annotations := map[string]string{"chaos/version": fmt.Sprint(wl.version)}
	maps.Copy(annotations, wl.annotations)
	ips := v1.ResourceList{}
	if wl.asks > 0 {
		ips[v1alpha1.ResourceIP] = *resource.NewQuantity(int64(wl.asks), resource.DecimalSI)
	}
	no := false
	spec := v1.PodSpec{
		SchedulerName: "berth-scheduler", AutomountServiceAccountToken: &no,
		Containers: []v1.Container{{Name: "main", Image: "none", Resources: v1.ResourceRequirements{Requests: ips, Limits: ips}}},
	}
	if wl.kind == job {
		spec.RestartPolicy = v1.RestartPolicyNever
	}
	return v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: wl.labels(), Annotations: annotations}, Spec: spec}
}

// resource of the kind in the API.
func (wl *workload) resource() schema.GroupVersionResource {
	switch wl.kind {
	case statefulSet:
		return appsv1.SchemeGroupVersion.WithResource("statefulsets")
	case deployment:
		return appsv1.SchemeGroupVersion.WithResource("deployments")
	case replicaSet:
		return appsv1.SchemeGroupVersion.WithResource("replicasets")
	case daemonSet:
		return appsv1.SchemeGroupVersion.WithResource("daemonsets")
	case job:
		return batchv1.SchemeGroupVersion.WithResource("jobs")
	case fleet, crew:
		return customResource(wl.kind)
	}
	return v1.SchemeGroupVersion.WithResource("pods")
}

// create makes the API object.
func (w *world) create(wl *workload) error {
	meta := metav1.ObjectMeta{Name: wl.name, Namespace: wl.namespace}
	selector := &metav1.LabelSelector{MatchLabels: wl.labels()}
	replicas := int32(wl.replicas)
	var err error
	switch wl.kind {
	case statefulSet:
		set := &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: &replicas, Selector: selector, Template: wl.template(), PodManagementPolicy: appsv1.ParallelPodManagement}}
		if wl.variant%3 == 0 {
			set.Spec.PodManagementPolicy = appsv1.OrderedReadyPodManagement
		}
		if wl.start > 0 {
			set.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: int32(wl.start)}
		}
		_, err = w.Kube.AppsV1().StatefulSets(wl.namespace).Create(w.Ctx, set, metav1.CreateOptions{})
	case deployment:
		surge, unavailable := intstr.FromInt32(1), intstr.FromInt32(0)
		strategy := appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType}
		switch wl.variant % 4 {
		case 0:
			strategy.Type = appsv1.RecreateDeploymentStrategyType
		case 1:
			strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable}
		case 2:
			strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &unavailable, MaxUnavailable: &surge}
		}
		_, err = w.Kube.AppsV1().Deployments(wl.namespace).Create(w.Ctx, &appsv1.Deployment{
			ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: selector, Template: wl.template(), Strategy: strategy},
		}, metav1.CreateOptions{})
	case replicaSet:
		_, err = w.Kube.AppsV1().ReplicaSets(wl.namespace).Create(w.Ctx, &appsv1.ReplicaSet{
			ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: selector, Template: wl.template()},
		}, metav1.CreateOptions{})
	case daemonSet:
		surge, unavailable := intstr.FromInt32(1), intstr.FromInt32(0)
		set := &appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: wl.template()}}
		if wl.variant%2 == 1 {
			set.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{
				Type: appsv1.RollingUpdateDaemonSetStrategyType, RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxSurge: &surge, MaxUnavailable: &unavailable},
			}
		}
		_, err = w.Kube.AppsV1().DaemonSets(wl.namespace).Create(w.Ctx, set, metav1.CreateOptions{})
	case job:
		completions, tries := int32(1_000_000), int32(1_000_000)
		_, err = w.Kube.BatchV1().Jobs(wl.namespace).Create(w.Ctx, &batchv1.Job{
			ObjectMeta: meta, Spec: batchv1.JobSpec{Parallelism: &replicas, Completions: &completions, BackoffLimit: &tries, Template: wl.template()},
		}, metav1.CreateOptions{})
	case fleet, crew:
		err = w.createCustom(wl)
	case barePod:
		template := wl.template()
		template.Name = wl.name
		_, err = w.Kube.CoreV1().Pods(wl.namespace).Create(w.Ctx, &v1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}, metav1.CreateOptions{})
	}
	return err
}
