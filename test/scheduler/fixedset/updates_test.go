// SPDX-License-Identifier: Apache-2.0

package fixedset

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/virtual"
)

// Deployments that keep their addresses are updated again and again: the end of an old pod has
// scheduler and controller write the same FloatingIP, and no pod pays for that with a failed Bind
// and back-off.
func TestUpdatesBindAtOnce(t *testing.T) {
	t.Parallel()
	const replicas, updates = 10, 15
	virtual.Test(t, func(t *testing.T) {
		w := virtual.Start(t, virtual.Options{Controllers: true}, 3)
		w.Pool("web", "10.0.70.2-10.0.70.99")
		one, none := intstr.FromInt32(1), intstr.FromInt32(0)
		for name, surge := range map[string]intstr.IntOrString{"surges": one, "ends-first": none} {
			w.CreateDeployment(name, replicas, appsv1.DeploymentStrategy{
				Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &one},
			}, simulation.Policy(v1alpha1.ReleaseRetain))
			w.RolledOut(name, replicas)
			for update := range updates {
				w.PatchDeployment(name, fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"version":"%d"}}}}}`, update))
				w.RolledOut(name, replicas)
			}
		}
		w.Invariants()
		events, err := w.Kube.CoreV1().Events(simulation.Namespace).List(w.Ctx, metav1.ListOptions{FieldSelector: "reason=FailedScheduling"})
		if err != nil {
			t.Fatal(err)
		}
		for i := range events.Items {
			if e := &events.Items[i]; strings.Contains(e.Message, "Bind plugin") {
				t.Errorf("pod %s: %s", e.InvolvedObject.Name, e.Message)
			}
		}
	})
}
