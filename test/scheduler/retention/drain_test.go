// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// A node is drained on which both replicas of a program are: one goes, the other
// only when there is another.
func TestDrainLeavesOneReplica(t *testing.T) {
	t.Parallel()
	w := simulation.WithNodes(t, lab.ControlPlaneOptions{Controllers: true}, 1)
	for _, program := range []string{"scheduler", "controller"} {
		name := "berth-" + program
		objects, err := deploy.Manifest(program + "/deployment.yaml")
		if err != nil {
			t.Fatal(err)
		}
		deployments := appsv1.SchemeGroupVersion.WithResource("deployments")
		if _, err := w.Dynamic.Resource(deployments).Namespace(w.System).Create(w.Ctx, objects[0], metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		bound := bindPodsOf(w, name, 2)
		budget := func() error {
			budget, err := w.Kube.PolicyV1().PodDisruptionBudgets(w.System).Get(w.Ctx, name, metav1.GetOptions{})
			if err == nil && budget.Status.DisruptionsAllowed != 1 {
				err = fmt.Errorf("it allows %d disruptions of %d pods", budget.Status.DisruptionsAllowed, budget.Status.CurrentHealthy)
			}
			return err
		}
		w.Eventually("wait for the budget of "+name, budget)
		if err := evict(w, bound[0]); err != nil {
			t.Errorf("evict the first pod of %s: %v", name, err)
		}
		if err := evict(w, bound[1]); !apierrors.IsTooManyRequests(err) {
			t.Errorf("evict the second pod of %s: %v, want it refused for now", name, err)
		}
		bindPodsOf(w, name, 2)
		w.Eventually("wait for the second to be evicted", func() error { return evict(w, bound[1]) })
	}
}

// bindPodsOf binds pods of one of Berth's Deployments as they come, and returns
// their names when there are so many that run.
func bindPodsOf(w *simulation.World, name string, want int) []string {
	w.T.Helper()
	var running []string
	w.Eventually("wait for the pods of "+name, func() error {
		list, err := w.Kube.CoreV1().Pods(w.System).List(w.Ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + name})
		if err != nil {
			return err
		}
		running = nil
		for i := range list.Items {
			pod := &list.Items[i]
			if pod.Spec.NodeName == "" {
				err := w.Kube.CoreV1().Pods(w.System).Bind(w.Ctx, &v1.Binding{
					ObjectMeta: metav1.ObjectMeta{Name: pod.Name, UID: pod.UID},
					Target:     v1.ObjectReference{Kind: "Node", Name: "node1"},
				}, metav1.CreateOptions{})
				if err != nil {
					return err
				}
			}
			if pod.Status.Phase == v1.PodRunning && pod.DeletionTimestamp == nil {
				running = append(running, pod.Name)
			}
		}
		if len(running) != want {
			return fmt.Errorf("%d of %d run", len(running), want)
		}
		return nil
	})
	return running
}

// evict asks for a pod's eviction as kubectl drain does.
func evict(w *simulation.World, pod string) error {
	return w.Kube.PolicyV1().Evictions(w.System).Evict(w.Ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: w.System}})
}
