// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// Only its own agent writes which addresses a node carries, and a conflict of one of them; nobody
// but the controller which ones it should carry. The controller puts back what others take away.
func TestNodeAssignment(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	w.Nodes(2)
	w.Controller()
	w.Pool("storage", "10.0.70.2", func(pool *v1alpha1.IPPool) { pool.Spec.NodeAddresses = &v1alpha1.NodeAddresses{} }, simulation.OnNode("node1"))
	get := func() (*v1alpha1.NodeAssignment, error) {
		now, err := w.Berth.NodeAssignments.Get(w.Ctx, "node1", metav1.GetOptions{})
		if err == nil && (len(now.Spec.Addresses) != 1 || now.Spec.Addresses[0].Address != "10.0.70.2") {
			err = fmt.Errorf("it is %+v", now.Spec)
		}
		return now, err
	}
	w.Eventually("wait for the NodeAssignment", func() error { _, err := get(); return err })
	first, err := get()
	if err != nil {
		t.Fatal(err)
	}

	carry := func(as string, options metav1.PatchOptions) error {
		_, err := agentOf(w, as).NodeAssignments.Patch(w.Ctx, "node1", types.MergePatchType, []byte(`{"spec":{"addresses":[]},"status":{"carried":["10.0.70.2"]}}`), options, "status")
		return err
	}
	// The API server takes a moment to enforce a policy that was just made.
	w.Eventually("wait for the policy to be enforced", func() error {
		if carry("node2", metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}) == nil {
			return errors.New("the agent of another node can write the status")
		}
		return nil
	})
	for _, as := range []string{"node2", ""} {
		if err := carry(as, metav1.PatchOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `only the agent of node "node1" may write the status of its NodeAssignment`) {
			t.Errorf("an agent of node %q: %v, want it refused", as, err)
		}
	}
	if err := carry("node1", metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
	if now, err := get(); err != nil || !slices.Equal(now.Status.Carried, []string{"10.0.70.2"}) || now.UID != first.UID {
		t.Errorf("the agent wrote %+v, %v", now, err)
	}
	conflict := func(as string) error {
		_, err := asAgent(w, as).Patch(w.Ctx, "10.0.70.2", types.MergePatchType, []byte(`{"status":{"conditions":[{"type":"Conflict","status":"True","reason":"InUse","message":"host","lastTransitionTime":"2026-01-02T03:04:05Z"}]}}`), metav1.PatchOptions{}, "status")
		return err
	}
	if err := conflict("node2"); !apierrors.IsForbidden(err) {
		t.Errorf("the agent of another node reports a conflict: %v, want it refused", err)
	}
	if err := conflict("node1"); err != nil {
		t.Error(err)
	}
	if ip, err := w.Berth.FloatingIPs.Get(w.Ctx, "10.0.70.2", metav1.GetOptions{}); err != nil || !meta.IsStatusConditionTrue(ip.Status.Conditions, v1alpha1.FloatingIPConflict) {
		t.Errorf("the FloatingIP is %+v, %v", ip, err)
	}

	// A user who may write all objects, and is no administrator of Berth.
	config := rest.CopyConfig(w.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "jane"}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "writer"}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"nodeassignments"}, Verbs: []string{"create", "update", "patch", "delete"},
	}}}
	if _, err := w.Kube.RbacV1().ClusterRoles().Create(w.Ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.Bind("writer", "jane")
	jane, err := client.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	w.Eventually("wait for jane to be refused", func() error {
		_, err := jane.NodeAssignments.Patch(w.Ctx, "node1", types.MergePatchType, []byte(`{"spec":{"addresses":[]}}`), metav1.PatchOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "berth-controller writes NodeAssignments: set spec.nodeAddresses") {
			return fmt.Errorf("jane changes it: %w", err)
		}
		return nil
	})
	if _, err := jane.NodeAssignments.Create(w.Ctx, &v1alpha1.NodeAssignment{ObjectMeta: metav1.ObjectMeta{Name: "node2"}}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("jane makes one: %v, want it refused", err)
	}
	if err := jane.NodeAssignments.Delete(w.Ctx, "node1", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	w.Eventually("wait for the NodeAssignment to be back", func() error {
		now, err := get()
		if err == nil && now.UID == first.UID {
			err = errors.New("it is not deleted yet")
		}
		return err
	})
}
