// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// A node's cap counts addresses, under whichever resource name the node advertises and pods
// request them.
func TestWithinNode(t *testing.T) {
	pod := func(name v1.ResourceName, n string) *v1.Pod {
		list := v1.ResourceList{name: resource.MustParse(n)}
		return &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Resources: v1.ResourceRequirements{Requests: list, Limits: list}}}}}
	}
	for _, test := range []struct {
		name      string
		cap       v1.ResourceName
		runs, pod *v1.Pod
		galaxy    bool
		ok        bool
	}{
		{"the last", v1alpha1.ResourceIP, pod(v1alpha1.ResourceIP, "7"), pod(v1alpha1.ResourceIP, "1"), false, true},
		{"one more", v1alpha1.ResourceIP, pod(v1alpha1.ResourceIP, "8"), pod(v1alpha1.ResourceIP, "1"), false, false},
		{"the last, in Galaxy's words", v1alpha1.ResourceIP, pod(v1alpha1.ResourceIP, "7"), pod(galaxy.ResourceENIIP, "1"), true, true},
		{"one more, in Galaxy's words", v1alpha1.ResourceIP, pod(v1alpha1.ResourceIP, "8"), pod(galaxy.ResourceENIIP, "1"), true, false},
		{"one more than was asked for in Galaxy's words", v1alpha1.ResourceIP, pod(galaxy.ResourceENIIP, "8"), pod(v1alpha1.ResourceIP, "1"), true, false},
		{"one more than Galaxy's cap", galaxy.ResourceENIIP, pod(v1alpha1.ResourceIP, "8"), pod(v1alpha1.ResourceIP, "1"), true, false},
		{"Galaxy's words are not understood", v1alpha1.ResourceIP, pod(galaxy.ResourceENIIP, "8"), pod(v1alpha1.ResourceIP, "8"), false, true},
		{"another cap", "example.com/gpu", pod(v1alpha1.ResourceIP, "8"), pod(v1alpha1.ResourceIP, "8"), true, true},
	} {
		node := framework.NewNodeInfo(test.runs)
		node.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}, Status: v1.NodeStatus{Allocatable: v1.ResourceList{test.cap: resource.MustParse("8")}}})
		if status := withinNode(podrequest.Reader{Galaxy: test.galaxy}, test.pod, node); status.IsSuccess() != test.ok {
			t.Errorf("%s: withinNode() = %v, want success %v", test.name, status, test.ok)
		}
	}
}
