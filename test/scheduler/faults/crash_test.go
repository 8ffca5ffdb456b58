// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/proxy"
)

// A scheduler that is killed between any two of its side effects loses nothing
// and leaks nothing; its successor binds the pod with the address that was
// claimed for it.
func TestSchedulerKilled(t *testing.T) {
	t.Parallel()
	w := simulation.WithNodes(t, lab.ControlPlaneOptions{}, 3)
	w.Controller()
	w.Pool("web", "10.0.70.2-10.0.70.199")
	set := w.RetainForSet("db", 2)
	tests := []struct {
		name  string
		match func(*http.Request) bool
		at    proxy.Point
		// ordinal of set "db" that gets its retained address; -1: a new pod gets a
		// new one.
		ordinal int
		// claimed says whether there is an address to come back to.
		claimed bool
	}{
		{"claim", proxy.IsClaim, proxy.BeforeRequest, -1, false},
		{"claim", proxy.IsClaim, proxy.BeforeAnswer, -1, true},
		{"bind", proxy.IsBinding, proxy.BeforeRequest, -1, true},
		{"bind", proxy.IsBinding, proxy.BeforeAnswer, -1, true},
		{"patch", proxy.IsIPPatch, proxy.BeforeRequest, 0, true},
		{"patch", proxy.IsIPPatch, proxy.BeforeAnswer, 1, true},
	}
	for i, tc := range tests {
		t.Run(fmt.Sprintf("%s %s", tc.name, tc.at), func(t *testing.T) {
			w := w.On(t)
			first := w.Scheduler(simulation.SchedulerOptions{})
			tap := first.Tap(tc.match, tc.at)
			name, pod := fmt.Sprintf("web-%d", i), simulation.NewPod(fmt.Sprintf("web-%d", i))
			if tc.ordinal >= 0 {
				name = fmt.Sprintf("db-%d", tc.ordinal)
				pod = simulation.NewPod(name, simulation.Policy(v1alpha1.ReleaseRetain), simulation.OfSet(set))
			}
			w.Create(pod)
			w.Await(tap)
			first.Kill()
			tap.Drop()
			claimed := claimOf(w, name)
			if (claimed != "") != tc.claimed {
				t.Errorf("when the scheduler was killed, the claim was %q", claimed)
			}

			second := w.Scheduler(simulation.SchedulerOptions{})
			if got := w.Address(name); tc.claimed && got != claimed {
				t.Errorf("the pod is bound with %s, %s was claimed for it", got, claimed)
			}
			w.Invariants()
			second.Kill()
		})
	}
}

// claimOf returns the address that is recorded or retained for a pod.
func claimOf(w *simulation.World, pod string) string {
	w.T.Helper()
	ips, err := w.IPs()
	if err != nil {
		w.T.Fatal(err)
	}
	for i := range ips {
		if owner := ips[i].Spec.Owner; owner != nil && owner.PodName == pod {
			return ips[i].Name
		}
	}
	return ""
}
