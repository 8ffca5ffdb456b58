// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// The clocks of scheduler and controller leap by up to two hours while pods end and others wait for
// their addresses. No pod waits for a clock, retained addresses stay, the time in a record that
// stays only grows, and no cooldown ends earlier than the clocks say.
func TestClockSteps(t *testing.T) {
	t.Parallel()
	w := simulation.WithNodes(t, lab.ControlPlaneOptions{}, 3)
	controller, scheduler := w.Controller(), w.Scheduler(simulation.SchedulerOptions{})
	const batch, hour = 30, time.Hour
	w.Pool("web", fmt.Sprintf("10.0.70.2-10.0.70.%d", 1+batch))
	const leaps = 2 * hour // the most that two clocks differ
	w.Pool("slow", "10.0.70.100", func(pool *v1alpha1.IPPool) { pool.Spec.Cooldown = &metav1.Duration{Duration: leaps + hour} })
	set := w.RetainForSet("db", 3)
	kept := func() []string {
		pods := simulation.NewPods("db", 3, simulation.OfSet(set), simulation.Policy(v1alpha1.ReleaseRetain), simulation.FromPools("db"))
		w.Create(pods...)
		return simulation.NamesOf(pods)
	}
	w.Create(simulation.NewPod("slow", simulation.FromPools("slow")))
	w.Bound("slow")
	w.Delete("slow")
	w.Bound(kept()...)
	var before []string
	since := map[string]time.Time{}
	for round, ahead := range []struct{ scheduler, controller time.Duration }{{}, {hour, -hour}, {-hour, hour}, {-hour, -hour}, {hour, hour}, {}} {
		pods := simulation.NewPods(fmt.Sprintf("web-%d", round), batch, simulation.FromPools("web"))
		w.Create(pods...) // they wait for the addresses of those before
		var leapt time.Time
		late := map[string]bool{} // addresses that are freed after that
		for i, name := range before {
			if i == batch/2 {
				for _, err := range []error{scheduler.SetClock(ahead.scheduler), controller.SetClock(ahead.controller)} {
					if err != nil {
						t.Fatal(err)
					}
				}
				leapt = time.Now()
			}
			if i >= batch/2 {
				late[w.Address(name)] = true
			}
			w.Delete(name)
		}
		before = simulation.NamesOf(pods)
		w.Delete("db-0", "db-1", "db-2")
		for i, name := range kept() {
			if got, want := w.Address(name), fmt.Sprintf("10.0.70.%d", 200+i); got != want {
				t.Errorf("round %d: %s has %s, and %s was retained for it", round, name, got, want)
			}
		}
		w.Eventually("wait for all pods to be bound", func() error { return w.CountBound(batch + 3) })
		ips, err := w.IPs()
		if err != nil {
			t.Fatal(err)
		}
		rests := false
		for i := range ips {
			spec := &ips[i].Spec
			switch spec.Pool {
			case "slow":
				rests = spec.ReleasedAt != nil
			case "db":
				if !spec.Since.After(since[ips[i].Name]) {
					t.Errorf("round %d: %s is held since %s, and before since %s", round, ips[i].Name, spec.Since, since[ips[i].Name])
				}
				since[ips[i].Name] = spec.Since.Time
			default:
				if is := spec.Since.Sub(leapt); late[ips[i].Name] && (is < ahead.scheduler-time.Second || is > ahead.scheduler+time.Since(leapt)) {
					t.Errorf("round %d: %s is held since %s, and the scheduler's clock is ahead by %s since %s", round, ips[i].Name, spec.Since, ahead.scheduler, leapt)
				}
			}
		}
		if !rests {
			t.Errorf("round %d: the address of pool slow is free, and its cooldown is longer than clocks leapt", round)
		}
		w.Invariants()
	}
	for _, program := range []*simulation.Instance{scheduler, controller} {
		if err := program.Running(); err != nil {
			t.Error(err)
		}
	}
	if err := w.Kube.AppsV1().StatefulSets(simulation.Namespace).Delete(w.Ctx, set.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := w.Berth.IPPools.Delete(w.Ctx, "slow", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.DeleteAll()
}
