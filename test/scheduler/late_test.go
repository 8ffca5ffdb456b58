// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/test/lab"
)

// A scheduler that comes back when another has bound its pod must leave the
// pod's address alone, however far it had come and wherever the other went.
func TestLateScheduler(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(2)
	w.kubelet()
	w.controller()
	w.pool("one", "10.0.70.2-10.0.70.49", onNode("node1"))
	w.pool("two", "10.0.70.52-10.0.70.99", onNode("node2"))
	w.pool("both", "10.0.70.102-10.0.70.149")
	tests := []struct {
		name  string
		match func(*http.Request) bool
		at    point
		pools string
		// move makes the other scheduler choose another node.
		move bool
		// dies: it never comes back.
		dies bool
	}{
		{"claim", isClaim, beforeRequest, "one,two", false, false},
		{"claim", isClaim, beforeRequest, "one,two", true, false},
		{"claim", isClaim, beforeRequest, "both", true, false},
		{"claim", isClaim, beforeAnswer, "one,two", false, false},
		{"claim", isClaim, beforeAnswer, "one,two", true, false},
		{"claim", isClaim, beforeAnswer, "both", true, false},
		{"bind", isBinding, beforeRequest, "one,two", false, false},
		{"bind", isBinding, beforeRequest, "one,two", true, false},
		{"bind", isBinding, beforeRequest, "both", true, false},
		{"claim", isClaim, beforeAnswer, "one,two", true, true},
		{"bind", isBinding, beforeRequest, "one,two", true, true},
		{"bind", isBinding, beforeRequest, "both", true, true},
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
			w := w.on(t)
			pod := fmt.Sprintf("web-%d", i)
			w.cordon("node2", true)
			late := w.scheduler(schedulerOptions{})
			tap := late.stop(tc.match, tc.at)
			w.create(newPod(pod, fromPools(tc.pools)))
			tap.wait(w)
			if tc.move {
				w.cordon("node2", false)
				w.cordon("node1", true)
			}
			other := w.scheduler(schedulerOptions{})
			w.bound(pod)
			other.kill()
			if tc.dies {
				late.kill()
				late = w.scheduler(schedulerOptions{})
			}
			tap.pass()
			// It cleans up now, and has, when it has bound another pod.
			w.create(newPod(pod+"-next", fromPools(tc.pools)))
			w.bound(pod + "-next")
			w.invariants()
			late.kill()
			w.cordon("node1", false)
		})
	}
	w.deleteAll()
}

// Two schedulers are about to bind the same pod to different nodes. The first to
// have claimed wins; what the other wrote meanwhile is put right.
func TestOvertakenScheduler(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(2)
	w.kubelet()
	w.controller()
	w.pool("one", "10.0.70.2-10.0.70.49", onNode("node1"))
	w.pool("two", "10.0.70.52-10.0.70.99", onNode("node2"))
	w.pool("both", "10.0.70.102-10.0.70.149")
	for i, pools := range []string{"one,two", "both"} {
		for _, dies := range []bool{false, true} {
			t.Run(fmt.Sprintf("pools %s, killed %v", pools, dies), func(t *testing.T) {
				w := w.on(t)
				pod := fmt.Sprintf("web-%d-%t", i, dies)
				w.cordon("node2", true)
				first := w.scheduler(schedulerOptions{})
				bindFirst := first.stop(isBinding, beforeRequest)
				w.create(newPod(pod, fromPools(pools)))
				bindFirst.wait(w)
				w.cordon("node2", false)
				w.cordon("node1", true)
				second := w.scheduler(schedulerOptions{})
				bindSecond := second.stop(isBinding, beforeRequest)
				bindSecond.wait(w)

				bindFirst.pass()
				if got := w.bound(pod)[0].Spec.NodeName; got != "node1" {
					t.Fatalf("the pod is on %s", got)
				}
				if dies {
					second.kill()
				}
				bindSecond.pass()
				w.invariants()
				first.kill()
				second.kill()
				w.cordon("node1", false)
			})
		}
	}
	w.deleteAll()
}

func (w *world) cordon(node string, unschedulable bool) {
	w.t.Helper()
	patch := fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, unschedulable)
	if _, err := w.kube.CoreV1().Nodes().Patch(w.ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		w.t.Fatal(err)
	}
}
