// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// The scheduler starts with each kind of values that the chart has for it, and schedules pods
// of all of its names, also such as name no scheduler.
func TestAsDefaultScheduler(t *testing.T) {
	t.Parallel()
	w := simulation.WithNodes(t, lab.ControlPlaneOptions{}, 2)
	w.Pool("web", "10.0.70.2-10.0.70.9")
	w.Scheduler(simulation.SchedulerOptions{Values: map[string]any{"scheduler": map[string]any{
		"names":   []string{simulation.SchedulerName, v1.DefaultSchedulerName},
		"weights": map[string]any{"FloatingIP": 3, "NodeResourcesFit": 9, "ImageLocality": 0},
		"pluginArgs": map[string]any{
			"NodeResourcesFit":  map[string]any{"scoringStrategy": map[string]any{"type": "MostAllocated"}},
			"PodTopologySpread": map[string]any{"defaultingType": "List"},
		},
	}}})
	unnamed := func(pod *v1.Pod) { pod.Spec.SchedulerName = "" }
	ordinary := func(pod *v1.Pod) { pod.Spec.Containers[0].Resources = v1.ResourceRequirements{} }
	w.Create(simulation.NewPod("named"), simulation.NewPod("unnamed", unnamed), simulation.NewPod("ordinary", unnamed, ordinary))
	w.Bound("named", "unnamed", "ordinary")
	ips, err := w.IPs()
	if err != nil {
		t.Fatal(err)
	}
	var holders []string
	for _, ip := range ips {
		holders = append(holders, ip.Spec.Pod.Name)
	}
	slices.Sort(holders)
	if !slices.Equal(holders, []string{"named", "unnamed"}) {
		t.Errorf("%q have addresses", holders)
	}
}

// The replicas of each program are on nodes of the control plane, although its taint keeps other
// pods away: with one such node all are there, for no other node is to have their tokens. With
// several, or none, they are on two nodes.
func TestControlPlaneFirst(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		control []int
		nodes   int // of the replicas
	}{"one": {[]int{5}, 1}, "three": {[]int{1, 3, 5}, 2}, "none": {nil, 2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := simulation.New(t, lab.ControlPlaneOptions{})
			for i := range 8 {
				labels := map[string]string{}
				if slices.Contains(test.control, i) {
					labels["node-role.kubernetes.io/control-plane"] = ""
				}
				if err := w.Node(w.Ctx, fmt.Sprintf("node%d", i), fmt.Sprintf("10.0.60.%d", 10+i), labels); err != nil {
					t.Fatal(err)
				}
			}
			var control []string
			for _, i := range test.control {
				node, err := w.Kube.CoreV1().Nodes().Get(w.Ctx, fmt.Sprintf("node%d", i), metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				node.Spec.Taints = []v1.Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: v1.TaintEffectNoSchedule}}
				if _, err := w.Kube.CoreV1().Nodes().Update(w.Ctx, node, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				control = append(control, node.Name)
			}
			w.Scheduler(simulation.SchedulerOptions{})
			for _, object := range w.Chart(map[string]any{"failover": map[string]any{"enabled": true}}) {
				if object.GetKind() != "Deployment" {
					continue
				}
				var deployment appsv1.Deployment
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &deployment); err != nil {
					t.Fatal(err)
				}
				var names []string
				for i := range *deployment.Spec.Replicas {
					pod := &v1.Pod{ObjectMeta: deployment.Spec.Template.ObjectMeta, Spec: deployment.Spec.Template.Spec}
					pod.Name = fmt.Sprintf("%s-%d", deployment.Name, i)
					pod.Spec.SchedulerName, pod.Spec.ServiceAccountName = simulation.SchedulerName, ""
					w.Create(pod)
					names = append(names, pod.Name)
				}
				nodes := map[string]bool{}
				for _, pod := range w.Bound(names...) {
					nodes[pod.Spec.NodeName] = true
					if len(control) > 0 && !slices.Contains(control, pod.Spec.NodeName) {
						t.Errorf("pod %s is on %s", pod.Name, pod.Spec.NodeName)
					}
				}
				if len(nodes) != test.nodes {
					t.Errorf("the pods of %s are on %d nodes, want %d", deployment.Name, len(nodes), test.nodes)
				}
			}
		})
	}
}
