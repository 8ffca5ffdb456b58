// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/proxy"
)

// Two schedulers that know nothing of each other race for every pod and every
// address.
func TestTwoSchedulers(t *testing.T) {
	t.Parallel()
	w := simulation.WithNodes(t, lab.ControlPlaneOptions{}, 3)
	w.Controller()
	w.Pool("one", "10.0.70.2-10.0.70.81", simulation.OnNode("node1"))
	w.Pool("rest", "10.0.70.82-10.0.70.161", func(pool *v1alpha1.IPPool) {
		pool.Spec.NodeSubnets = []string{"10.0.60.12/31"}
	})
	first, second := w.Scheduler(simulation.SchedulerOptions{}), w.Scheduler(simulation.SchedulerOptions{})
	pods := simulation.NewPods("web", 200)
	w.Create(pods...)
	// 160 addresses for 200 pods: as pods end, others start.
	w.Eventually("wait for the addresses to be used", func() error { return w.CountBound(160) })
	for i := range 60 {
		w.Delete(fmt.Sprintf("web-%d", i))
	}
	w.Eventually("wait for all pods to be bound", func() error { return w.CountBound(140) })
	w.Invariants()
	for _, s := range []*simulation.Instance{first, second} {
		if err := s.Running(); err != nil {
			t.Error(err)
		}
		if n := len(s.Seen(func(c proxy.Call) bool {
			return strings.HasSuffix(c.Path, "/binding") && c.Code == http.StatusCreated
		})); n == 0 {
			t.Error("one of the schedulers bound nothing: there was no race")
		}
	}
	w.DeleteAll()
}
