// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// inGroup makes a pod a member of a PodGroup.
func inGroup(name string) func(*v1.Pod) {
	return func(pod *v1.Pod) { pod.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &name} }
}

// tryOut is kube-scheduler's cycle of a PodGroup that needs all of these pods (podGroupCycle): one
// pod after the other is reserved where it fits, or where a preemption of victims would make room;
// then all give back what they took. If all fit, and nobody need be preempted, they are reserved
// and bound. It returns what became of each pod.
func (c *cluster) tryOut(victims []*v1.Pod, pods ...*v1.Pod) (outcomes []string) {
	c.t.Helper()
	group := framework.NewCycleState()
	type fit struct {
		state *framework.CycleState
		pod   *v1.Pod
		node  string
	}
	var fits []fit
	nominated := false
	for _, pod := range pods {
		state := framework.NewCycleState()
		state.SetPodGroupSchedulingCycle(group)
		statuses, on, preempts := framework.NewDefaultNodeToStatus(), "", false
		if _, status, _ := c.framework.RunPreFilterPlugins(c.ctx, state, pod); !status.IsSuccess() {
			c.t.Fatal(status)
		}
		for _, info := range c.nodeInfos() {
			status := c.framework.RunFilterPlugins(c.ctx, state, pod, info)
			if statuses.Set(info.Node().Name, status); status.IsSuccess() && on == "" {
				on = info.Node().Name
			}
		}
		if on == "" {
			if _, status := c.framework.RunPostFilterPlugins(c.ctx, state, pod, statuses); status.Code() == fwk.Unschedulable {
				on, preempts = c.preempting(state, pod, victims)
			}
		}
		if on == "" {
			outcomes = append(outcomes, "no node")
			continue
		}
		if status := c.framework.RunReservePluginsReserve(c.ctx, state, pod, on); !status.IsSuccess() {
			c.framework.RunReservePluginsUnreserve(c.ctx, state, pod, on)
			outcomes = append(outcomes, status.Code().String())
			continue
		}
		fits = append(fits, fit{state, pod, on})
		if preempts {
			nominated, on = true, "nominated on "+on
		}
		outcomes = append(outcomes, on)
	}
	for _, f := range slices.Backward(fits) {
		c.framework.RunReservePluginsUnreserve(c.ctx, f.state, f.pod, f.node)
	}
	if !nominated && len(fits) == len(pods) {
		for _, f := range fits {
			f.state.SetPodGroupSchedulingCycle(nil)
			if status := c.framework.RunReservePluginsReserve(c.ctx, f.state, f.pod, f.node); !status.IsSuccess() {
				c.t.Error(status)
			}
			if status := c.framework.RunBindPlugins(c.ctx, f.state, f.pod, f.node); !status.IsSuccess() {
				c.t.Error(status)
			}
		}
	}
	c.settle()
	return outcomes
}

// preempting returns the first node that fits the pod without the victims, as DefaultPreemption
// does.
func (c *cluster) preempting(state fwk.CycleState, pod *v1.Pod, victims []*v1.Pod) (name string, ok bool) {
	for _, info := range c.nodeInfos() {
		state, some := state.Clone(), false
		for _, victim := range victims {
			if victim.Spec.NodeName != info.Node().Name {
				continue
			}
			removed, err := framework.NewPodInfo(victim)
			if err != nil {
				c.t.Fatal(err)
			}
			c.framework.RunPreFilterExtensionRemovePod(c.ctx, state, pod, removed, info)
			some = true
		}
		// A node without victims is no candidate, though a pod may have given an address back meanwhile.
		if some && c.framework.RunFilterPlugins(c.ctx, state, pod, info).IsSuccess() {
			return info.Node().Name, true
		}
	}
	return "", false
}

