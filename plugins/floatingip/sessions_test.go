// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/seedtest"
)

// speakerOn is the pod of a berth-speaker.
func speakerOn(node string, ready v1.ConditionStatus) *v1.Pod {
	pod := labelledAs(agentOn(node, ready), agentpod.Speaker)
	pod.Name, pod.UID = "speaker-"+node, types.UID("speaker-"+node)
	return pod
}

func routed(spec *v1alpha1.IPPoolSpec) { spec.Mode = v1alpha1.NetworkRouted }

func requireSession(spec *v1alpha1.IPPoolSpec) {
	spec.Mode, spec.RequireSession = v1alpha1.NetworkRouted, true
}

// Nodes without a BGP session come last for routed addresses, and do not come at all where the pool
// says so. Nodes without a speaker are like nodes with a session.
func TestSessions(t *testing.T) {
	nodes := objects(node("n1"), node("n2"), agentOn("n1", v1.ConditionTrue), agentOn("n2", v1.ConditionTrue))
	in := func(pool *v1alpha1.IPPool, more ...runtime.Object) []runtime.Object {
		return append(append(slices.Clone(nodes), pool), more...)
	}
	web := func(mode func(*v1alpha1.IPPoolSpec)) *v1alpha1.IPPool { return ipPool("web", "10.0.70.2", mode) }
	none := result{code: unresolvable, text: "node(s) without an established BGP session, which IPPool web requires"}
	dying := speakerOn("n1", v1.ConditionFalse)
	terminating(dying)
	failed := speakerOn("n1", v1.ConditionFalse)
	failed.Status.Phase = v1.PodFailed
	boundTo2 := result{api: []string{"10.0.70.2: " + ofPodA + ", held by a on n2", "a: on n2 with 10.0.70.2"}}
	onlyOn2 := want{filter: map[string]result{"n1": none}, bind: boundTo2}
	no1, no2 := speakerOn("n1", v1.ConditionFalse), speakerOn("n2", v1.ConditionFalse)
	last := want{unfiltered: true, score: map[string]int64{"n1": 0, "n2": 100}, bind: boundTo2}
	kept := ip("10.0.70.2", dbOwner, "", "Retain")
	link := func(*v1alpha1.IPPoolSpec) {}
	for name, test := range map[string]phaseCase{
		"no speaker":                           {world: in(web(requireSession)), pod: pod("a"), want: want{unfiltered: true, bind: boundA}},
		"all have a session":                   {world: in(web(requireSession), speakerOn("n1", v1.ConditionTrue), speakerOn("n2", v1.ConditionTrue)), pod: pod("a"), want: want{unfiltered: true, bind: boundA}},
		"one has none":                         {world: in(web(routed), no1, speakerOn("n2", v1.ConditionTrue)), pod: pod("a"), on: "n2", want: last},
		"one has none, the other no speaker":   {world: in(web(routed), no1), pod: pod("a"), on: "n2", want: last},
		"none has one":                         {world: in(web(routed), no1, no2), pod: pod("a"), want: want{unfiltered: true, score: map[string]int64{"n1": 0, "n2": 0}, bind: boundA}},
		"one has none, of a pool on a link":    {world: in(web(link), no1), pod: pod("a"), want: want{unfiltered: true, bind: boundA}},
		"one has none, and the pool wants one": {world: in(web(requireSession), no1), pod: pod("a"), want: withScore(onlyOn2, "n2", 100)},
		"its speaker is being deleted":         {world: in(web(requireSession), dying), pod: pod("a"), want: want{unfiltered: true, bind: boundA}},
		"its speaker has failed":               {world: in(web(requireSession), failed), pod: pod("a"), want: want{unfiltered: true, bind: boundA}},
		"a tenant's pod says that it is one":   {world: in(web(requireSession), inNamespace(no1.DeepCopy(), "shop")), pod: pod("a"), want: want{unfiltered: true, bind: boundA}},
		"none has one, and the pool wants one": {world: in(web(requireSession), no1, no2), pod: pod("a"), want: want{filter: map[string]result{"n1": none, "n2": none}}},
		"a kept address": {
			world: in(web(routed), no1, kept), pod: dbPod(), on: "n2",
			want: want{score: map[string]int64{"n1": 0, "n2": 100}, bind: result{api: []string{"10.0.70.2: Retain of StatefulSet db/db-0, held by db-0 on n2, last db-0", "db-0: on n2 with 10.0.70.2"}}},
		},
		"a kept address, and the pool wants a session": {
			world: in(web(requireSession), no1, no2, kept), pod: dbPod(), want: want{preFilter: none},
		},
		"another pool serves it without": {
			world: in(web(requireSession), no1, ipPool("other", "10.0.70.9")), pod: pod("a"), on: "n1",
			want: want{unfiltered: true, score: map[string]int64{"n1": 50, "n2": 100}, bind: result{api: []string{"10.0.70.9: " + ofPodA + ", held by a on n1", "a: on n1 with 10.0.70.9"}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("POD_NAMESPACE", agentNamespace)
			synctest.Test(t, func(t *testing.T) { test.run(t) })
		})
	}
}

func withScore(w want, node string, score int64) want {
	w.score = map[string]int64{node: score}
	return w
}

// A session that is established wakes one pod that may run there.
func TestSessionWakes(t *testing.T) {
	t.Setenv("POD_NAMESPACE", agentNamespace)
	synctest.Test(t, func(t *testing.T) {
		a := pod("a")
		c := newCluster(t, node("n1"), agentOn("n1", v1.ConditionTrue), speakerOn("n1", v1.ConditionFalse), ipPool("web", "10.0.70.2-10.0.70.9", requireSession), a)
		if names := c.filtered(a); len(names) > 0 {
			t.Fatalf("a can run on %v without a session", names)
		}
		c.setAgent(speakerOn("n1", v1.ConditionTrue))
		if woken := c.takeWoken(); !slices.Equal(woken, []string{"a"}) {
			t.Fatalf("the session of n1 woke %v, want a", woken)
		}
		if names := c.filtered(a); !slices.Equal(names, []string{"n1"}) {
			t.Errorf("a can run on %v, want n1", names)
		}
		c.setAgent(speakerOn("n1", v1.ConditionFalse))
		if names := c.filtered(a); len(names) > 0 {
			t.Errorf("a can run on %v after the session was lost", names)
		}
	})
}

// Sessions agree at any time with the pods that exist.
func TestSessionsModel(t *testing.T) {
	random := rand.New(rand.NewPCG(seedtest.Seed(t), 0))
	s, pods := newSessions(agentNamespace), map[types.UID]*v1.Pod{}
	for step := range 20000 {
		uid := types.UID(fmt.Sprint(random.IntN(12)))
		if is := pods[uid]; is != nil && random.IntN(4) == 0 {
			delete(pods, uid)
			s.gone(is)
		} else {
			next := speakerOn(fmt.Sprintf("n%d", random.IntN(4)), []v1.ConditionStatus{v1.ConditionTrue, v1.ConditionFalse}[random.IntN(2)])
			if is != nil {
				next.Spec.NodeName = is.Spec.NodeName
			}
			if next.UID = uid; random.IntN(5) == 0 {
				next.DeletionTimestamp = &metav1.Time{}
			}
			pods[uid] = next
			s.seen(next)
		}
		count := 0
		for i := range 4 {
			name, speakers, ready := fmt.Sprintf("n%d", i), 0, 0
			for _, pod := range pods {
				if pod.Spec.NodeName == name && pod.DeletionTimestamp == nil {
					speakers++
					if agentpod.IsReady(pod) {
						ready++
					}
				}
			}
			lacks := speakers > 0 && ready == 0
			if lacks {
				count++
			}
			if s.lacks(name) != lacks {
				t.Fatalf("step %d: %s lacks a session: %v", step, name, s.lacks(name))
			}
		}
		if s.anywhere() != (count > 0) || s.count.Load() != int64(count) {
			t.Fatalf("step %d: %d nodes without a session, want %d", step, s.count.Load(), count)
		}
	}
}
