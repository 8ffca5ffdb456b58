// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// Somebody who has a node's credentials can get the node into a pool by
// an InternalIP that it reports, and by a label, but not by one that is the
// administrator's. docs/explanation/security.md says so.
func TestNodeCannotJoinProtectedPool(t *testing.T) {
	t.Parallel()
	w := simulation.WithNodes(t, lab.ControlPlaneOptions{}, 2)
	w.Scheduler(simulation.SchedulerOptions{})
	const (
		protected   = "node-restriction.kubernetes.io/berth-pool"
		unprotected = "example.com/berth-pool"
	)
	byLabel := func(key string) func(*v1alpha1.IPPool) {
		return func(pool *v1alpha1.IPPool) {
			pool.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{key: "dmz"}}
		}
	}
	w.Pool("protected", "10.0.70.2-10.0.70.9", byLabel(protected))
	w.Pool("by-label", "10.0.70.10-10.0.70.19", byLabel(unprotected))
	w.Pool("by-address", "10.0.70.20-10.0.70.29", func(pool *v1alpha1.IPPool) { pool.Spec.NodeSubnets = []string{"10.0.61.0/24"} })
	for _, pool := range []string{"protected", "by-label", "by-address"} {
		w.Create(simulation.NewPod(pool, simulation.FromPools(pool)))
		w.Refused(pool, "in no IPPool that the pod may use")
	}

	node2 := w.AsNode("node2")
	label := func(key string) error {
		_, err := node2.CoreV1().Nodes().Patch(w.Ctx, "node2", types.MergePatchType, []byte(`{"metadata":{"labels":{"`+key+`":"dmz"}}}`), metav1.PatchOptions{})
		return err
	}
	const address = `{"status":{"addresses":[{"type":"InternalIP","address":"10.0.61.12"}]}}`
	if _, err := node2.CoreV1().Nodes().Patch(w.Ctx, "node2", types.StrategicMergePatchType, []byte(address), metav1.PatchOptions{}, "status"); err != nil {
		t.Errorf("a node reports another InternalIP: %v; docs/explanation/security.md warns of it", err)
	}
	if err := label(protected); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), protected) {
		t.Errorf("a node gives itself the label %s: %v, want it refused", protected, err)
	}
	if err := label(unprotected); err != nil {
		t.Errorf("a node gives itself the label %s: %v; docs/explanation/security.md warns of it", unprotected, err)
	}
	for _, pool := range []string{"by-label", "by-address"} {
		if pod := w.Bound(pool)[0]; pod.Spec.NodeName != "node2" {
			t.Errorf("pod %s is on %s", pool, pod.Spec.NodeName)
		}
	}

	// The administrator decides, and only now has the pod a node.
	if pod := w.Get("protected"); pod.Spec.NodeName != "" {
		t.Errorf("pod protected is on %s, which is not in its pool", pod.Spec.NodeName)
	}
	w.Label("node1", protected, "dmz")
	if pod := w.Bound("protected")[0]; pod.Spec.NodeName != "node1" {
		t.Errorf("pod protected is on %s", pod.Spec.NodeName)
	}
	w.Invariants()
}
