// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/lab"
)

// A leader is stopped in the middle of its work, another takes over, and the
// first goes on where it was, not knowing that it no longer leads.
func TestPausedLeader(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(3)
	w.kubelet()
	w.controller()
	w.pool("one", "10.0.70.2-10.0.70.81", onNode("node1"))
	w.pool("two", "10.0.70.82-10.0.70.161", onNode("node2"))
	w.pool("rest", "10.0.70.162-10.0.70.241")
	leader := w.scheduler(schedulerOptions{elect: true})
	const batch = 60
	for round := range 3 {
		w.eventually("wait for a leader", func() error { return w.leadsNow(leader) })
		next := w.scheduler(schedulerOptions{elect: true})
		w.eventually("wait for the second scheduler to be ready", func() error {
			if len(next.seen(isLeaseRead)) == 0 {
				return fmt.Errorf("it did not ask for the lease")
			}
			return nil
		})
		// Stopped after some of its Bindings: others of the batch are reserved,
		// claimed or on their way.
		enough := len(leader.seen(isBindingCall)) + batch/3
		w.create(newPods(fmt.Sprintf("web-%d", round), batch)...)
		w.eventually("wait for the leader to be in the middle of its work", func() error {
			if n := len(leader.seen(isBindingCall)); n < enough {
				return fmt.Errorf("it made %d of %d Bindings", n, enough)
			}
			return nil
		})
		leader.pause()
		w.eventually("wait for the other to take over", func() error { return w.leadsNow(next) })
		w.eventually("wait for its first Binding", func() error { return w.boundOrActive(next, (round+1)*batch) })
		leader.resume()
		w.eventually("wait for all pods to be bound", func() error { return w.countBound((round + 1) * batch) })
		// It finds out that it no longer leads, and ends.
		w.eventually("wait for the old leader to end", func() error {
			if leader.running() == nil {
				return fmt.Errorf("it runs")
			}
			return nil
		})
		w.invariants()
		leader = next
	}
	w.deleteAll()
}

// leadsNow complains unless p got the lease.
func (w *world) leadsNow(p *program) error {
	if n := len(p.seen(isLeaseWrite)); n == 0 {
		lease, err := w.kube.CoordinationV1().Leases("berth-system").Get(w.ctx, "berth-scheduler", metav1.GetOptions{})
		if err != nil {
			return err
		}
		return fmt.Errorf("the lease is %s's", *lease.Spec.HolderIdentity)
	}
	return p.running()
}

// boundOrActive complains unless p has bound a pod, or there is nothing left to
// bind.
func (w *world) boundOrActive(p *program, all int) error {
	if len(p.seen(isBindingCall)) > 0 {
		return nil
	}
	return w.countBound(all)
}

func isBindingCall(c call) bool {
	return c.Method == http.MethodPost && strings.HasSuffix(c.Path, "/binding")
}

func isLeaseRead(c call) bool {
	return c.Method == http.MethodGet && strings.HasSuffix(c.Path, "/leases/berth-scheduler")
}

// isLeaseWrite matches a write of the lease that was accepted.
func isLeaseWrite(c call) bool {
	return (c.Method == http.MethodPut || c.Method == http.MethodPost) && strings.Contains(c.Path, "/leases") && c.Code < 300
}
