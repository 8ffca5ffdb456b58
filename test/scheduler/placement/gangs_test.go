// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// gang makes a PodGroup whose pods are scheduled all or none, and returns these pods.
func gang(w *simulation.World, name string, n int, options ...func(*v1.Pod)) []*v1.Pod {
	w.T.Helper()
	if _, err := w.Kube.SchedulingV1alpha2().PodGroups(simulation.Namespace).Create(w.Ctx, &schedulingv1alpha2.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: schedulingv1alpha2.PodGroupSpec{SchedulingPolicy: schedulingv1alpha2.PodGroupSchedulingPolicy{
			Gang: &schedulingv1alpha2.GangSchedulingPolicy{MinCount: int32(n)},
		}},
	}, metav1.CreateOptions{}); err != nil {
		w.T.Fatal(err)
	}
	inGroup := func(pod *v1.Pod) { pod.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &name} }
	return simulation.NewPods(name, n, append(options, inGroup)...)
}

// Pods of a gang get their addresses together or not at all. A gang that has to wait holds none, so
// that two gangs do not wait for each other, and other pods may have what is left.
func TestGangs(t *testing.T) {
	t.Parallel()
	const gates = "--feature-gates=GenericWorkload=true,GangScheduling=true"
	w := simulation.WithNodes(t, lab.ControlPlaneOptions{APIServerFlags: []string{gates, "--runtime-config=scheduling.k8s.io/v1alpha2=true"}}, 2)
	w.Scheduler(simulation.SchedulerOptions{Flags: []string{gates}})
	w.Controller()
	w.Pool("web", "10.0.70.2-10.0.70.5")

	first, second := gang(w, "first", 3), gang(w, "second", 3)
	for i := range first {
		w.Create(first[i], second[i])
	}
	var whole, waits []*v1.Pod
	w.Eventually("wait for one gang to be bound", func() error {
		pods, err := w.Pods()
		if err != nil {
			return err
		}
		bound := map[string]int{}
		for i := range pods {
			if pods[i].Spec.NodeName != "" {
				bound[*pods[i].Spec.SchedulingGroup.PodGroupName]++
			}
		}
		switch {
		case bound["first"] == 3 && bound["second"] == 0:
			whole, waits = first, second
		case bound["second"] == 3 && bound["first"] == 0:
			whole, waits = second, first
		default:
			return fmt.Errorf("bound are %v", bound)
		}
		return nil
	})
	refused := func() {
		t.Helper()
		w.Eventually("wait for the other gang to be refused", func() error {
			for _, pod := range waits {
				text := fmt.Sprint(simulation.ConditionTexts(w.Get(pod.Name)))
				if !slices.ContainsFunc(w.Get(pod.Name).Status.Conditions, func(c v1.PodCondition) bool {
					return c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse && c.Reason == v1.PodReasonUnschedulable
				}) {
					return fmt.Errorf("%s: %s", pod.Name, text)
				}
			}
			return nil
		})
	}
	refused()

	// Nobody has the address that the gang could not use.
	w.Create(simulation.NewPod("single"))
	w.Bound("single")
	ips, err := w.IPs()
	if err != nil || len(ips) != 4 {
		t.Errorf("%d addresses are taken, %v; want those of three pods of the gang and of one other", len(ips), err)
	}

	for i, pod := range whole {
		w.Delete(pod.Name)
		if i == len(whole)-1 {
			break
		}
		refused()
		for _, pod := range waits {
			if w.Get(pod.Name).Spec.NodeName != "" {
				t.Errorf("%s is bound without its gang", pod.Name)
			}
		}
	}
	w.Bound(simulation.NamesOf(waits)...)

	// A gang that is more important preempts as many as it needs.
	urgent := gang(w, "urgent", 2, makePriority(w, "urgent", 1000, v1.PreemptLowerPriority))
	w.Create(urgent...)
	w.Bound(simulation.NamesOf(urgent)...)
	w.Invariants()
}
