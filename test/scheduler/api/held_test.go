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
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// Not even an administrator deletes the address of a pod that runs by mistake:
// that would give it to another. Berth itself may, and one that is retained
// anybody with the right to.
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
	want := fmt.Sprintf("the address is held by pod %s/web-0: delete the pod instead, and the address is freed by its release policy Never; if there is no such pod any more, patch spec.pod to null first", simulation.Namespace)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("deleting a held address: %v, want %q", err, want)
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

// The annotation that came with a pod's Binding stays: nobody makes a bound pod name other
// addresses, so that its own are taken for surplus.
func TestBoundAnnotationIsNotChanged(t *testing.T) {
	t.Parallel()
	w := simulation.WithNodes(t, lab.ControlPlaneOptions{}, 1)
	w.Scheduler(simulation.SchedulerOptions{})
	w.Pool("web", "10.0.70.2-10.0.70.3")
	w.Create(simulation.NewPod("web-0"))
	w.Bound("web-0")
	edit := func(value string, options metav1.PatchOptions) error {
		patch := []byte(`{"metadata":{"annotations":{"berth.dev/floating-ips":` + value + `}}}`)
		_, err := w.Kube.CoreV1().Pods(simulation.Namespace).Patch(w.Ctx, "web-0", types.MergePatchType, patch, options)
		return err
	}
	// The API server takes a moment to enforce a policy that was just made.
	w.Eventually("wait for the policy to be enforced", func() error {
		if edit("null", metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}) == nil {
			return fmt.Errorf("the annotation can be removed")
		}
		return nil
	})
	for _, value := range []string{`"10.0.70.3"`, `""`, "null"} {
		if err := edit(value, metav1.PatchOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "annotation berth.dev/floating-ips is set by the scheduler") {
			t.Errorf("changing the annotation to %s: %v, want it refused", value, err)
		}
	}
	// The policy knows the pod by its label.
	for _, label := range []string{`"false"`, "null"} {
		patch := []byte(`{"metadata":{"labels":{"berth.dev/floating-ips":` + label + `}}}`)
		if _, err := w.Kube.CoreV1().Pods(simulation.Namespace).Patch(w.Ctx, "web-0", types.MergePatchType, patch, metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("changing the label to %s: %v, want it refused", label, err)
		}
	}
	// Nor the pod's node, which may write its status.
	patch := []byte(`{"metadata":{"annotations":{"berth.dev/floating-ips":"10.0.70.3"}}}`)
	if _, err := w.AsNode("node1").CoreV1().Pods(simulation.Namespace).Patch(w.Ctx, "web-0", types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "annotation berth.dev/floating-ips is set by the scheduler") {
		t.Errorf("the node changes the annotation with the pod's status: %v, want it refused", err)
	}
	w.Annotate("web-0", "another", "one")
	w.Invariants()
}