// A PodGroup gets addresses for all of its pods, or none.
func TestGang(t *testing.T) {
	g0, g1, g2 := pod("g0", inGroup("g"), priority(1)), pod("g1", inGroup("g"), priority(1)), pod("g2", inGroup("g"), priority(1))
	v, u := pod("v", bound("n1", "10.0.70.2")), pod("u", bound("n1", "10.0.70.3"))
	heldByV, heldByU := ip("10.0.70.2", "v1 Pod v", "v@n1", "PodDeleted"), ip("10.0.70.3", "v1 Pod u", "u@n1", "PodDeleted")
	onOther := pod("u", bound("n2", "10.0.70.3"))
	two := ipPool("web", "10.0.70.2-10.0.70.3")
	for name, test := range map[string]struct {
		world   []runtime.Object
		pods    []*v1.Pod
		victims []*v1.Pod
		want    []string
		api     []string
	}{
		"an address for each": {world: objects(two), pods: []*v1.Pod{g0, g1}, want: []string{"n1", "n1"},
			api: []string{"10.0.70.2: PodDeleted of Pod g1, held by g1 on n1", "10.0.70.3: PodDeleted of Pod g0, held by g0 on n1", "g0: on n1 with 10.0.70.3", "g1: on n1 with 10.0.70.2"}},
		"addresses that the owner keeps": {
			world: objects(two, replicaSet("web", ""), ip("10.0.70.2", "apps/v1 ReplicaSet web", "", "Retain"), ip("10.0.70.3", "apps/v1 ReplicaSet web", "", "Retain")),
			pods:  []*v1.Pod{pod("g0", inGroup("g"), of("apps/v1", "ReplicaSet", "web"), retain), pod("g1", inGroup("g"), of("apps/v1", "ReplicaSet", "web"), retain)},
			want:  []string{"n1", "n1"},
			api:   []string{"10.0.70.2: Retain of ReplicaSet web, held by g0 on n1, last g0", "10.0.70.3: Retain of ReplicaSet web, held by g1 on n1, last g1", "g0: on n1 with 10.0.70.2", "g1: on n1 with 10.0.70.3"},
		},
		"one too few":                   {world: objects(two), pods: []*v1.Pod{g0, g1, g2}, want: []string{"n1", "n1", "no node"}},
		"one too few for the namespace": {world: objects(ipPool("web", "10.0.70.2-10.0.70.9", atMost(2))), pods: []*v1.Pod{g0, g1, g2}, want: []string{"n1", "n1", "no node"}},
		"a victim":                      {world: objects(oneWeb, v, heldByV), victims: []*v1.Pod{v}, pods: []*v1.Pod{g0}, want: []string{"nominated on n1"}},
		"an address and a victim":       {world: objects(two, v, heldByV), victims: []*v1.Pod{v}, pods: []*v1.Pod{g0, g1}, want: []string{"n1", "nominated on n1"}},
		"a victim for each":             {world: objects(two, v, heldByV, u, heldByU), victims: []*v1.Pod{v, u}, pods: []*v1.Pod{g0, g1}, want: []string{"nominated on n1", "nominated on n1"}},
		"a victim on each node": {
			world: objects(node("n1"), node("n2"), two, v, heldByV, onOther, ip("10.0.70.3", "v1 Pod u", "u@n2", "PodDeleted")), victims: []*v1.Pod{v, onOther},
			pods: []*v1.Pod{g0, g1, g2}, want: []string{"nominated on n1", "nominated on n2", "no node"},
		},
		"a free address and a victim for the first": {
			world: objects(node("n1"), node("n2"), two, v, heldByV), victims: []*v1.Pod{v},
			pods: []*v1.Pod{pod("g0", inGroup("g"), priority(1), asking("2")), g1}, want: []string{"nominated on n1", "no node"},
		},
		"a victim, and two want it":      {world: objects(oneWeb, v, heldByV), victims: []*v1.Pod{v}, pods: []*v1.Pod{g0, g1}, want: []string{"nominated on n1", "no node"}},
		"a victim for the first of them": {world: objects(two, v, heldByV), victims: []*v1.Pod{v}, pods: []*v1.Pod{g0, g1, g2}, want: []string{"n1", "nominated on n1", "no node"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				world := slices.Clone(test.world)
				for _, pod := range test.pods {
					world = append(world, pod)
				}
				c := newCluster(t, world...)
				for range 2 { // A group that does not fit leaves nothing behind.
					if got := c.tryOut(test.victims, test.pods...); !slices.Equal(got, test.want) {
						t.Errorf("outcomes %q, want %q", got, test.want)
					}
					if diff := gocmp.Diff(test.api, c.changes()); diff != "" {
						t.Errorf("the API server's objects: -want +got\n%s", diff)
					}
					if woken := c.takeWoken(); len(woken) > 0 {
						t.Errorf("woke %q", woken)
					}
					if test.api != nil {
						break
					}
				}
			})
		})
	}
}

