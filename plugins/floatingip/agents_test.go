// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/seedtest"
)

const agentNamespace = "berth-system"

// agentOn is the pod of an agent.
func agentOn(node string, ready v1.ConditionStatus) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: "agent-" + node, UID: types.UID("agent-" + node), Labels: map[string]string{"app.kubernetes.io/name": "berth-agent"}},
		Spec:       v1.PodSpec{NodeName: node},
		Status:     v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: ready}}},
	}
}

func inNamespace(pod *v1.Pod, namespace string) *v1.Pod {
	pod.Namespace = namespace
	return pod
}

func labelledAs(pod *v1.Pod, name string) *v1.Pod {
	pod.Labels["app.kubernetes.io/name"] = name
	return pod
}

// A node that is deleted before its agent's pod is forgotten.
func TestDeletedNodeIsForgotten(t *testing.T) {
	a := newAgents(agentNamespace)
	a.know("n1", true)
	a.seen(agentOn("n1", v1.ConditionTrue))
	a.know("n1", false)
	a.gone(agentOn("n1", v1.ConditionTrue))
	if left := len(a.nodes) + len(a.pods) + len(a.lost); left != 0 {
		t.Errorf("%d entries are left of node n1", left)
	}
}

// A node without a ready agent gets no pod with a floating IP, whatever else is true of it.
func TestNodesWithoutAgent(t *testing.T) {
	const on1, on2 = "n1: no Berth agent is ready", "n2: no Berth agent is ready"
	boundTo2 := result{api: []string{"10.0.70.2: " + ofPodA + ", held by a on n2", "a: on n2 with 10.0.70.2"}}
	missing := func(text string) result { return result{code: unresolvable, text: text} }
	ready, two := agentOn("n2", v1.ConditionTrue), objects(node("n1"), node("n2"), oneWeb)
	dying := agentOn("n1", v1.ConditionTrue)
	terminating(dying)
	var many []runtime.Object
	for i := range mostNamed + 1 {
		many = append(many, node(fmt.Sprintf("n%d", i)))
	}
	for name, test := range map[string]phaseCase{
		"all nodes have one": {
			world: append(objects(agentOn("n1", v1.ConditionTrue), ready), two...), pod: pod("a"), want: want{unfiltered: true, bind: boundA},
		},
		"one has none": {
			world: append(objects(ready), two...), pod: pod("a"), want: want{filter: map[string]result{"n1": missing(on1)}, bind: boundTo2},
		},
		"one is not ready": {
			world: append(objects(ready, agentOn("n1", v1.ConditionFalse)), two...), pod: pod("a"), want: want{filter: map[string]result{"n1": missing(on1)}, bind: boundTo2},
		},
		"one is being deleted": {
			world: append(objects(ready, dying), two...), pod: pod("a"), want: want{filter: map[string]result{"n1": missing(on1)}, bind: boundTo2},
		},
		"a tenant's pod says that it is one": {
			world: append(objects(ready, inNamespace(agentOn("n1", v1.ConditionTrue), "shop")), two...), pod: pod("a"), want: want{filter: map[string]result{"n1": missing(on1)}, bind: boundTo2},
		},
		"another pod of the namespace": {
			world: append(objects(ready, labelledAs(agentOn("n1", v1.ConditionTrue), "berth-controller")), two...), pod: pod("a"), want: want{filter: map[string]result{"n1": missing(on1)}, bind: boundTo2},
		},
		"no node has one": {
			world: two, pod: pod("a"), want: want{filter: map[string]result{"n1": missing(on1), "n2": missing(on2)}},
		},
		"many have none": {
			world: append(many, oneWeb), pod: pod("a"), want: want{filter: map[string]result{"n0": missing(ipam.ReasonNoAgent), "n1": missing(ipam.ReasonNoAgent), "n2": missing(ipam.ReasonNoAgent), "n3": missing(ipam.ReasonNoAgent)}},
		},
		"a pod without an address": {
			world: two, pod: pod("a", asking("0")), want: want{batched: true, unfiltered: true, bind: result{api: []string{"a: on n1"}}},
		},
		"a pool does not serve the node, either": {
			world: objects(ready, node("n1"), node("n2", "rack", "b"), ipPool("web", "10.0.70.2", forNodes("rack", "b"))), pod: pod("a"),
			want: want{filter: map[string]result{"n1": missing(ipam.ReasonNode)}, score: map[string]int64{"n2": 100}, bind: boundTo2},
		},
		"preemption does not help": {
			world: full("PodDeleted"), pod: pod("a"),
			want: want{
				filter: map[string]result{"n1": missing(on1)},
				after:  []preempting{{node: "n1", remove: []*v1.Pod{pod("v", bound("n1", "10.0.70.2"))}, want: missing(on1)}},
			},
		},
		"the node gives no more, either": {
			world: objects(advertising(node("n1"), "0"), oneWeb), pod: pod("a"), want: want{filter: map[string]result{"n1": missing(on1)}},
		},
		"a kept address on a node without one": {
			world: append(racks("10.0.70.2", "10.0.70.10"), ready, ip("10.0.70.2", dbOwner, "", "Retain")), pod: dbPod(),
			want: want{nodes: []string{"n1"}, filter: map[string]result{"n1": missing(on1)}},
		},
		"an agent goes after the filter": {
			world: objects(agentOn("n1", v1.ConditionTrue), node("n1"), oneWeb), pod: pod("a"),
			before: map[string]func(*cluster){"reserve": func(c *cluster) { c.setAgent(agentOn("n1", v1.ConditionFalse)) }},
			want:   want{unfiltered: true, reserve: result{code: unschedulable, text: on1}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("POD_NAMESPACE", agentNamespace)
			synctest.Test(t, func(t *testing.T) { test.run(t) })
		})
	}
}

