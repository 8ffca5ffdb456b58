// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// setUID is the UID that pods made by [ofSet] name as their StatefulSet's, where
// no controller makes StatefulSets.
func setUID(name string) types.UID { return types.UID("uid-of-" + name) }

// ofSet makes a pod that a StatefulSet made.
func ofSet(name string) func(*v1.Pod) {
	return ownedBy("apps/v1", "StatefulSet", name, string(setUID(name)))
}

// retainForSet makes addresses that are retained for the first n pods of a
// StatefulSet: 10.0.70.100, 10.0.70.101, ….
func (w *world) retainForSet(name string, n int) {
	w.t.Helper()
	for i := range n {
		address := fmt.Sprintf("10.0.70.%d", 100+i)
		_, err := w.berth.FloatingIPs.Create(w.ctx, &v1alpha1.FloatingIP{
			ObjectMeta: metav1.ObjectMeta{Name: address},
			Spec: v1alpha1.FloatingIPSpec{
				Address: address, Pool: "web", ReleasePolicy: v1alpha1.ReleaseRetain,
				Owner: &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: namespace, Name: name, UID: setUID(name), PodName: fmt.Sprintf("%s-%d", name, i)},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	w.patchPool("web", `{"spec":{"ranges":["10.0.70.2-10.0.70.199"]}}`)
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
