// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
)

// When the address of a pod without a controller is freed.
func TestReleaseOfPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(3)
	w.kubelet()
	w.scheduler(schedulerOptions{})
	w.controller()
	w.pool("web", "10.0.70.2-10.0.70.99")
	gone := func(w *world, pod string) { w.delete(pod) }
	ends := func(phase v1.PodPhase) func(*world, string) {
		return func(w *world, pod string) {
			// Before, the imitated kubelet may yet write that it runs.
			w.eventually("wait for the pod to run", func() error {
				if now := w.get(pod).Status.Phase; now != v1.PodRunning {
					return fmt.Errorf("it is %s", now)
				}
				return nil
			})
			if err := w.setPhase(w.get(pod), phase); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	tests := []struct {
		name   string
		policy v1alpha1.ReleasePolicy
		happen func(w *world, pod string)
		// is what becomes of the address.
		is string
	}{
		{"deleted", v1alpha1.ReleasePodDeleted, gone, "free"},
		{"succeeded", v1alpha1.ReleasePodDeleted, ends(v1.PodSucceeded), "free"},
		{"failed", v1alpha1.ReleasePodDeleted, ends(v1.PodFailed), "free"},
		{"deleted", v1alpha1.ReleaseRetain, gone, "free"}, // the pod is its own workload
		{"failed", v1alpha1.ReleaseRetain, ends(v1.PodFailed), "kept"},
		{"deleted", v1alpha1.ReleaseNever, gone, "kept"},
		{"succeeded", v1alpha1.ReleaseNever, ends(v1.PodSucceeded), "kept"},
	}
	for i, tc := range tests {
		t.Run(fmt.Sprintf("%s, %s", tc.policy, tc.name), func(t *testing.T) {
			w := w.on(t)
			name := fmt.Sprintf("pod-%d", i)
			w.create(newPod(name, policy(tc.policy)))
			address := w.address(name)
			tc.happen(w, name)
			w.eventually("wait for the address to be "+tc.is, func() error { return w.becomes(address, tc.is) })
			w.invariants()
			if tc.is == "free" || tc.policy == v1alpha1.ReleaseRetain {
				return
			}
			if _, err := w.kube.CoreV1().Pods(namespace).Get(w.ctx, name, metav1.GetOptions{}); err == nil {
				w.delete(name)
			}
			w.create(newPod(name, policy(tc.policy)))
			if again := w.address(name); again != address {
				t.Errorf("a pod of the same name got %s, %s was kept for it", again, address)
			}
			w.invariants()
		})
	}
}

// becomes complains unless an address is "free" or "kept" (without a pod).
func (w *world) becomes(address, is string) error {
	ips, err := w.ips()
	if err != nil {
		return err
	}
	now := "free"
	for i := range ips {
		if ips[i].Name == address {
			if now = "kept"; ips[i].Spec.Pod != nil {
				now = "held by " + ips[i].Spec.Pod.Name
			}
		}
	}
	if now != is {
		return fmt.Errorf("it is %s", now)
	}
	return nil
}

// A controller that is killed at any of its writes is followed by one that ends
// what it began.
func TestControllerKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(3)
	w.kubelet()
	w.scheduler(schedulerOptions{})
	w.pool("web", "10.0.70.2-10.0.70.99")
	tests := []struct {
		name   string
		policy v1alpha1.ReleasePolicy
		match  func(*http.Request) bool
		at     point
		is     string
	}{
		{"free", v1alpha1.ReleasePodDeleted, isIPDelete, beforeRequest, "free"},
		{"free", v1alpha1.ReleasePodDeleted, isIPDelete, beforeAnswer, "free"},
		{"retain", v1alpha1.ReleaseNever, isIPPatch, beforeRequest, "kept"},
		{"retain", v1alpha1.ReleaseNever, isIPPatch, beforeAnswer, "kept"},
	}
	for i, tc := range tests {
		t.Run(fmt.Sprintf("%s %s", tc.name, tc.at), func(t *testing.T) {
			w := w.on(t)
			first := w.controller()
			tap := first.stop(tc.match, tc.at)
			name := fmt.Sprintf("pod-%d", i)
			w.create(newPod(name, policy(tc.policy)))
			address := w.address(name)
			w.delete(name)
			tap.wait(w)
			first.kill()
			tap.drop()
			second := w.controller()
			w.eventually("wait for the address to be "+tc.is, func() error { return w.becomes(address, tc.is) })
			w.invariants()
			second.kill()
		})
	}
}

// A controller whose news are old must not take the address of a pod that lives.
func TestControllerBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(3)
	w.kubelet()
	w.scheduler(schedulerOptions{})
	controller := w.controller()
	w.pool("web", "10.0.70.2-10.0.70.99")
	set := w.retainForSet("db", 2)
	pod := func(name string) *v1.Pod { return newPod(name, policy(v1alpha1.ReleaseRetain), ofSet(set)) }
	w.create(pod("db-0"), pod("db-1"))
	before := w.address("db-0")
	w.bound("db-1")
	w.invariants()

	t.Run("it does not know the pod", func(t *testing.T) {
		w := w.on(t)
		release := controller.holdWatch("pods")
		defer release()
		w.create(newPods("web", 5)...)
		w.eventually("wait for it to ask the API server for the pods", func() error {
			return w.asked(controller, "/pods/web-", 5)
		})
		w.eventually("wait for the pods to be bound", func() error { return w.countBound(7) })
		w.invariants()
	})
	for _, tc := range []struct {
		name     string
		replicas int // when the pod is deleted
		match    func(*http.Request) bool
	}{
		{"its patch is late", 2, isIPPatch},
		{"its delete is late", 0, isIPDelete},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := w.on(t)
			w.patchSet("db", fmt.Sprintf(`{"spec":{"replicas":%d}}`, tc.replicas))
			tap := controller.stop(tc.match, beforeRequest)
			w.delete("db-0")
			tap.wait(w)
			w.patchSet("db", `{"spec":{"replicas":2}}`)
			w.create(pod("db-0"))
			if got := w.address("db-0"); got != before {
				t.Errorf("db-0 got %s, it had %s", got, before)
			}
			tap.pass()
			w.eventually("wait for it to be refused", func() error {
				refused := controller.seen(func(c call) bool { return strings.HasSuffix(c.Path, "/"+before) && c.Code == http.StatusConflict })
				if len(refused) == 0 {
					return fmt.Errorf("it was not")
				}
				return w.becomes(before, "held by db-0")
			})
			w.invariants()
		})
	}
}

// asked complains unless a program made n GETs of objects whose path has this
// text.
func (w *world) asked(p *program, text string, n int) error {
	gets := p.seen(func(c call) bool { return c.Method == http.MethodGet && strings.Contains(c.Path, text) })
	if len(gets) < n {
		return fmt.Errorf("it made %d of %d requests", len(gets), n)
	}
	return nil
}