// setAgent writes the pod of an agent.
func (c *cluster) setAgent(pod *v1.Pod) {
	c.t.Helper()
	resource := v1.SchemeGroupVersion.WithResource("pods")
	err := c.kube.Tracker().Update(resource, pod, pod.Namespace)
	if err != nil {
		err = c.kube.Tracker().Create(resource, pod, pod.Namespace)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.settle()
	c.changes()
}

// filtered returns the nodes that pass the filter in an attempt to schedule a pod.
func (c *cluster) filtered(pod *v1.Pod) (names []string) {
	c.t.Helper()
	state := framework.NewCycleState()
	if _, status, _ := c.framework.RunPreFilterPlugins(c.ctx, state, pod); !status.IsSuccess() {
		c.t.Fatal(status)
	}
	for _, info := range c.nodeInfos() {
		if c.framework.RunFilterPlugins(c.ctx, state, pod, info).IsSuccess() {
			names = append(names, info.Node().Name)
		}
	}
	c.settle()
	return names
}

// An agent that becomes ready wakes one pod that may run there, and not the pods that need another
// pool. One that leaves takes its node away.
func TestAgentWakes(t *testing.T) {
	t.Setenv("POD_NAMESPACE", agentNamespace)
	synctest.Test(t, func(t *testing.T) {
		a, b := pod("a"), pod("b", func(pod *v1.Pod) { pod.Annotations = map[string]string{"berth.dev/pools": "other"} })
		c := newCluster(t, append(racks("10.0.70.2-10.0.70.9", "10.0.70.10"), a, b)...)
		for _, waiting := range []*v1.Pod{b, a} {
			if names := c.filtered(waiting); len(names) > 0 {
				t.Fatalf("%s can run on %v without an agent", waiting.Name, names)
			}
		}
		c.setAgent(agentOn("n1", v1.ConditionFalse))
		if woken := c.takeWoken(); len(woken) > 0 {
			t.Fatalf("an agent that is not ready woke %v", woken)
		}
		c.setAgent(agentOn("n1", v1.ConditionTrue))
		if woken := c.takeWoken(); !slices.Equal(woken, []string{"a"}) {
			t.Fatalf("the agent of n1 woke %v, want a", woken)
		}
		if names := c.filtered(a); !slices.Equal(names, []string{"n1"}) {
			t.Errorf("a can run on %v, want n1", names)
		}
		again := agentOn("n1", v1.ConditionTrue)
		again.Annotations = map[string]string{"heart": "beats"}
		c.setAgent(again)
		if woken := c.takeWoken(); len(woken) > 0 {
			t.Errorf("an agent that was ready before woke %v", woken)
		}
		if err := c.kube.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), agentNamespace, "agent-n1"); err != nil {
			t.Fatal(err)
		}
		c.settle()
		if names := c.filtered(a); len(names) > 0 {
			t.Errorf("a can run on %v after the agent has left", names)
		}
	})
}

