// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/proxy"
)

// A leader is stopped in the middle of its work, another takes over, and the
// first goes on where it was, not knowing that it no longer leads.
func TestPausedLeader(t *testing.T) {
	t.Parallel()
	w := simulation.WithNodes(t, lab.ControlPlaneOptions{}, 3)
	w.Controller()
	w.Pool("one", "10.0.70.2-10.0.70.81", simulation.OnNode("node1"))
	w.Pool("two", "10.0.70.82-10.0.70.161", simulation.OnNode("node2"))
	w.Pool("rest", "10.0.70.162-10.0.70.241")
	leader := w.Scheduler(simulation.SchedulerOptions{Elect: true})
	const batch = 60
	for round := range 3 {
		w.Eventually("wait for a leader", func() error { return leadsNow(w, leader) })
		next := w.Scheduler(simulation.SchedulerOptions{Elect: true})
		w.Eventually("wait for the second scheduler to be ready", func() error {
			if len(next.Seen(isLeaseRead)) == 0 {
				return fmt.Errorf("it did not ask for the lease")
			}
			return nil
		})
		// Stopped after some of its Bindings: others of the batch are reserved,
		// claimed or on their way.
		enough := len(leader.Seen(isBindingCall)) + batch/3
		w.Create(simulation.NewPods(fmt.Sprintf("web-%d", round), batch)...)
		w.Eventually("wait for the leader to be in the middle of its work", func() error {
			if n := len(leader.Seen(isBindingCall)); n < enough {
				return fmt.Errorf("it made %d of %d Bindings", n, enough)
			}
			return nil
		})
		leader.Pause()
		w.Eventually("wait for the other to take over", func() error { return leadsNow(w, next) })
		w.Eventually("wait for its first Binding", func() error { return boundOrActive(w, next, (round+1)*batch) })
		leader.Resume()
		w.Eventually("wait for all pods to be bound", func() error { return w.CountBound((round + 1) * batch) })
		// It finds out that it no longer leads, and ends.
		w.Eventually("wait for the old leader to end", func() error {
			if leader.Running() == nil {
				return fmt.Errorf("it runs")
			}
			return nil
		})
		w.Invariants()
		leader = next
	}
	w.DeleteAll()
}

// leadsNow complains unless p got the lease.
func leadsNow(w *simulation.World, p *simulation.Instance) error {
	if n := len(p.Seen(isLeaseWrite)); n == 0 {
		lease, err := w.Kube.CoordinationV1().Leases("berth-system").Get(w.Ctx, "berth-scheduler", metav1.GetOptions{})
		if err != nil {
			return err
		}
		return fmt.Errorf("the lease is %s's", *lease.Spec.HolderIdentity)
	}
	return p.Running()
}

// boundOrActive complains unless p has bound a pod, or there is nothing left to
// bind.
func boundOrActive(w *simulation.World, p *simulation.Instance, all int) error {
	if len(p.Seen(isBindingCall)) > 0 {
		return nil
	}
	return w.CountBound(all)
}

func isBindingCall(c proxy.Call) bool {
	return c.Method == http.MethodPost && strings.HasSuffix(c.Path, "/binding")
}

func isLeaseRead(c proxy.Call) bool {
	return c.Method == http.MethodGet && strings.HasSuffix(c.Path, "/leases/berth-scheduler")
}

// isLeaseWrite matches a write of the lease that was accepted.
func isLeaseWrite(c proxy.Call) bool {
	return (c.Method == http.MethodPut || c.Method == http.MethodPost) && strings.Contains(c.Path, "/leases") && c.Code < 300
}