// What a PodGroup tried out, and gave back, is for pods of no group: two groups would wake each
// other for ever. When an address comes free, the group that lacks it is woken.
func TestGangWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g0, g1, h0, h1, x := pod("g0", inGroup("g")), pod("g1", inGroup("g")), pod("h0", inGroup("h")), pod("h1", inGroup("h")), pod("x")
		v := pod("v", bound("n1", "10.0.70.2"))
		c := newCluster(t, ipPool("web", "10.0.70.2-10.0.70.3"), v, ip("10.0.70.2", "v1 Pod v", "v@n1", "PodDeleted"),
			pod("u", bound("n1", "10.0.70.3")), ip("10.0.70.3", "v1 Pod u", "u@n1", "PodDeleted"), g0, g1, h0, h1, x)
		tried := func(pods ...*v1.Pod) {
			t.Helper()
			if got := c.tryOut(nil, pods...); got[len(got)-1] != "no node" {
				t.Errorf("outcomes %q", got)
			}
		}
		woken := func(what string, want ...string) {
			t.Helper()
			if got := c.takeWoken(); !slices.Equal(got, want) {
				t.Errorf("%s: woke %q, want %q", what, got, want)
			}
		}
		tried(g0, g1)
		tried(h0, h1)
		tries(x)(c)
		woken("nothing is free")
		c.berth.Remove(ip("10.0.70.2", "v1 Pod v", "", ""))
		c.settle()
		woken("an address comes free", "g0")
		tried(g0, g1)
		woken("the first group gave it back", "x")
		tried(h0, h1)
		c.settle()
		woken("the second group gave it back")
		c.berth.Remove(ip("10.0.70.3", "v1 Pod u", "", ""))
		c.settle()
		if got := c.takeWoken(); len(got) != 1 || !strings.HasPrefix(got[0], "g") {
			t.Errorf("another address comes free: woke %q, want one of the first group", got)
		}
		if got := c.tryOut(nil, g0, g1); !slices.Equal(got, []string{"n1", "n1"}) {
			t.Errorf("the first group: %q", got)
		}
	})
}

