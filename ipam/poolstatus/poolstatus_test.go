// SPDX-License-Identifier: Apache-2.0

package poolstatus

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

func TestCompute(t *testing.T) {
	pool := func(name string, age int64, ranges ...string) *v1alpha1.IPPool {
		return &v1alpha1.IPPool{
			ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 3, CreationTimestamp: metav1.Unix(age, 0)},
			Spec:       v1alpha1.IPPoolSpec{Subnet: "10.0.0.0/24", Ranges: ranges},
		}
	}
	ip := func(address, pool string, held, reserved bool) *v1alpha1.FloatingIP {
		object := &v1alpha1.FloatingIP{Spec: v1alpha1.FloatingIPSpec{Address: address, Pool: pool, Reserved: reserved}}
		if held {
			object.Spec.Pod = &v1alpha1.PodReference{Name: "p", UID: "u"}
		}
		return object
	}
	disabled := pool("disabled", 5, "10.0.0.200")
	disabled.Spec.Disabled = true
	objects := []*v1alpha1.IPPool{
		pool("web", 1, "10.0.0.10-10.0.0.14"),
		pool("full", 2, "10.0.0.20-10.0.0.21"),
		pool("late", 3, "10.0.0.14-10.0.0.16"),
		pool("bad", 4, "2001:db8::2-2001:db8::1"),
		disabled,
	}
	ips := []*v1alpha1.FloatingIP{
		ip("10.0.0.10", "web", true, false), ip("10.0.0.11", "web", false, false), ip("10.0.0.12", "web", false, true),
		ip("10.0.0.99", "web", true, false),
		ip("10.0.0.20", "full", true, false), ip("10.0.0.21", "full", true, false),
		// Given by "late" before "web" was created again: counted where it is at home.
		ip("10.0.0.14", "late", true, false),
	}
	got := map[string]string{}
	for i, status := range compute(objects, ips, metav1.Unix(9, 0)) {
		ready := meta.FindStatusCondition(status.Conditions, v1alpha1.PoolReady)
		exhausted := meta.FindStatusCondition(status.Conditions, v1alpha1.PoolExhausted)
		got[objects[i].Name] = fmt.Sprintf("%d = %d+%d+%d+%d, outside %d, ready %s %s, exhausted %s, generation %d",
			status.Capacity, status.Allocated, status.Retained, status.Reserved, status.Free, status.Outside,
			ready.Status, ready.Reason, exhausted.Status, status.ObservedGeneration)
	}
	for name, want := range map[string]string{
		"web":      "5 = 2+1+1+1, outside 1, ready True Valid, exhausted False, generation 3",
		"full":     "2 = 2+0+0+0, outside 0, ready True Valid, exhausted True, generation 3",
		"late":     "2 = 0+0+0+2, outside 0, ready True Overlap, exhausted False, generation 3",
		"bad":      "0 = 0+0+0+0, outside 0, ready False Invalid, exhausted True, generation 3",
		"disabled": "1 = 0+0+0+1, outside 0, ready False Disabled, exhausted False, generation 3",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
}

// A round that changes nothing writes nothing: the time of the last transition
// stays.
func TestComputeIsStable(t *testing.T) {
	object := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1alpha1.IPPoolSpec{Subnet: "10.0.0.0/24", Ranges: []string{"10.0.0.9"}}}
	object.Status = compute([]*v1alpha1.IPPool{object}, nil, metav1.Unix(1, 0))[0]
	again := compute([]*v1alpha1.IPPool{object}, nil, metav1.Unix(2, 0))[0]
	for i, condition := range again.Conditions {
		if condition != object.Status.Conditions[i] {
			t.Errorf("condition %s changed from %v to %v", condition.Type, object.Status.Conditions[i], condition)
		}
	}
}
