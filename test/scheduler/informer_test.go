// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/test/lab"
)

// The scheduler learns late of an address that came free, after it has learnt of
// all that happened with pods. The pod that waits starts nevertheless.
func TestLateWatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(3)
	w.kubelet()
	w.controller()
	scheduler := w.scheduler(schedulerOptions{})
	w.pool("web", "10.0.70.2")
	w.occupy("web")
	w.create(newPod("late"))
	w.refused("late")

	release := scheduler.holdWatch("floatingips")
	w.delete("web-first")
	w.eventually("wait for the address to be freed", func() error {
		ips, err := w.ips()
		if err == nil && len(ips) > 0 {
			err = fmt.Errorf("%s is in use", ips[0].Name)
		}
		return err
	})
	// A change that makes the scheduler look at the pod once more, in vain.
	w.annotate("late", "test", "look")
	w.create(newPod("plain", asking("0")))
	w.bound("plain")
	if pod := w.get("late"); pod.Spec.NodeName != "" {
		t.Fatal("the pod was bound before the scheduler knew of a free address")
	}
	release()
	w.bound("late")
	w.invariants()
}

// Another scheduler's claims arrive late: the API server refuses to give their
// addresses once more, and the pods get others.
func TestLateNewsOfClaims(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(3)
	w.kubelet()
	w.controller()
	scheduler := w.scheduler(schedulerOptions{})
	w.pool("web", "10.0.70.2-10.0.70.9")
	w.occupy("web")
	release := scheduler.holdWatch("floatingips")
	for i := 3; i < 7; i++ {
		w.reserve(fmt.Sprintf("10.0.70.%d", i))
	}
	pods := newPods("web", 3)
	w.create(pods...)
	w.eventually("wait for the API server to refuse a claim", func() error {
		refused := scheduler.seen(func(c call) bool {
			return c.Method == http.MethodPost && c.Path == floatingIPs && c.Code == http.StatusConflict
		})
		if len(refused) == 0 {
			return fmt.Errorf("it refused none")
		}
		return nil
	})
	w.bound(namesOf(pods)...)
	release()
	w.invariants()
}

// A scheduler that starts learns of all addresses in use from one list, and gives
// none of them again.
func TestSchedulerRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(3)
	w.kubelet()
	w.controller()
	w.pool("web", "10.0.70.2-10.0.70.249")
	first := w.scheduler(schedulerOptions{})
	pods := newPods("web", 150)
	w.create(pods...)
	w.eventually("wait for the pods to be bound", func() error { return w.countBound(150) })
	first.kill()

	second := w.scheduler(schedulerOptions{})
	w.create(newPods("more", 50)...)
	w.eventually("wait for more pods to be bound", func() error { return w.countBound(200) })
	w.invariants()
	lists := second.seen(func(c call) bool {
		return c.Method == http.MethodGet && c.Path == floatingIPs && (!c.Watch || c.Initial)
	})
	gets := second.seen(func(c call) bool { return c.Method == http.MethodGet && strings.HasPrefix(c.Path, floatingIPs+"/") })
	claims := second.seen(func(c call) bool { return c.Method == http.MethodPost && c.Path == floatingIPs })
	if len(lists) != 1 || len(gets) != 0 || len(claims) != 50 {
		t.Errorf("it made %d lists, %d gets and %d claims, want 1, 0 and 50: %v", len(lists), len(gets), len(claims), lists)
	}
}

// A claim that the API server refuses for another reason than a conflict is tried
// again with back-off: pods that give back the addresses they reserved do not wake
// each other.
func TestClaimRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(3)
	w.kubelet()
	scheduler := w.scheduler(schedulerOptions{})
	w.pool("web", "10.0.70.2-10.0.70.3")
	accept := scheduler.refuse(isClaim)
	w.create(newPods("web", 3)...)
	var refused []call
	const rounds = 3 * 3
	w.eventually("wait for claims to be refused", func() error {
		refused = scheduler.seen(func(c call) bool { return c.Path == floatingIPs && c.Code == http.StatusForbidden })
		if n := len(refused); n < rounds {
			return fmt.Errorf("%d were", n)
		}
		return nil
	})
	// Back-off is one second, then two.
	if took := refused[rounds-1].At.Sub(refused[0].At); took < time.Second {
		t.Errorf("%d claims were refused within %s: the scheduler tries again without back-off", rounds, took)
	}
	w.eventually("wait for the refusal in an event", func() error { return w.eventOf("web-0", "FailedScheduling", "refused by the test") })
	accept()
	w.eventually("wait for two pods to be bound", func() error { return w.countBound(2) })
	w.invariants()
}
