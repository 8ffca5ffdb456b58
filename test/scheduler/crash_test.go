// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
)

// A scheduler that is killed between any two of its side effects loses nothing
// and leaks nothing; its successor binds the pod with the address that was
// claimed for it.
func TestSchedulerKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(3)
	w.kubelet()
	w.controller()
	w.pool("web", "10.0.70.2-10.0.70.199")
	set := w.retainForSet("db", 2)
	tests := []struct {
		name  string
		match func(*http.Request) bool
		at    point
		// ordinal of set "db" that gets its retained address; -1: a new pod gets a
		// new one.
		ordinal int
		// claimed says whether there is an address to come back to.
		claimed bool
	}{
		{"claim", isClaim, beforeRequest, -1, false},
		{"claim", isClaim, beforeAnswer, -1, true},
		{"bind", isBinding, beforeRequest, -1, true},
		{"bind", isBinding, beforeAnswer, -1, true},
		{"patch", isIPPatch, beforeRequest, 0, true},
		{"patch", isIPPatch, beforeAnswer, 1, true},
	}
	for i, tc := range tests {
		t.Run(fmt.Sprintf("%s %s", tc.name, tc.at), func(t *testing.T) {
			w := w.on(t)
			first := w.scheduler(schedulerOptions{})
			tap := first.stop(tc.match, tc.at)
			name, pod := fmt.Sprintf("web-%d", i), newPod(fmt.Sprintf("web-%d", i))
			if tc.ordinal >= 0 {
				name = fmt.Sprintf("db-%d", tc.ordinal)
				pod = newPod(name, policy(v1alpha1.ReleaseRetain), ofSet(set))
			}
			w.create(pod)
			tap.wait(w)
			first.kill()
			tap.drop()
			claimed := w.claimOf(name)
			if (claimed != "") != tc.claimed {
				t.Errorf("when the scheduler was killed, the claim was %q", claimed)
			}

			second := w.scheduler(schedulerOptions{})
			if got := w.address(name); tc.claimed && got != claimed {
				t.Errorf("the pod is bound with %s, %s was claimed for it", got, claimed)
			}
			w.invariants()
			second.kill()
		})
	}
}

// claimOf returns the address that is recorded or retained for a pod.
func (w *world) claimOf(pod string) string {
	w.t.Helper()
	ips, err := w.ips()
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range ips {
		if owner := ips[i].Spec.Owner; owner != nil && owner.PodName == pod {
			return ips[i].Name
		}
	}
	return ""
}