// Of two groups that each have some of the addresses that both need, each gives its back.
func TestHalfGang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g0, g1, h0, x := pod("g0", inGroup("g")), pod("g1", inGroup("g")), pod("h0", inGroup("h")), pod("x")
		h1 := pod("h1", inGroup("h"))
		c := newCluster(t, ipPool("web", "10.0.70.2-10.0.70.3"), g0, g1, h0, h1, x)
		waits := func(pod *v1.Pod) <-chan *fwk.Status {
			state := framework.NewCycleState()
			c.framework.RunPreFilterPlugins(c.ctx, state, pod)
			if status := c.framework.RunReservePluginsReserve(c.ctx, state, pod, "n1"); !status.IsSuccess() {
				t.Fatal(status)
			}
			c.framework.AddWaitingPod(pod, map[string]time.Duration{"GangScheduling": time.Hour})
			ended := make(chan *fwk.Status, 1)
			go func() {
				status := c.framework.WaitOnPermit(c.ctx, pod)
				c.framework.RunReservePluginsUnreserve(c.ctx, state, pod, "n1")
				ended <- status
			}()
			c.settle()
			return ended
		}
		first, other := waits(g0), waits(h0)
		if got := c.tryOut(nil, x); !slices.Equal(got, []string{"no node"}) {
			t.Errorf("a pod of no group: %q", got)
		}
		c.settle()
		if len(first)+len(other) > 0 {
			t.Error("a pod of no group has a group give its addresses back")
		}
		if got := c.tryOut(nil, g1); !slices.Equal(got, []string{"no node"}) {
			t.Errorf("the second pod of the group: %q", got)
		}
		c.settle()
		if len(first) != 1 || len(other) != 0 {
			t.Fatalf("the group gave %d addresses back, and the other group %d", len(first), len(other))
		}
		if status := <-first; status.Code() != fwk.Unschedulable || !strings.Contains(status.Message(), "pod g1 of the same PodGroup finds no address") {
			t.Errorf("the first pod of the group: %v", status)
		}
		if got := c.tryOut(nil, h1); !slices.Equal(got, []string{"n1"}) {
			t.Errorf("the second pod of the other group: %q", got)
		}
		c.framework.GetWaitingPod(h0.UID).Allow("GangScheduling")
		if status := <-other; !status.IsSuccess() {
			t.Errorf("the first pod of the other group: %v", status)
		}
	})
}

// A pod that Reserve rejects waits as one that Filter rejects, and is tried again soon, because
// another node may do.
func TestReserveOutdated(t *testing.T) {
	full := func(c *cluster) { c.berth.Put(ip("10.0.70.2", "v1 Pod v", "v@n1", "PodDeleted")) }
	for name, test := range map[string]struct {
		world   []runtime.Object
		happens func(c *cluster)
		text    string
		// then wakes the pod before it is tried again.
		then func(c *cluster)
	}{
		"the address went to another": {world: objects(oneWeb), happens: full, text: "has no free address (1 in use"},
		"the address went to another, and came back": {world: objects(oneWeb), happens: full, text: "has no free address (1 in use",
			then: func(c *cluster) { c.berth.Remove(ip("10.0.70.2", "v1 Pod v", "", "")) }},
		"the node began to cap addresses": {world: objects(oneWeb), text: "node n1 began to cap addresses a moment ago",
			happens: func(c *cluster) { c.nodeInfos()[0].(*framework.NodeInfo).SetNode(advertising(node("n1"), "0")) }},
		"the owner keeps it for another pod now": {
			world:   objects(oneWeb, replicaSet("web", ""), ip("10.0.70.2", "apps/v1 ReplicaSet web", "", "Retain"), pod("b", of("apps/v1", "ReplicaSet", "web"), retain)),
			happens: func(c *cluster) { c.berth.Put(ip("10.0.70.2", "apps/v1 ReplicaSet web", "b@n1", "Retain")) }, text: "other pods of the pod's workload have the addresses"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := pod("a")
				if strings.HasPrefix(name, "the owner") {
					a = pod("a", of("apps/v1", "ReplicaSet", "web"), retain)
				}
				c := newCluster(t, append(test.world, a)...)
				state := framework.NewCycleState()
				if _, status, _ := c.framework.RunPreFilterPlugins(c.ctx, state, a); !status.IsSuccess() {
					t.Fatal(status)
				}
				test.happens(c)
				c.settle()
				c.takeWoken()
				status := c.framework.RunReservePluginsReserve(c.ctx, state, a, "n1")
				if status.Code() != fwk.Unschedulable || status.Plugin() != Name || !strings.Contains(status.Message(), test.text) {
					t.Errorf("Reserve: %s %q of %q", status.Code(), status.Message(), status.Plugin())
				}
				c.settle()
				if woken := c.takeWoken(); len(woken) > 0 {
					t.Errorf("woke %q at once", woken)
				}
				if test.then != nil {
					test.then(c)
				} else {
					<-time.After(triesAgain)
				}
				c.settle()
				if woken := c.takeWoken(); !slices.Equal(woken, []string{"a"}) {
					t.Errorf("woke %q", woken)
				}
			})
		})
	}
}
