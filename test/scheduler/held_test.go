// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
)

// Not even an administrator deletes the address of a pod that runs by mistake:
// that would give it to another. Berth itself may, and one that is retained
// anybody with the right to.
func TestHeldAddressIsNotDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(1)
	w.kubelet()
	w.scheduler(schedulerOptions{})
	w.controller()
	w.pool("web", "10.0.70.2")
	w.create(newPod("web-0", policy(v1alpha1.ReleaseNever)))
	w.bound("web-0")

	// The API server takes a moment to enforce a policy that was just made.
	w.eventually("wait for the policy to be enforced", func() error {
		err := w.berth.FloatingIPs.Delete(w.ctx, "10.0.70.2", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return fmt.Errorf("a held address can be deleted")
		}
		return nil
	})
	err := w.berth.FloatingIPs.Delete(w.ctx, "10.0.70.2", metav1.DeleteOptions{})
	want := fmt.Sprintf("the address is held by pod %s/web-0: delete the pod instead, and the address is freed by its release policy Never; if there is no such pod any more, patch spec.pod to null first", namespace)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("deleting a held address: %v, want %q", err, want)
	}

	w.delete("web-0")
	w.eventually("wait for the address to be retained", func() error {
		ip, err := w.berth.FloatingIPs.Get(w.ctx, "10.0.70.2", metav1.GetOptions{})
		if err == nil && ip.Spec.Pod != nil {
			err = fmt.Errorf("it still is with %s", ip.Spec.Pod.Name)
		}
		return err
	})
	if err := w.berth.FloatingIPs.Delete(w.ctx, "10.0.70.2", metav1.DeleteOptions{}); err != nil {
		t.Errorf("deleting a retained address: %v", err)
	}
	w.create(newPod("web-1"))
	w.bound("web-1")
	w.deleteAll()
	w.invariants()
}

// What came with a pod's Binding stays: nobody makes a bound pod name other
// addresses, so that its own are taken for surplus.
func TestBoundAnnotationIsNotChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(1)
	w.kubelet()
	w.scheduler(schedulerOptions{})
	w.pool("web", "10.0.70.2-10.0.70.3")
	w.create(newPod("web-0"))
	w.bound("web-0")
	edit := func(value string, options metav1.PatchOptions) error {
		patch := []byte(`{"metadata":{"annotations":{"berth.dev/floatingips":` + value + `}}}`)
		_, err := w.kube.CoreV1().Pods(namespace).Patch(w.ctx, "web-0", types.MergePatchType, patch, options)
		return err
	}
	// The API server takes a moment to enforce a policy that was just made.
	w.eventually("wait for the policy to be enforced", func() error {
		if edit("null", metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}) == nil {
			return fmt.Errorf("the annotation can be removed")
		}
		return nil
	})
	for _, value := range []string{`"10.0.70.3"`, `""`, "null"} {
		if err := edit(value, metav1.PatchOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "annotation berth.dev/floatingips is the scheduler's") {
			t.Errorf("changing the annotation to %s: %v, want it refused", value, err)
		}
	}
	// Nor the pod's node, which may write its status.
	patch := []byte(`{"metadata":{"annotations":{"berth.dev/floatingips":"10.0.70.3"}}}`)
	if _, err := w.asNode("node1").CoreV1().Pods(namespace).Patch(w.ctx, "web-0", types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "annotation berth.dev/floatingips is the scheduler's") {
		t.Errorf("the node changes the annotation with the pod's status: %v, want it refused", err)
	}
	w.annotate("web-0", "another", "one")
	w.invariants()
}
