// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// For a pod that nothing can serve, kube-scheduler tries no preemption on any node, and the pod is
// tried again as soon as something can.
func TestNoPreemptionForImpossible(t *testing.T) {
	t.Parallel()
	w := simulation.Start(t, lab.ControlPlaneOptions{}, 2)
	high := makePriority(w, "high", 1000, v1.PreemptLowerPriority)
	w.Pool("web", "10.0.70.2-10.0.70.9")
	w.Create(simulation.NewPods("web", 4)...)
	w.Bound(simulation.NamesOf(simulation.NewPods("web", 4))...)
	const none = "0/2 nodes are available: 2 Preemption is not helpful for scheduling"
	w.Create(
		simulation.NewPod("no-pool", simulation.And(simulation.FromPools("other"), high)),
		simulation.NewPod("no-claim", simulation.And(simulation.Annotated(v1alpha1.AnnotationClaim, "licences"), high)),
	)
	w.Refused("no-pool", `there is no IPPool "other"`, none)
	w.Refused("no-claim", `there is no IPClaim "licences"`, none)

	w.Pool("other", "10.0.70.10")
	w.Bound("no-pool")
	if _, err := w.Berth.IPClaims(simulation.Namespace).Create(w.Ctx, &v1alpha1.IPClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "licences"}, Spec: v1alpha1.IPClaimSpec{Size: 1},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.Bound("no-claim")
	w.Invariants()
}
