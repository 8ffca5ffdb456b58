// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// Not even an administrator deletes the address of a pod that runs by mistake: that would give it
// to another. Nor does he take it from its pod. Berth itself may, and one that is retained anybody
// with the right to.
func TestHeldAddressIsNotDeleted(t *testing.T) {
	t.Parallel()
	w := simulation.Start(t, lab.ControlPlaneOptions{}, 1)
	w.Pool("web", "10.0.70.2")
	w.Create(simulation.NewPod("web-0", simulation.Policy(v1alpha1.ReleaseNever)))
	w.Bound("web-0")

	// The API server takes a moment to enforce a policy that was just made.
	w.Eventually("wait for the policy to be enforced", func() error {
		err := w.Berth.FloatingIPs.Delete(w.Ctx, "10.0.70.2", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return fmt.Errorf("a held address can be deleted")
		}
		return nil
	})
	err := w.Berth.FloatingIPs.Delete(w.Ctx, "10.0.70.2", metav1.DeleteOptions{})
	want := fmt.Sprintf("the address is held by pod %s/web-0: delete the pod instead, and the address is freed by its release policy Never; if there is no such pod any more, berth-controller does so by itself", simulation.Namespace)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("deleting a held address: %v, want %q", err, want)
	}
	patch := func(api *client.Client, spec string) error {
		_, err := api.FloatingIPs.Patch(w.Ctx, "10.0.70.2", types.MergePatchType, []byte(`{"spec":`+spec+`}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	if err := patch(w.Berth, `{"pod":null}`); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("taking a held address from its pod: %v, want %q", err, want)
	}
	if err := patch(w.Berth, `{"releasePolicy":"Retain"}`); err != nil {
		t.Errorf("another change of a held address: %v", err)
	}
	if err := patch(w.AsController(), `{"pod":null}`); err != nil {
		t.Errorf("the controller takes a held address from its pod: %v", err)
	}

	w.Delete("web-0")
	w.Eventually("wait for the address to be retained", func() error {
		ip, err := w.Berth.FloatingIPs.Get(w.Ctx, "10.0.70.2", metav1.GetOptions{})
		if err == nil && ip.Spec.Pod != nil {
			err = fmt.Errorf("it still is with %s", ip.Spec.Pod.Name)
		}
		return err
	})
	if err := w.Berth.FloatingIPs.Delete(w.Ctx, "10.0.70.2", metav1.DeleteOptions{}); err != nil {
		t.Errorf("deleting a retained address: %v", err)
	}
	w.Create(simulation.NewPod("web-1"))
	w.Bound("web-1")
	w.DeleteAll()
	w.Invariants()
}
