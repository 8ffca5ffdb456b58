// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// schedulerName is what manifests/scheduler/config.yaml says.
const schedulerName = "berth-scheduler"

func quantity(text string) resource.Quantity { return resource.MustParse(text) }

// newPool returns an IPPool of 10.0.70.0/24 with these ranges, separated by
// commas.
func newPool(name, ranges string) *v1alpha1.IPPool {
	return &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.IPPoolSpec{Subnet: "10.0.70.0/24", Gateway: "10.0.70.1", Ranges: strings.Split(ranges, ",")},
	}
}

// onNode limits a pool to one node.
func onNode(name string) func(*v1alpha1.IPPool) {
	return func(pool *v1alpha1.IPPool) {
		pool.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{v1.LabelHostname: name}}
	}
}

// newPod returns a pod that asks for one floating IP.
func newPod(name string, options ...func(*v1.Pod)) *v1.Pod {
	one := v1.ResourceList{v1alpha1.ResourceIP: quantity("1")}
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Annotations: map[string]string{}},
		Spec: v1.PodSpec{
			SchedulerName: schedulerName,
			Containers:    []v1.Container{{Name: "main", Image: "none", Resources: v1.ResourceRequirements{Requests: one, Limits: one}}},
		},
	}
	for _, option := range options {
		option(pod)
	}
	return pod
}

// newPods returns pods prefix-0, prefix-1, ….
func newPods(prefix string, n int, options ...func(*v1.Pod)) []*v1.Pod {
	var pods []*v1.Pod
	for i := range n {
		pods = append(pods, newPod(fmt.Sprintf("%s-%d", prefix, i), options...))
	}
	return pods
}

func namesOf(pods []*v1.Pod) []string {
	var names []string
	for _, pod := range pods {
		names = append(names, pod.Name)
	}
	return names
}

// annotated sets an annotation.
func annotated(key, value string) func(*v1.Pod) {
	return func(pod *v1.Pod) { pod.Annotations[key] = value }
}

// policy sets the release policy.
func policy(p v1alpha1.ReleasePolicy) func(*v1.Pod) {
	return annotated(v1alpha1.AnnotationReleasePolicy, string(p))
}

// fromPools limits a pod to pools.
func fromPools(names string) func(*v1.Pod) { return annotated(v1alpha1.AnnotationPools, names) }

// asking sets how many addresses the pod requests.
func asking(n string) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		resources := &pod.Spec.Containers[0].Resources
		resources.Requests, resources.Limits = v1.ResourceList{}, v1.ResourceList{}
		if n != "0" {
			resources.Requests[v1alpha1.ResourceIP], resources.Limits[v1alpha1.ResourceIP] = quantity(n), quantity(n)
		}
	}
}

// asks says whether a pod asks for a floating IP.
func asks(pod *v1.Pod) bool {
	_, ok := pod.Spec.Containers[0].Resources.Requests[v1alpha1.ResourceIP]
	return ok
}

// wants is how many addresses a pod asks for.
func wants(pod *v1.Pod) int {
	q := pod.Spec.Containers[0].Resources.Requests[v1alpha1.ResourceIP]
	return int(q.Value())
}

// finished says whether a pod has ended.
func finished(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// and combines options.
func and(options ...func(*v1.Pod)) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		for _, option := range options {
			option(pod)
		}
	}
}
