// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/proxy"
)

// withPools starts a world with a controller, and of two nodes: each has a pool of its
// own, and pool both serves both.
func withPools(t *testing.T) *simulation.World {
	t.Helper()
	w := simulation.WithNodes(t, lab.ControlPlaneOptions{}, 2)
	w.Controller()
	w.Pool("one", "10.0.70.2-10.0.70.49", simulation.OnNode("node1"))
	w.Pool("two", "10.0.70.52-10.0.70.99", simulation.OnNode("node2"))
	w.Pool("both", "10.0.70.102-10.0.70.149")
	return w
}

// A scheduler that comes back when another has bound its pod must leave the
// pod's address alone, however far it had come and wherever the other went.
func TestLateScheduler(t *testing.T) {
	t.Parallel()
	w := withPools(t)
	tests := []struct {
		name  string
		match func(*http.Request) bool
		at    proxy.Point
		pools string
		// move makes the other scheduler choose another node.
		move bool
		// dies: it never comes back.
		dies bool
	}{
		{"claim", proxy.IsClaim, proxy.BeforeRequest, "one,two", false, false},
		{"claim", proxy.IsClaim, proxy.BeforeRequest, "one,two", true, false},
		{"claim", proxy.IsClaim, proxy.BeforeRequest, "both", true, false},
		{"claim", proxy.IsClaim, proxy.BeforeAnswer, "one,two", false, false},
		{"claim", proxy.IsClaim, proxy.BeforeAnswer, "one,two", true, false},
		{"claim", proxy.IsClaim, proxy.BeforeAnswer, "both", true, false},
		{"bind", proxy.IsBinding, proxy.BeforeRequest, "one,two", false, false},
		{"bind", proxy.IsBinding, proxy.BeforeRequest, "one,two", true, false},
		{"bind", proxy.IsBinding, proxy.BeforeRequest, "both", true, false},
		{"claim", proxy.IsClaim, proxy.BeforeAnswer, "one,two", true, true},
		{"bind", proxy.IsBinding, proxy.BeforeRequest, "one,two", true, true},
		{"bind", proxy.IsBinding, proxy.BeforeRequest, "both", true, true},
	}
	for i, tc := range tests {
		name := fmt.Sprintf("%s %s, pools %s", tc.name, tc.at, tc.pools)
		if tc.move {
			name += ", other node"
		}
		if tc.dies {
			name += ", killed"
		}
		t.Run(name, func(t *testing.T) {
			w := w.On(t)
			pod := fmt.Sprintf("web-%d", i)
			w.Cordon("node2", true)
			late := w.Scheduler(simulation.SchedulerOptions{})
			tap := late.Tap(tc.match, tc.at)
			w.Create(simulation.NewPod(pod, simulation.FromPools(tc.pools)))
			w.Await(tap)
			if tc.move {
				w.Cordon("node2", false)
				w.Cordon("node1", true)
			}
			other := w.Scheduler(simulation.SchedulerOptions{})
			w.Bound(pod)
			other.Kill()
			if tc.dies {
				late.Kill()
				late = w.Scheduler(simulation.SchedulerOptions{})
			}
			tap.Pass()
			// It cleans up now, and has, when it has bound another pod.
			w.Create(simulation.NewPod(pod+"-next", simulation.FromPools(tc.pools)))
			w.Bound(pod + "-next")
			w.Invariants()
			late.Kill()
			w.Cordon("node1", false)
		})
	}
	w.DeleteAll()
}

// Two schedulers are about to bind the same pod to different nodes. The first to
// have taken the address wins, and the other's write is put right.
func TestOvertakenScheduler(t *testing.T) {
	t.Parallel()
	w := withPools(t)
	for i, pools := range []string{"one,two", "both"} {
		for _, dies := range []bool{false, true} {
			t.Run(fmt.Sprintf("pools %s, killed %v", pools, dies), func(t *testing.T) {
				w := w.On(t)
				pod := fmt.Sprintf("web-%d-%t", i, dies)
				w.Cordon("node2", true)
				first := w.Scheduler(simulation.SchedulerOptions{})
				bindFirst := first.Tap(proxy.IsBinding, proxy.BeforeRequest)
				w.Create(simulation.NewPod(pod, simulation.FromPools(pools)))
				w.Await(bindFirst)
				w.Cordon("node2", false)
				w.Cordon("node1", true)
				second := w.Scheduler(simulation.SchedulerOptions{})
				bindSecond := second.Tap(proxy.IsBinding, proxy.BeforeRequest)
				w.Await(bindSecond)

				bindFirst.Pass()
				if got := w.Bound(pod)[0].Spec.NodeName; got != "node1" {
					t.Fatalf("the pod is on %s", got)
				}
				if dies {
					second.Kill()
				}
				bindSecond.Pass()
				w.Invariants()
				first.Kill()
				second.Kill()
				w.Cordon("node1", false)
			})
		}
	}
	w.DeleteAll()
}
