// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/proxy"
	"github.com/berth-dev/berth/test/simulation/virtual"
)

// The scheduler learns late of an address that came free, after it has learnt of
// all that happened with pods. The pod that waits starts nevertheless.
func TestLateWatch(t *testing.T) {
	t.Parallel()
	w := simulation.WithNodes(t, lab.ControlPlaneOptions{}, 3)
	w.Controller()
	scheduler := w.Scheduler(simulation.SchedulerOptions{})
	w.Pool("web", "10.0.70.2")
	w.Occupy("web")
	w.Create(simulation.NewPod("late"))
	w.Refused("late")

	release := scheduler.Hold("floatingips")
	w.Delete("web-first")
	w.Eventually("wait for the address to be freed", func() error {
		ips, err := w.IPs()
		if err == nil && len(ips) > 0 {
			err = fmt.Errorf("%s is in use", ips[0].Name)
		}
		return err
	})
	// A change that makes the scheduler look at the pod once more, in vain.
	w.Annotate("late", "test", "look")
	w.Create(simulation.NewPod("plain", simulation.Asking("0")))
	w.Bound("plain")
	if pod := w.Get("late"); pod.Spec.NodeName != "" {
		t.Fatal("the pod was bound before the scheduler knew of a free address")
	}
	release()
	w.Bound("late")
	w.Invariants()
}

// Another scheduler's claims arrive late: the API server refuses to give their
// addresses once more, and the pods get others.
func TestLateNewsOfClaims(t *testing.T) {
	t.Parallel()
	w := simulation.WithNodes(t, lab.ControlPlaneOptions{}, 3)
	w.Controller()
	scheduler := w.Scheduler(simulation.SchedulerOptions{})
	w.Pool("web", "10.0.70.2-10.0.70.9")
	w.Occupy("web")
	release := scheduler.Hold("floatingips")
	for i := 3; i < 7; i++ {
		w.Reserve(fmt.Sprintf("10.0.70.%d", i))
	}
	pods := simulation.NewPods("web", 3)
	w.Create(pods...)
	w.Eventually("wait for the API server to refuse a claim", func() error {
		refused := scheduler.Seen(func(c proxy.Call) bool {
			return c.Method == http.MethodPost && c.Path == proxy.FloatingIPs && c.Code == http.StatusConflict
		})
		if len(refused) == 0 {
			return fmt.Errorf("it refused none")
		}
		return nil
	})
	w.Bound(simulation.NamesOf(pods)...)
	release()
	w.Invariants()
}

// The scheduler learns late of a ReplicaSet, after its pods: these start, and no event says that it
// was not found.
func TestLateReplicaSet(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.WithNodes(t, virtual.Options{Controllers: true}, 3)
		w.Controller()
		scheduler := w.Scheduler(simulation.SchedulerOptions{})
		w.Pool("web", "10.0.70.2-10.0.70.9")
		w.Followed()
		defer scheduler.Hold("replicasets")()
		w.CreateDeployment("web", 3, appsv1.DeploymentStrategy{})
		w.RolledOut("web", 3)
		w.Invariants()
		failed, err := w.Kube.CoreV1().Events(simulation.Namespace).List(w.Ctx, metav1.ListOptions{FieldSelector: "reason=FailedScheduling"})
		if err != nil {
			t.Fatal(err)
		}
		for i := range failed.Items {
			t.Errorf("%s: %s", failed.Items[i].InvolvedObject.Name, failed.Items[i].Message)
		}
	})
}

// A scheduler that starts learns of all addresses in use from one list, and gives
// none of them again.
func TestSchedulerRestart(t *testing.T) {
	t.Parallel()
	w := simulation.WithNodes(t, lab.ControlPlaneOptions{}, 3)
	w.Controller()
	w.Pool("web", "10.0.70.2-10.0.70.249")
	first := w.Scheduler(simulation.SchedulerOptions{})
	pods := simulation.NewPods("web", 150)
	w.Create(pods...)
	w.Eventually("wait for the pods to be bound", func() error { return w.CountBound(150) })
	first.Kill()

	second := w.Scheduler(simulation.SchedulerOptions{})
	w.Create(simulation.NewPods("more", 50)...)
	w.Eventually("wait for more pods to be bound", func() error { return w.CountBound(200) })
	w.Invariants()
	lists := second.Seen(func(c proxy.Call) bool {
		return c.Method == http.MethodGet && c.Path == proxy.FloatingIPs && (!c.Watch || c.Initial)
	})
	gets := second.Seen(func(c proxy.Call) bool {
		return c.Method == http.MethodGet && strings.HasPrefix(c.Path, proxy.FloatingIPs+"/")
	})
	claims := second.Seen(func(c proxy.Call) bool { return c.Method == http.MethodPost && c.Path == proxy.FloatingIPs })
	if len(lists) != 1 || len(gets) != 0 || len(claims) != 50 {
		t.Errorf("it made %d lists, %d gets and %d claims, want 1, 0 and 50: %v", len(lists), len(gets), len(claims), lists)
	}
}

// A claim that the API server refuses for another reason than a conflict is tried
// again with back-off: pods that give back the addresses they reserved do not wake
// each other.
func TestClaimRefused(t *testing.T) {
	t.Parallel()
	w := simulation.WithNodes(t, lab.ControlPlaneOptions{}, 3)
	scheduler := w.Scheduler(simulation.SchedulerOptions{})
	w.Pool("web", "10.0.70.2-10.0.70.3")
	accept := scheduler.Refuse(proxy.IsClaim)
	w.Create(simulation.NewPods("web", 3)...)
	var refused []proxy.Call
	const rounds = 3 * 3
	w.Eventually("wait for claims to be refused", func() error {
		refused = scheduler.Seen(func(c proxy.Call) bool {
			return c.Path == proxy.FloatingIPs && c.Code == http.StatusForbidden
		})
		if n := len(refused); n < rounds {
			return fmt.Errorf("%d were", n)
		}
		return nil
	})
	// Back-off is one second, then two.
	if took := refused[rounds-1].At.Sub(refused[0].At); took < time.Second {
		t.Errorf("%d claims were refused within %s: the scheduler tries again without back-off", rounds, took)
	}
	w.Eventually("wait for the refusal in an event", func() error { return w.EventOf("web-0", "FailedScheduling", "refused by the test") })
	accept()
	w.Eventually("wait for two pods to be bound", func() error { return w.CountBound(2) })
	w.Invariants()
}
