// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// asAgent returns a client with the identity of a node's agent, whose token names the node.
func asAgent(w *simulation.World, node string) *client.FloatingIPs {
	w.T.Helper()
	return agentOf(w, node).FloatingIPs
}

// agentOf returns all clients of such an agent.
func agentOf(w *simulation.World, node string) *client.Client {
	w.T.Helper()
	config := rest.CopyConfig(w.Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + w.System + ":berth-agent",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + w.System, "system:authenticated"},
	}
	if node != "" {
		config.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
	}
	api, err := client.NewForConfig(config)
	if err != nil {
		w.T.Fatal(err)
	}
	return api
}

// An address that a host outside of the cluster has goes to no other owner when its pod is
// gone, until somebody deletes the FloatingIP. Only the agent of the pod's node reports
// it, and nothing else.
func TestConflict(t *testing.T) {
	t.Parallel()
	w := simulation.Start(t, lab.ControlPlaneOptions{}, 2)
	w.Pool("web", "10.0.70.2")
	w.Create(simulation.NewPod("web-0"))
	node := w.Bound("web-0")[0].Spec.NodeName
	other := map[string]string{"node1": "node2", "node2": "node1"}[node]
	patch, err := json.Marshal(map[string]any{
		"spec": map[string]any{"reserved": true},
		"status": v1alpha1.FloatingIPStatus{Conditions: []metav1.Condition{{
			Type: v1alpha1.FloatingIPConflict, Status: metav1.ConditionTrue, Reason: "InUse", Message: "host", LastTransitionTime: metav1.Now(),
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	report := func(as string, options metav1.PatchOptions, subresource ...string) error {
		_, err := asAgent(w, as).Patch(w.Ctx, "10.0.70.2", types.MergePatchType, patch, options, subresource...)
		return err
	}
	// The API server takes a moment to enforce a policy that was just made.
	w.Eventually("wait for the policy to be enforced", func() error {
		if report(other, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, "status") == nil {
			return errors.New("the agent of another node can write the status")
		}
		return nil
	})
	for _, as := range []string{other, ""} {
		if err := report(as, metav1.PatchOptions{}, "status"); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), fmt.Sprintf("its node is %q, the address is on %q", as, node)) {
			t.Errorf("an agent of node %q: %v, want it refused", as, err)
		}
	}
	if err := report(node, metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the agent changes the address itself: %v, want it refused", err)
	}
	if err := report(node, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	ip, err := w.Berth.FloatingIPs.Get(w.Ctx, "10.0.70.2", metav1.GetOptions{})
	if err != nil || !ip.InConflict() || ip.Spec.Reserved || ip.Spec.Pod == nil {
		t.Errorf("the agent wrote %+v, %v", ip, err)
	}

	w.Delete("web-0")
	w.Eventually("wait for the address to be without an owner", func() error {
		ip, err := w.Berth.FloatingIPs.Get(w.Ctx, "10.0.70.2", metav1.GetOptions{})
		if err == nil && (ip.Spec.Owner != nil || ip.Spec.Pod != nil || !ip.InConflict()) {
			err = fmt.Errorf("it is %+v", ip)
		}
		return err
	})
	w.Create(simulation.NewPod("web-1"))
	w.Refused("web-1")
	if err := report(node, metav1.PatchOptions{}, "status"); !apierrors.IsForbidden(err) {
		t.Errorf("the agent writes the status of an address without a pod: %v, want it refused", err)
	}
	// The host is gone, says the administrator.
	if err := w.Berth.FloatingIPs.Delete(w.Ctx, "10.0.70.2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.Bound("web-1")
	w.DeleteAll()
	w.Invariants()
}
