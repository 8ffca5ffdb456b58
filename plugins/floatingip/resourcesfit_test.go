// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/noderesources"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// NodeResourcesFit of the linked Kubernetes version no longer sees the plugin's resources,
// and still sees all others.
func TestForgetInResourcesFit(t *testing.T) {
	plugin, err := noderesources.NewFit(t.Context(), &config.NodeResourcesFitArgs{
		ScoringStrategy: &config.ScoringStrategy{Type: config.LeastAllocated, Resources: []config.ResourceSpec{{Name: "cpu", Weight: 1}}},
	}, nil, feature.Features{})
	if err != nil {
		t.Fatal(err)
	}
	fit := plugin.(interface {
		fwk.PreFilterPlugin
		fwk.FilterPlugin
	})
	node := framework.NewNodeInfo()
	node.SetNode(&v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node1"},
		Status:     v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourcePods: resource.MustParse("9"), "example.com/gpu": resource.MustParse("1")}},
	})
	fits := func(requests v1.ResourceList, forget bool) *fwk.Status {
		pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Resources: v1.ResourceRequirements{Requests: requests}}}}}
		state := framework.NewCycleState()
		if _, status := fit.PreFilter(t.Context(), state, pod, nil); !status.IsSuccess() {
			t.Fatal(status)
		}
		if forget {
			forgetInResourcesFit(state)
		}
		return fit.Filter(t.Context(), state, pod, node)
	}
	one, two := resource.MustParse("1"), resource.MustParse("2")
	if status := fits(v1.ResourceList{v1alpha1.ResourceIP: one}, false); status.IsSuccess() {
		t.Fatal("NodeResourcesFit does not look at the resource: the test shows nothing")
	}
	if status := fits(v1.ResourceList{v1alpha1.ResourceIP: one, "example.com/gpu": one}, true); !status.IsSuccess() {
		t.Errorf("it still sees the resource: %v", status)
	}
	if status := fits(v1.ResourceList{v1alpha1.ResourceIP: one, "example.com/gpu": two}, true); status.IsSuccess() {
		t.Error("it no longer sees another resource")
	}
}

func TestForgetInResourcesFitWithout(t *testing.T) {
	forgetInResourcesFit(framework.NewCycleState()) // must not panic
}
