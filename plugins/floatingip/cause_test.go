// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics/legacyregistry"
)

// waits fails unless these are all series of pods that wait, by namespace, pool and cause.
func waits(t *testing.T, want ...string) {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == "berth_scheduler_waiting_pods" {
				l := metric.GetLabel() // sorted: cause, namespace, pool
				got = append(got, fmt.Sprintf("%s/%s/%s: %v", l[1].GetValue(), l[2].GetValue(), l[0].GetValue(), metric.GetGauge().GetValue()))
			}
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("waiting are %q, want %q", got, want)
	}
}

// A pod that waits is counted with its namespace, its pool and the cause.
func TestWhyPodsWait(t *testing.T) {
	cases := phaseCases()
	for name, want := range map[string][]string{
		"an address":                               nil,
		"a pod without an address":                 nil,
		"no pool":                                  {"shop//pool: 1"},
		"a pool is full":                           {"shop/web/address: 1"},
		"a pool is disabled":                       {"shop/web/address: 1"},
		"a kept address is not reachable":          {"shop/web/owner: 1"},
		"a kept address is in no pool":             {"shop//owner: 1"},
		"a Deployment has all":                     {"shop/web/owner: 1"},
		"a claim has all":                          {"shop/web/owner: 1"},
		"there is no such claim":                   {"shop//owner: 1"},
		"a namespace has as many as it may":        {"shop/web/address: 1"},
		"a pool that does not admit the namespace": {"shop//pool: 1"},
		"two addresses of a pool that has one":     {"shop/web/address: 1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test, ok := cases[name]
				if !ok {
					t.Fatal("there is no such case")
				}
				test.run(t)
				// The last cluster is the one whose pods are counted.
				waits(t, want...)
			})
		})
	}
}

// A pod whose pools have addresses on nodes without an agent lacks no address; beside a node with
// an agent and a full pool it does.
func TestWaitsForAgent(t *testing.T) {
	t.Setenv("POD_NAMESPACE", agentNamespace)
	for name, test := range map[string]struct {
		world phaseCase
		want  string
	}{
		"none":                 {phaseCase{world: objects(node("n1"), oneWeb), pod: pod("a")}, "shop/web/agent: 1"},
		"none, of two pools":   {phaseCase{world: racks("10.0.70.2", "10.0.70.10"), pod: pod("a")}, "shop//agent: 1"},
		"one, and no address":  {phaseCase{world: append(full("PodDeleted"), node("n1"), agentOn("n1", v1.ConditionTrue), node("n2")), pod: pod("a")}, "shop/web/address: 1"},
		"none where a pool is": {phaseCase{world: objects(node("n1", "rack", "a"), node("n2", "rack", "b"), agentOn("n2", v1.ConditionTrue), ipPool("web", "10.0.70.2", forNodes("rack", "a"))), pod: pod("a")}, "shop/web/agent: 1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, append(test.world.world, test.world.pod)...)
				c.filtered(test.world.pod)
				waits(t, test.want)
			})
		})
	}
}

// The series are bounded, and no pod gets lost.
func TestBounded(t *testing.T) {
	groups := map[group]int{}
	for i := range 3 * mostGroups {
		groups[group{fmt.Sprintf("ns-%d", i), "web", []string{"address", "agent"}[i%2]}] = 1 + i
	}
	few := bounded(groups)
	if len(few) != mostGroups+2 || total(few) != total(groups) {
		t.Errorf("%d groups of %d pods, want %d of %d", len(few), total(few), mostGroups+2, total(groups))
	}
	if largest := (group{"ns-299", "web", "agent"}); few[largest] != 300 {
		t.Errorf("the largest group has %d pods, want 300", few[largest])
	}
}

// A node that had an agent lost it, for a day, unless the node is lost itself.
func TestNodesByAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAgents(agentNamespace)
		for _, name := range []string{"n1", "n2", "n3", "n4"} {
			a.know(name, true)
		}
		for _, name := range []string{"n1", "n2", "n3"} {
			a.seen(agentOn(name, v1.ConditionTrue))
		}
		isLost := func(node string) bool { return node == "n3" }
		expect := func(ready, lost, none int) {
			t.Helper()
			if n := a.tally(time.Now(), isLost); n["ready"] != ready || n["lost"] != lost || n["none"] != none {
				t.Errorf("%v, want %d ready, %d lost, %d without", n, ready, lost, none)
			}
		}
		expect(3, 0, 1)
		a.seen(agentOn("n2", v1.ConditionFalse))
		a.gone(agentOn("n3", v1.ConditionTrue))
		expect(1, 1, 2)
		<-time.After(lostFor)
		expect(1, 0, 3)
		a.seen(agentOn("n2", v1.ConditionTrue))
		expect(2, 0, 2)
		a.gone(agentOn("n2", v1.ConditionTrue))
		a.know("n2", false)
		expect(1, 0, 2)
	})
}
