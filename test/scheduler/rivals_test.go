// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
)

// Two schedulers that know nothing of each other race for every pod and every
// address.
func TestTwoSchedulers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(3)
	w.kubelet()
	w.controller()
	w.pool("one", "10.0.70.2-10.0.70.81", onNode("node1"))
	w.pool("rest", "10.0.70.82-10.0.70.161", func(pool *v1alpha1.IPPool) {
		pool.Spec.NodeSubnets = []string{"10.0.60.12/31"}
	})
	first, second := w.scheduler(schedulerOptions{}), w.scheduler(schedulerOptions{})
	pods := newPods("web", 200)
	w.create(pods...)
	// 160 addresses for 200 pods: as pods end, others start.
	w.eventually("wait for the addresses to be used", func() error { return w.countBound(160) })
	for i := range 60 {
		w.delete(fmt.Sprintf("web-%d", i))
	}
	w.eventually("wait for all pods to be bound", func() error { return w.countBound(140) })
	w.invariants()
	for _, s := range []*program{first, second} {
		if err := s.running(); err != nil {
			t.Error(err)
		}
		if n := len(s.seen(func(c call) bool { return strings.HasSuffix(c.Path, "/binding") && c.Code == http.StatusCreated })); n == 0 {
			t.Error("one of the schedulers bound nothing: there was no race")
		}
	}
	w.deleteAll()
}

// countBound complains unless that many pods are bound and, if no more than that
// exist, none waits.
func (w *world) countBound(want int) error {
	pods, err := w.pods()
	if err != nil {
		return err
	}
	bound := 0
	for i := range pods {
		if pods[i].Spec.NodeName != "" {
			bound++
		}
	}
	if bound != want {
		return fmt.Errorf("%d of %d pods are bound, want %d", bound, len(pods), want)
	}
	return nil
}

// deleteAll deletes all pods and waits until no address is in use.
func (w *world) deleteAll() {
	w.t.Helper()
	err := w.kube.CoreV1().Pods(namespace).DeleteCollection(w.ctx, *metav1.NewDeleteOptions(0), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.eventually("wait for all addresses to be free", func() error {
		ips, err := w.ips()
		if err == nil && len(ips) > 0 {
			err = fmt.Errorf("%d are not, for example %s: %+v", len(ips), ips[0].Name, ips[0].Spec)
		}
		return err
	})
}

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
	}{
		{"claim", isClaim, beforeRequest, "one,two", false},
		{"claim", isClaim, beforeRequest, "one,two", true},
		{"claim", isClaim, beforeRequest, "both", true},
		{"claim", isClaim, beforeAnswer, "one,two", false},
		{"claim", isClaim, beforeAnswer, "one,two", true},
		{"claim", isClaim, beforeAnswer, "both", true},
		{"bind", isBinding, beforeRequest, "one,two", false},
		{"bind", isBinding, beforeRequest, "one,two", true},
		{"bind", isBinding, beforeRequest, "both", true},
	}
	for i, tc := range tests {
		name := fmt.Sprintf("%s %s, pools %s", tc.name, tc.at, tc.pools)
		if tc.move {
			name += ", other node"
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

func (w *world) cordon(node string, unschedulable bool) {
	w.t.Helper()
	patch := fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, unschedulable)
	if _, err := w.kube.CoreV1().Nodes().Patch(w.ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		w.t.Fatal(err)
	}
}
