// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// DiffError is a difference (-want +got).
type DiffError string

func (e DiffError) Error() string { return "(-want +got):\n" + string(e) }

// SchedulerName is the name in manifests/scheduler/config.yaml.
const SchedulerName = "berth-scheduler"

// Quantity parses one.
func Quantity(text string) resource.Quantity { return resource.MustParse(text) }

// NewPool returns an IPPool of 10.0.70.0/24 with these ranges, separated by
// commas, and without a cooldown.
func NewPool(name, ranges string) *v1alpha1.IPPool {
	return &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.IPPoolSpec{
			Subnet: "10.0.70.0/24", Gateway: "10.0.70.1", Ranges: strings.Split(ranges, ","), Cooldown: &metav1.Duration{},
		},
	}
}

// OnNode limits a pool to one node.
func OnNode(name string) func(*v1alpha1.IPPool) {
	return func(pool *v1alpha1.IPPool) {
		pool.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{v1.LabelHostname: name}}
	}
}

// NewPod returns a pod that asks for one floating IP.
func NewPod(name string, options ...func(*v1.Pod)) *v1.Pod {
	one := v1.ResourceList{v1alpha1.ResourceIP: Quantity("1")}
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: Namespace, Annotations: map[string]string{}},
		Spec: v1.PodSpec{
			SchedulerName: SchedulerName,
			Containers:    []v1.Container{{Name: "main", Image: "none", Resources: v1.ResourceRequirements{Requests: one, Limits: one}}},
		},
	}
	for _, option := range options {
		option(pod)
	}
	return pod
}

// NewPods returns pods prefix-0, prefix-1, ….
func NewPods(prefix string, n int, options ...func(*v1.Pod)) []*v1.Pod {
	var pods []*v1.Pod
	for i := range n {
		pods = append(pods, NewPod(fmt.Sprintf("%s-%d", prefix, i), options...))
	}
	return pods
}

// NamesOf returns the names of pods.
func NamesOf(pods []*v1.Pod) []string {
	var names []string
	for _, pod := range pods {
		names = append(names, pod.Name)
	}
	return names
}

// Annotated sets an annotation.
func Annotated(key, value string) func(*v1.Pod) {
	return func(pod *v1.Pod) { pod.Annotations[key] = value }
}

// Policy sets the release policy.
func Policy(p v1alpha1.ReleasePolicy) func(*v1.Pod) {
	return Annotated(v1alpha1.AnnotationReleasePolicy, string(p))
}

// FromPools limits a pod to pools.
func FromPools(names string) func(*v1.Pod) { return Annotated(v1alpha1.AnnotationPools, names) }

// Asking sets how many addresses the pod requests.
func Asking(n string) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		resources := &pod.Spec.Containers[0].Resources
		resources.Requests, resources.Limits = v1.ResourceList{}, v1.ResourceList{}
		if n != "0" {
			resources.Requests[v1alpha1.ResourceIP], resources.Limits[v1alpha1.ResourceIP] = Quantity(n), Quantity(n)
		}
	}
}

// And combines options.
func And(options ...func(*v1.Pod)) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		for _, option := range options {
			option(pod)
		}
	}
}

// Volume makes a volume, and a PersistentVolumeClaim of the same name that is bound to it.
func (w *World) Volume(name string, mode v1.PersistentVolumeAccessMode, owners ...metav1.OwnerReference) {
	w.T.Helper()
	capacity := v1.ResourceList{v1.ResourceStorage: Quantity("1Gi")}
	if _, err := w.Kube.CoreV1().PersistentVolumes().Create(w.Ctx, &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{
			Capacity: capacity, AccessModes: []v1.PersistentVolumeAccessMode{mode}, ClaimRef: &v1.ObjectReference{Namespace: Namespace, Name: name},
			PersistentVolumeSource: v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "10.0.0.1", Path: "/"}},
		},
	}, metav1.CreateOptions{}); err != nil {
		w.T.Fatal(err)
	}
	if _, err := w.Kube.CoreV1().PersistentVolumeClaims(Namespace).Create(w.Ctx, &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners, Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: name, AccessModes: []v1.PersistentVolumeAccessMode{mode}, Resources: v1.VolumeResourceRequirements{Requests: capacity}},
	}, metav1.CreateOptions{}); err != nil {
		w.T.Fatal(err)
	}
}
