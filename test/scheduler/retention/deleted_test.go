// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/virtual"
)

// An address that an administrator frees rests as any other: with two schedulers, and
// when they start anew. Freed a second time it rests no more.
func TestDeletedAddressRests(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.WithNodes(t, virtual.Options{}, 1)
		first, second := w.Scheduler(simulation.SchedulerOptions{}), w.Scheduler(simulation.SchedulerOptions{})
		w.Controller()
		w.Pool("web", "10.0.70.2", func(pool *v1alpha1.IPPool) { pool.Spec.Cooldown = &metav1.Duration{Duration: time.Hour} })
		retainsWithoutPod(w, "web-0", "10.0.70.2")

		free(w, "10.0.70.2")
		w.Create(simulation.NewPod("web-1"))
		w.Refused("web-1")
		w.Eventually("wait for the cooldown to be recorded", func() error {
			ip, err := w.Berth.FloatingIPs.Get(w.Ctx, "10.0.70.2", metav1.GetOptions{})
			if err == nil && (ip.Spec.ReleasedAt == nil || ip.Spec.Owner != nil || ip.Spec.LastPod != "web-0" || ip.Spec.Pool != "web") {
				err = fmt.Errorf("the FloatingIP is %+v", ip.Spec)
			}
			return err
		})
		first.Kill()
		second.Kill()
		w.Scheduler(simulation.SchedulerOptions{})
		w.Create(simulation.NewPod("web-2"))
		w.Refused("web-2", "1 cooling down")
		w.Delete("web-2")

		free(w, "10.0.70.2")
		w.Bound("web-1")
		w.Invariants()
	})
}

// While no controller runs, the scheduler alone keeps it, and gives it away when it
// has rested.
func TestDeletedAddressRestsWithoutController(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.WithNodes(t, virtual.Options{}, 1)
		w.Scheduler(simulation.SchedulerOptions{})
		controller := w.Controller()
		w.Pool("web", "10.0.70.2", cooling)
		retainsWithoutPod(w, "web-0", "10.0.70.2")
		controller.Kill()

		begun := time.Now()
		free(w, "10.0.70.2")
		w.Create(simulation.NewPod("web-1"))
		w.Bound("web-1")
		if rested := time.Since(begun); rested < cooldown {
			t.Errorf("it rested for %s, less than %s", rested, cooldown)
		}
		w.Invariants()
	})
}

// retainsWithoutPod has an address retained by policy Never, for a pod that is gone.
func retainsWithoutPod(w *simulation.World, pod, address string) {
	w.T.Helper()
	w.Create(simulation.NewPod(pod, simulation.Policy(v1alpha1.ReleaseNever)))
	w.Bound(pod)
	w.Delete(pod)
	w.Eventually("wait for "+address+" to be retained", func() error {
		ip, err := w.Berth.FloatingIPs.Get(w.Ctx, address, metav1.GetOptions{})
		if err == nil && ip.Spec.Pod != nil {
			err = fmt.Errorf("it is with %s", ip.Spec.Pod.Name)
		}
		return err
	})
}

// free deletes a FloatingIP as an administrator does.
func free(w *simulation.World, address string) {
	w.T.Helper()
	if err := w.Berth.FloatingIPs.Delete(w.Ctx, address, metav1.DeleteOptions{}); err != nil {
		w.T.Fatal(err)
	}
}
