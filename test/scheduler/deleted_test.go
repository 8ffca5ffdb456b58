// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
)

// An address that an administrator frees rests as any other: with two schedulers, and
// when they start anew. Freed a second time it rests no more.
func TestDeletedAddressRests(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(1)
	w.kubelet()
	first, second := w.scheduler(schedulerOptions{}), w.scheduler(schedulerOptions{})
	w.controller()
	w.pool("web", "10.0.70.2", func(pool *v1alpha1.IPPool) { pool.Spec.Cooldown = &metav1.Duration{Duration: time.Hour} })
	w.retainsWithoutPod("web-0", "10.0.70.2")

	w.free("10.0.70.2")
	w.create(newPod("web-1"))
	w.refused("web-1")
	w.eventually("wait for the cooldown to be recorded", func() error {
		ip, err := w.berth.FloatingIPs.Get(w.ctx, "10.0.70.2", metav1.GetOptions{})
		if err == nil && (ip.Spec.ReleasedAt == nil || ip.Spec.Owner != nil || ip.Spec.LastPod != "web-0" || ip.Spec.Pool != "web") {
			err = fmt.Errorf("the FloatingIP is %+v", ip.Spec)
		}
		return err
	})
	first.kill()
	second.kill()
	w.scheduler(schedulerOptions{})
	w.create(newPod("web-2"))
	w.refused("web-2", "1 cooling down")
	w.delete("web-2")

	w.free("10.0.70.2")
	w.bound("web-1")
	w.invariants()
}

// While no controller runs, the scheduler alone keeps it, and gives it away when it
// has rested.
func TestDeletedAddressRestsWithoutController(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(1)
	w.kubelet()
	w.scheduler(schedulerOptions{})
	controller := w.controller()
	w.pool("web", "10.0.70.2", cooling)
	w.retainsWithoutPod("web-0", "10.0.70.2")
	controller.kill()

	begun := time.Now()
	w.free("10.0.70.2")
	w.create(newPod("web-1"))
	w.bound("web-1")
	if rested := time.Since(begun); rested < cooldown {
		t.Errorf("it rested for %s, less than %s", rested, cooldown)
	}
	w.invariants()
}

// retainsWithoutPod has an address retained by policy Never, for a pod that is gone.
func (w *world) retainsWithoutPod(pod, address string) {
	w.t.Helper()
	w.create(newPod(pod, policy(v1alpha1.ReleaseNever)))
	w.bound(pod)
	w.delete(pod)
	w.eventually("wait for "+address+" to be retained", func() error {
		ip, err := w.berth.FloatingIPs.Get(w.ctx, address, metav1.GetOptions{})
		if err == nil && ip.Spec.Pod != nil {
			err = fmt.Errorf("it is with %s", ip.Spec.Pod.Name)
		}
		return err
	})
}

// free deletes a FloatingIP as an administrator does.
func (w *world) free(address string) {
	w.t.Helper()
	if err := w.berth.FloatingIPs.Delete(w.ctx, address, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
}