// However the events of nodes and agents are mixed, agents knows what follows from the last of
// each.
func TestAgentsModel(t *testing.T) {
	random := rand.New(rand.NewPCG(seedtest.Seed(t), 0))
	names := []string{"n0", "n1", "n2"}
	a := newAgents(agentNamespace)
	nodes, pods := map[string]bool{}, map[string]*v1.Pod{}
	for step := range 20_000 {
		name, uid := names[random.IntN(len(names))], fmt.Sprint(random.IntN(5))
		was := a.has(name)
		switch random.IntN(5) {
		case 0:
			nodes[name] = true
			a.know(name, true)
		case 1:
			delete(nodes, name)
			a.know(name, false)
		case 2:
			if pod := pods[uid]; pod != nil {
				delete(pods, uid)
				a.gone(pod)
			}
		default:
			pod := agentOn(name, []v1.ConditionStatus{v1.ConditionTrue, v1.ConditionFalse}[random.IntN(2)])
			pod.UID = types.UID(uid)
			if before := pods[uid]; before != nil {
				pod.Spec.NodeName = before.Spec.NodeName
				was = a.has(pod.Spec.NodeName)
			}
			if random.IntN(8) == 0 {
				labelledAs(pod, "another")
			}
			pods[uid] = pod
			if gained := a.seen(pod); (gained != "") != (!was && a.has(pod.Spec.NodeName)) {
				t.Fatalf("step %d: gained %q, and node %s had an agent: %v, and has: %v", step, gained, pod.Spec.NodeName, was, a.has(pod.Spec.NodeName))
			}
		}
		on := map[string]bool{}
		for _, pod := range pods {
			if pod.Status.Conditions[0].Status == v1.ConditionTrue && !strings.Contains(pod.Labels["app.kubernetes.io/name"], "another") {
				on[pod.Spec.NodeName] = true
			}
		}
		missing := 0
		for _, name := range names {
			if a.has(name) != on[name] {
				t.Fatalf("step %d: %s has an agent: %v, want %v", step, name, a.has(name), on[name])
			}
			if nodes[name] && !on[name] {
				missing++
			}
		}
		if got := a.missing(len(nodes)); got != missing {
			t.Fatalf("step %d: %d nodes have no agent, want %d", step, got, missing)
		}
		if a.missing(len(nodes)+1) == 0 || len(nodes) > missing && a.missing(len(nodes)-1) == 0 && missing == 0 {
			t.Fatalf("step %d: with another number of nodes none is missing", step)
		}
	}
}

// BenchmarkAgents measures what each pod with a floating IP costs at 5,000 nodes, and each node if
// some have no agent.
func BenchmarkAgents(b *testing.B) {
	const nodes = 5_000
	a := newAgents(agentNamespace)
	names := make([]string, nodes)
	for i := range nodes {
		names[i] = fmt.Sprintf("node%d", i)
		a.know(names[i], true)
		if i > 0 {
			a.seen(agentOn(names[i], v1.ConditionTrue))
		}
	}
	b.Run("PreFilter", func(b *testing.B) {
		for b.Loop() {
			if a.missing(nodes) != 1 {
				b.Fatal("wrong")
			}
		}
	})
	b.Run("Filter", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for i := 1; pb.Next(); i++ {
				if name := names[i%nodes]; a.has(name) != (i%nodes != 0) {
					b.Error("wrong")
				}
			}
		})
	})
	b.Run("another pod's event", func(b *testing.B) {
		other := inNamespace(agentOn("node1", v1.ConditionTrue), "shop")
		for b.Loop() {
			a.seen(other)
		}
	})
}

// What a Deployment may have more goes on from a pod that cannot have it, because its nodes have no
// agent.
func TestOfferGoesOnWithoutAgent(t *testing.T) {
	t.Setenv("POD_NAMESPACE", agentNamespace)
	synctest.Test(t, func(t *testing.T) {
		first, second := webPod("web-a", with(v1alpha1.AnnotationPools, "web")), webPod("web-b", with(v1alpha1.AnnotationPools, "other"))
		c := newCluster(t, append(racks("10.0.70.2", "10.0.70.10"), deployment("web", 0), replicaSet("web-1", "web"), agentOn("n1", v1.ConditionTrue), agentOn("n2", v1.ConditionTrue), first, second)...)
		for _, pod := range []*v1.Pod{first, second} {
			if nodes := c.filtered(pod); len(nodes) > 0 {
				t.Fatalf("%s fits %q", pod.Name, nodes)
			}
			<-time.After(endsWithin)
		}
		c.setAgent(agentOn("n1", v1.ConditionFalse))
		puts(deployment("web", 2))(c)
		for _, pod := range []*v1.Pod{first, second} {
			c.settle()
			if woken := c.takeWoken(); !slices.Equal(woken, []string{pod.Name}) {
				t.Fatalf("woke %q, want %s", woken, pod.Name)
			}
			nodes := c.filtered(pod)
			if on := pod == second; slices.Contains(nodes, "n2") != on {
				t.Errorf("%s fits %q", pod.Name, nodes)
			}
			<-time.After(endsWithin)
		}
	})
}
