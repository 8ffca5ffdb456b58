// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
)

// A template asks for addresses in our words or in Galaxy's, and as much where it was
// made slim.
func TestAsksForNone(t *testing.T) {
	for name, want := range map[v1.ResourceName]bool{v1alpha1.ResourceIP: false, galaxy.ResourceENIIP: false, v1.ResourceCPU: true} {
		template := &v1.PodTemplateSpec{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main"}, {
			Name: "side", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{name: resource.MustParse("1")}},
		}}}}
		slim := slimTemplate(template)
		if got, slimGot := asksForNone(template), asksForNone(&slim); got != want || slimGot != want {
			t.Errorf("%s: %v, and %v where it is slim; want %v", name, got, slimGot, want)
		}
	}
}

// While pods may be made of an older template, the requests in the new one do not
// decide.
func TestIsUpdating(t *testing.T) {
	meta := metav1.ObjectMeta{Name: "web", Generation: 3}
	onDelete := appsv1.StatefulSetSpec{UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}}
	for _, test := range []struct {
		name   string
		object metav1.Object
		want   bool
	}{
		{"StatefulSet, done", &appsv1.StatefulSet{ObjectMeta: meta, Status: appsv1.StatefulSetStatus{ObservedGeneration: 3, CurrentRevision: "b", UpdateRevision: "b"}}, false},
		{"StatefulSet, under way or held by its partition", &appsv1.StatefulSet{ObjectMeta: meta, Status: appsv1.StatefulSetStatus{ObservedGeneration: 3, CurrentRevision: "a", UpdateRevision: "b"}}, true},
		{"StatefulSet, changed just now", &appsv1.StatefulSet{ObjectMeta: meta, Status: appsv1.StatefulSetStatus{ObservedGeneration: 2, CurrentRevision: "a", UpdateRevision: "a"}}, true},
		{"StatefulSet, OnDelete", &appsv1.StatefulSet{ObjectMeta: meta, Spec: onDelete, Status: appsv1.StatefulSetStatus{ObservedGeneration: 3, CurrentRevision: "a", UpdateRevision: "b"}}, false},
		{"Deployment, done", &appsv1.Deployment{ObjectMeta: meta, Status: appsv1.DeploymentStatus{ObservedGeneration: 3, Replicas: 2, UpdatedReplicas: 2}}, false},
		{"Deployment, under way or paused", &appsv1.Deployment{ObjectMeta: meta, Status: appsv1.DeploymentStatus{ObservedGeneration: 3, Replicas: 3, UpdatedReplicas: 2}}, true},
		{"Deployment, changed just now", &appsv1.Deployment{ObjectMeta: meta, Status: appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 2, UpdatedReplicas: 2}}, true},
		{"CronJob, between runs", &batchv1.CronJob{ObjectMeta: meta}, false},
		{"CronJob, running", &batchv1.CronJob{ObjectMeta: meta, Status: batchv1.CronJobStatus{Active: make([]v1.ObjectReference, 1)}}, true},
		{"DaemonSet", &appsv1.DaemonSet{ObjectMeta: meta}, false},
	} {
		slim, err := Slim(test.object)
		if err != nil {
			t.Fatal(err)
		}
		if got, slimGot := isUpdating(test.object), isUpdating(slim.(metav1.Object)); got != test.want || slimGot != test.want {
			t.Errorf("%s: %v, and %v where it is slim; want %v", test.name, got, slimGot, test.want)
		}
	}
}
