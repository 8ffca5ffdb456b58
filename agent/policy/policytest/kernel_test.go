// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/ipam/seedtest"
)

// Real packets between namespaces arrive where the oracle allows it, with the rulesets in the
// kernel: first the node's, which routes between its pods and the rest of the world, then the
// rulesets of the pods' own namespaces.
func TestKernel(t *testing.T) {
	netnstest.Need(t)
	base, clusters := seedtest.Seed(t), seedtest.Draws(t, 3, 6)
	var seen kernelStatistics
	for i := range clusters {
		// A cluster for each backend in turn.
		backend := Backends[(base+i)%uint64(len(Backends))]
		t.Run(fmt.Sprintf("%d %s", base+i, backend), func(t *testing.T) {
			c := NewCluster(Seeded(base + i))
			for range 50 {
				c.Change()
			}
			for len(c.Nodes[0].Locals) < 4 {
				c.SetPod(c.random.Pod())
				c.addLocal()
			}
			w := NewKernel(t, c, backend)
			for range 3 {
				for range 4 {
					c.ChangePolicies()
				}
				w.compare(&seen)
				w.InPods = !w.InPods
				w.compare(&seen)
			}
			if t.Failed() {
				t.Fatalf("BERTH_TEST_SEED=%d repeats this cluster first\n%s\n%s", base+i, strings.Join(c.History, "\n"), c)
			}
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d clusters, %+v", clusters, seen)
	if seen.Passed < 20 || seen.Dropped < 20 {
		t.Error("too few packets passed or were dropped")
	}
}

// kernelStatistics show whether the random clusters are worth comparing.
type kernelStatistics struct{ Passed, Dropped int }

// compare sends packets.
func (w *Kernel) compare(seen *kernelStatistics) {
	w.Helper()
	w.Apply()
	for _, c := range withNode(w.node, connections(w.node, 150)) {
		from, to := w.owners[c.Source], w.owners[c.Destination]
		if from == w.router || from == nil || to == nil || from == to || c.Port == 0 && c.Protocol != 1 && c.Protocol != 58 {
			continue
		}
		if w.compareOne(c) {
			seen.Passed++
		} else {
			seen.Dropped++
		}
	}
}

// compareOne sends a connection's first packet from one host to another, and returns whether the
// oracle allows it.
func (w *Kernel) compareOne(c Connection) (want bool) {
	w.Helper()
	from, to, world := w.owners[c.Source], w.owners[c.Destination], w.node.World()
	out, in := Verdict{Allowed: true}, Verdict{Allowed: true}
	if from.local != nil {
		out = world.Egress(w.node.Subject(from.local), c)
	}
	if to.local != nil && w.InPods {
		in = w.node.IngressByWire(to.local, c)
	} else if to.local != nil {
		in = world.Ingress(w.node.Subject(to.local), c)
	}
	want = out.Allowed && in.Allowed
	arrived, answered, err := w.Send(c)
	if err != nil {
		w.Errorf("%s: %v", c, err)
	} else if arrived != want || answered != want {
		w.Errorf("%s, rules of pods: %t: arrived: %t, answered: %t; the oracle: from %s %+v, to %s %+v", c, w.InPods, arrived, answered, name(from.local), out, name(to.local), in)
	}
	return want
}
