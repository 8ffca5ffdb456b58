// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/proxy"
	"github.com/berth-dev/berth/test/simulation/virtual"
)

// After a controller that was killed at any of its writes, the next one finishes the work.
func TestControllerKilled(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.WithNodes(t, virtual.Options{}, 3)
		w.Scheduler(simulation.SchedulerOptions{})
		w.Pool("web", "10.0.70.2-10.0.70.99")
		tests := []struct {
			name   string
			policy v1alpha1.ReleasePolicy
			match  func(*http.Request) bool
			at     proxy.Point
			is     string
		}{
			{"free", v1alpha1.ReleasePodDeleted, proxy.IsIPDelete, proxy.BeforeRequest, "free"},
			{"free", v1alpha1.ReleasePodDeleted, proxy.IsIPDelete, proxy.BeforeAnswer, "free"},
			{"retain", v1alpha1.ReleaseNever, proxy.IsIPPatch, proxy.BeforeRequest, "kept"},
			{"retain", v1alpha1.ReleaseNever, proxy.IsIPPatch, proxy.BeforeAnswer, "kept"},
		}
		for i, tc := range tests {
			w.Case(fmt.Sprintf("%s %s", tc.name, tc.at), func(w *simulation.World) {
				first := w.Controller()
				tap := first.Tap(tc.match, tc.at)
				name := fmt.Sprintf("pod-%d", i)
				w.Create(simulation.NewPod(name, simulation.Policy(tc.policy)))
				address := w.Address(name)
				w.Delete(name)
				w.Await(tap)
				first.Kill()
				tap.Drop()
				second := w.Controller()
				w.Eventually("wait for the address to be "+tc.is, func() error { return w.Becomes(address, tc.is) })
				w.Invariants()
				second.Kill()
			})
		}
	})
}

// A controller whose news are old must not take the address of a pod that lives.
func TestControllerBehind(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.WithNodes(t, virtual.Options{}, 3)
		w.Scheduler(simulation.SchedulerOptions{})
		controller := w.Controller()
		w.Pool("web", "10.0.70.2-10.0.70.99")
		set := w.RetainForSet("db", 2)
		pod := func(name string) *v1.Pod {
			return simulation.NewPod(name, simulation.Policy(v1alpha1.ReleaseRetain), simulation.OfSet(set))
		}
		scale := func(replicas int) {
			simulation.Patch(w, w.Kube.AppsV1().StatefulSets(simulation.Namespace), "db", `{"spec":{"replicas":%d}}`, replicas)
		}
		w.Create(pod("db-0"), pod("db-1"))
		before := w.Address("db-0")
		w.Bound("db-1")
		w.Invariants()

		w.Case("it does not know the pod", func(w *simulation.World) {
			release := controller.Hold("pods")
			defer release()
			w.Create(simulation.NewPods("web", 5)...)
			w.Eventually("wait for it to ask the API server for the pods", func() error {
				return asked(w, controller, "/pods/web-", 5)
			})
			w.Eventually("wait for the pods to be bound", func() error { return w.CountBound(7) })
			w.Invariants()
		})
		for _, tc := range []struct {
			name     string
			replicas int // when the pod is deleted
		}{
			{"it keeps the address late", 2},
			// The scheduler noted a last node, so the address would rest.
			{"it frees the address late", 0},
		} {
			w.Case(tc.name, func(w *simulation.World) {
				scale(tc.replicas)
				tap := controller.Tap(proxy.IsIPPatch, proxy.BeforeRequest)
				w.Delete("db-0")
				w.Await(tap)
				scale(2)
				w.Create(pod("db-0"))
				if got := w.Address("db-0"); got != before {
					w.T.Errorf("db-0 got %s, it had %s", got, before)
				}
				tap.Pass()
				w.Eventually("wait for it to be refused", func() error {
					refused := controller.Seen(func(c proxy.Call) bool {
						return strings.HasSuffix(c.Path, "/"+before) && c.Code == http.StatusConflict
					})
					if len(refused) == 0 {
						return fmt.Errorf("it was not")
					}
					return w.Becomes(before, "held by db-0")
				})
				w.Invariants()
			})
		}
	})
}

// asked complains unless a program made n GETs of objects whose path has this
// text.
func asked(w *simulation.World, p *simulation.Instance, text string, n int) error {
	gets := p.Seen(func(c proxy.Call) bool { return c.Method == http.MethodGet && strings.Contains(c.Path, text) })
	if len(gets) < n {
		return fmt.Errorf("it made %d of %d requests", len(gets), n)
	}
	return nil
}
