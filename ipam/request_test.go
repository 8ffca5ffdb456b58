// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// asking returns a pod that asks for an address, by options.
func asking(options ...func(*v1.Pod)) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "a", Annotations: map[string]string{}},
		Spec: v1.PodSpec{Containers: []v1.Container{{
			Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1alpha1.ResourceIP: resource.MustParse("1")}},
		}}},
	}
	for _, option := range options {
		option(pod)
	}
	return pod
}

func TestRequestOfPod(t *testing.T) {
	away := errors.New("the API server is away")
	ofSet := func(pod *v1.Pod) {
		yes := true
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "set", Controller: &yes}}
	}
	never, always := v1.PreemptNever, v1.PreemptLowerPriority
	for name, test := range map[string]struct {
		pod          *v1.Pod
		set, shop    error // of reading these
		want, lookup error
		mayPreempt   bool
		priority     int32
	}{
		"alone":                              {pod: asking(), mayPreempt: true},
		"that may preempt":                   {pod: asking(func(pod *v1.Pod) { pod.Spec.PreemptionPolicy = &always }), mayPreempt: true},
		"that may not preempt":               {pod: asking(func(pod *v1.Pod) { pod.Spec.PreemptionPolicy = &never })},
		"with a priority":                    {pod: asking(func(pod *v1.Pod) { pod.Spec.Priority = new(int32); *pod.Spec.Priority = 7 }), mayPreempt: true, priority: 7},
		"that asks for none":                 {pod: asking(func(pod *v1.Pod) { pod.Spec.Containers = nil }), mayPreempt: true, want: podrequest.ErrNone},
		"of a set":                           {pod: asking(ofSet), mayPreempt: true},
		"of a set that cannot be read":       {pod: asking(ofSet), mayPreempt: true, set: away, want: away, lookup: away},
		"of a namespace that cannot be read": {pod: asking(), mayPreempt: true, shop: away, want: away, lookup: away},
	} {
		between := podrequest.Between{ReplicaSet: func(_, name string) (metav1.Object, error) {
			return &metav1.ObjectMeta{Name: name, UID: "set"}, test.set
		}}
		got, err := RequestOfPod(podrequest.Reader{}, test.pod, between, func(name string) (metav1.Object, error) {
			return &metav1.ObjectMeta{Name: name, UID: "namespace"}, test.shop
		})
		var lookup *LookupError
		if !errors.Is(err, test.want) || errors.As(err, &lookup) != (test.lookup != nil) {
			t.Errorf("a pod %s: %v, want %v", name, err, test.want)
		}
		if got.MayPreempt != test.mayPreempt || got.Priority != test.priority {
			t.Errorf("a pod %s may preempt: %t, with priority %d", name, got.MayPreempt, got.Priority)
		}
		if known := got.NamespaceMeta != nil; known != (err == nil) {
			t.Errorf("of a pod %s the namespace is known: %t", name, known)
		}
		if err == nil && (got.Owner.Namespace != "shop" || got.Owner.Name == "") {
			t.Errorf("a pod %s is of %+v", name, got.Owner)
		}
	}
	alone := asking(func(pod *v1.Pod) { pod.Annotations[v1alpha1.AnnotationFailover] = v1alpha1.FailoverAutomatic })
	if _, err := RequestOfPod(podrequest.Reader{}, alone, podrequest.Between{}, nil); err == nil || errors.As(err, new(*LookupError)) {
		t.Errorf("a pod by itself may fail over: %v", err)
	}
}
