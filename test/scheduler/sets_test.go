// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// ofSet makes a pod that a StatefulSet made, where no controller does.
func ofSet(set *appsv1.StatefulSet) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}
	}
}

// retainForSet makes a StatefulSet and addresses that are retained for its pods:
// 10.0.70.200, 10.0.70.201, …, at most nine.
func (w *world) retainForSet(name string, n int32) *appsv1.StatefulSet {
	w.t.Helper()
	set, err := w.kube.AppsV1().StatefulSets(namespace).Create(w.ctx, newSet(name, n), metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.pool(name, "10.0.70.200-10.0.70.209")
	for i := range n {
		address := fmt.Sprintf("10.0.70.%d", 200+i)
		_, err := w.berth.FloatingIPs.Create(w.ctx, &v1alpha1.FloatingIP{
			ObjectMeta: metav1.ObjectMeta{Name: address},
			Spec: v1alpha1.FloatingIPSpec{
				Address: address, Pool: name, ReleasePolicy: v1alpha1.ReleaseRetain,
				Owner: &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: namespace, Name: name, UID: set.UID, PodName: fmt.Sprintf("%s-%d", name, i)},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	return set
}

// template returns a pod template for workloads.
func template(app string, options ...func(*v1.Pod)) v1.PodTemplateSpec {
	pod := newPod("", options...)
	return v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}, Annotations: pod.Annotations},
		Spec:       pod.Spec,
	}
}

// newSet returns a StatefulSet whose pods ask for an address.
func newSet(name string, replicas int32, options ...func(*v1.Pod)) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: template(name, options...),
		},
	}
}
