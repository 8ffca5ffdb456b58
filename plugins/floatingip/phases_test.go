// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	gocmp "github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// result is the result of a phase: its status, the changes at the API server, and the
// pods that were woken. The zero value is success without a write.
type result struct {
	code fwk.Code
	// text is a part of the status message.
	text string
	// api has the changed objects, and the writes that changed nothing
	// ([cluster.changes]).
	api   []string
	woken []string
}

// preempting is the result for a node after some pods were removed and others added.
type preempting struct {
	node        string
	remove, add []*v1.Pod
	want        result
}

// want has the result of each phase of an attempt. Phases that the scheduler does not
// reach are not checked.
type want struct {
	// batched: the pod is signed.
	batched   bool
	preFilter result
	// nodes that PreFilter names; nil: all.
	nodes []string
	// unfiltered: PreFilter skips Filter.
	unfiltered bool
	// filter by node; nodes that are left out succeed.
	filter map[string]result
	// after are preemptions that are tried out on copies of the state.
	after []preempting
	// score by node, normalized; nil: PreScore skips it.
	score   map[string]int64
	reserve result
	bind    result
	// unreserve is the result after a failure of Reserve or Bind.
	unreserve result
	// again is the next attempt's.
	again *want
}

type phaseCase struct {
	// world is all objects but the pod; without nodes there is n1.
	world []runtime.Object
	pod   *v1.Pod
	// before are actions of others before a phase begins, by its name.
	before map[string]func(c *cluster)
	// on is the node that is chosen; default: the first that succeeds.
	on   string
	want want
}

func objects(list ...runtime.Object) []runtime.Object { return list }

const (
	unschedulable = fwk.Unschedulable
	unresolvable  = fwk.UnschedulableAndUnresolvable
)

// oneWeb is a pool of one address.
var oneWeb = ipPool("web", "10.0.70.2")

// tries makes another pod go as far as Filter.
func tries(pod *v1.Pod) func(c *cluster) {
	return func(c *cluster) {
		if err := c.kube.Tracker().Add(pod.DeepCopy()); err != nil && !apierrors.IsAlreadyExists(err) {
			c.t.Fatal(err)
		}
		c.settle()
		state := framework.NewCycleState()
		if _, status, _ := c.framework.RunPreFilterPlugins(c.ctx, state, pod); status.IsSuccess() {
			for _, info := range c.nodeInfos() {
				c.framework.RunFilterPlugins(c.ctx, state, pod, info)
			}
		}
		c.settle()
		c.changes()
		c.takeWoken()
	}
}

// deletes ends a pod; the plugin sees that at once or not.
func deletes(name string) func(c *cluster) {
	return func(c *cluster) {
		if err := c.kube.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), "shop", name); err != nil {
			c.t.Fatal(err)
		}
		c.settle()
		c.changes()
		c.takeWoken()
	}
}

// takes has an address taken for a pod; the plugin does not see that.
func takes(object *v1alpha1.FloatingIP) func(c *cluster) {
	return func(c *cluster) {
		c.berth.Late()
		c.berth.Put(object)
		c.changes()
	}
}

func fails(fault ipamtest.Fault) func(c *cluster) {
	return func(c *cluster) { c.berth.Fail(fault) }
}

// TestPhases runs the phases of an attempt to schedule a pod, as kube-scheduler does, and
// checks after each its status, all objects of the API server, and the pods that were
// woken.
func TestPhases(t *testing.T) {
	for name, test := range phaseCases() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test.run(t) })
		})
	}
}

func (test *phaseCase) run(t *testing.T) {
	c := newCluster(t, append(slices.Clone(test.world), test.pod)...)
	verify := func(phase string, want result, status *fwk.Status) {
		t.Helper()
		c.settle()
		if status.Code() != want.code || !strings.Contains(status.Message(), want.text) {
			t.Errorf("%s: %s: %q, want %s: %q", phase, status.Code(), status.Message(), want.code, want.text)
		}
		if want.text == "" && status.Message() != "" {
			t.Errorf("%s: the status says %q", phase, status.Message())
		}
		if diff := gocmp.Diff(want.api, c.changes()); diff != "" {
			t.Errorf("%s: the API server's objects: -want +got\n%s", phase, diff)
		}
		if woken := c.takeWoken(); !slices.Equal(woken, want.woken) {
			t.Errorf("%s: woke %q, want %q", phase, woken, want.woken)
		}
	}
	before := func(phase string) {
		if do := test.before[phase]; do != nil {
			do(c)
			c.settle()
			c.takeWoken()
		}
	}
	for want := &test.want; want != nil; want = want.again {
		test.attempt(c, want, before, verify)
		test.before = nil
	}
}

// attempt goes through the phases.
func (test *phaseCase) attempt(c *cluster, want *want, before func(string), verify func(string, result, *fwk.Status)) {
	t, state, pod := c.t, framework.NewCycleState(), test.pod
	t.Helper()
	if _, status := c.plugin.SignPod(c.ctx, pod); status.IsSuccess() != want.batched {
		t.Errorf("SignPod: %v, want to be batched: %v", status, want.batched)
	}
	before("preFilter")
	chosen, status, _ := c.framework.RunPreFilterPlugins(c.ctx, state, pod)
	verify("preFilter", want.preFilter, status)
	if skips := state.GetSkipFilterPlugins().Has(Name); skips != want.unfiltered {
		t.Errorf("preFilter skips the filter: %v", skips)
	}
	if !status.IsSuccess() {
		return
	}
	var nodes []string
	if !chosen.AllNodes() {
		nodes = slices.Sorted(maps.Keys(chosen.NodeNames))
	}
	if !slices.Equal(nodes, want.nodes) {
		t.Errorf("preFilter: nodes are %q, want %q", nodes, want.nodes)
	}

	before("filter")
	var feasible []fwk.NodeInfo
	for _, info := range c.nodeInfos() {
		name := info.Node().Name
		if !chosen.AllNodes() && !chosen.NodeNames.Has(name) {
			continue
		}
		status := c.framework.RunFilterPlugins(c.ctx, state, pod, info)
		verify("filter "+name, want.filter[name], status)
		if status.IsSuccess() {
			feasible = append(feasible, info)
		}
	}
	for _, p := range want.after {
		c.preempt(state, pod, p, verify)
	}
	if len(feasible) == 0 {
		return
	}

	status = c.framework.RunPreScorePlugins(c.ctx, state, pod, feasible)
	verify("preScore", result{}, status)
	if skips := state.GetSkipScorePlugins().Has(Name); skips != (want.score == nil) {
		t.Errorf("preScore skips the score: %v", skips)
	}
	scores, status := c.framework.RunScorePlugins(c.ctx, state, pod, feasible)
	verify("score", result{}, status)
	if want.score != nil {
		got := map[string]int64{}
		for _, score := range scores {
			got[score.Name] = score.TotalScore
		}
		if diff := gocmp.Diff(want.score, got); diff != "" {
			t.Errorf("score: -want +got\n%s", diff)
		}
	}

	before("reserve")
	on := cmp.Or(test.on, feasible[0].Node().Name)
	status = c.framework.RunReservePluginsReserve(c.ctx, state, pod, on)
	verify("reserve", want.reserve, status)
	if status.IsSuccess() {
		before("bind")
		status = c.framework.RunBindPlugins(c.ctx, state, pod, on)
		verify("bind", want.bind, status)
	}
	if !status.IsSuccess() {
		before("unreserve")
		for range 2 { // as often as kube-scheduler likes
			c.framework.RunReservePluginsUnreserve(c.ctx, state, pod, on)
			verify("unreserve", want.unreserve, nil)
			want.unreserve = result{}
		}
	}
}

// preempt tries out a preemption on a copy of the state.
func (c *cluster) preempt(state fwk.CycleState, pod *v1.Pod, p preempting, verify func(string, result, *fwk.Status)) {
	info, err := c.framework.SnapshotSharedLister().NodeInfos().Get(p.node)
	if err != nil {
		c.t.Fatal(err)
	}
	state = state.Clone()
	for _, step := range []struct {
		pods []*v1.Pod
		run  func(context.Context, fwk.CycleState, *v1.Pod, fwk.PodInfo, fwk.NodeInfo) *fwk.Status
	}{{p.remove, c.framework.RunPreFilterExtensionRemovePod}, {p.add, c.framework.RunPreFilterExtensionAddPod}} {
		for _, other := range step.pods {
			podInfo, err := framework.NewPodInfo(other)
			if err != nil {
				c.t.Fatal(err)
			}
			if status := step.run(c.ctx, state, pod, podInfo, info); !status.IsSuccess() {
				c.t.Errorf("preemption: %v", status)
			}
		}
	}
	verify("filter after a preemption", p.want, c.framework.RunFilterPlugins(c.ctx, state, pod, info))
}

// failures of the API server.
var (
	errTimeout  = apierrors.NewServerTimeout(schema.GroupResource{Group: v1alpha1.GroupName, Resource: "floatingips"}, "create", 1)
	errInternal = apierrors.NewInternalError(errors.New("failed calling webhook"))
	errNet      = errors.New("connection reset by peer")
)

const (
	ofPodA  = "PodDeleted of Pod a"
	heldByA = ofPodA + ", held by a on n1"
	ofDB    = "Retain of StatefulSet db/db-0"
)

// boundA is the result for pod a if a pool has a free address for it.
var boundA = result{api: []string{"10.0.70.2: " + heldByA, "a: on n1 with 10.0.70.2"}}

// racks are two nodes, and a pool on each.
func racks(first, second string) []runtime.Object {
	return objects(node("n1", "rack", "a"), node("n2", "rack", "b"), ipPool("web", first, forNodes("rack", "a")), ipPool("other", second, forNodes("rack", "b")))
}

// dbPod is of a StatefulSet that keeps addresses.
func dbPod() *v1.Pod { return pod("db-0", of("apps/v1", "StatefulSet", "db"), retain) }

const dbOwner = "apps/v1 StatefulSet db/db-0"

// webOf returns Deployment web with one pod, its ReplicaSet and its pool.
func webOf(more ...runtime.Object) []runtime.Object {
	return append(objects(deployment("web", 1), replicaSet("web-1", "web"), ipPool("web", "10.0.70.2-10.0.70.9")), more...)
}

func webPod(name string, options ...func(*v1.Pod)) *v1.Pod {
	return pod(name, append([]func(*v1.Pod){of("apps/v1", "ReplicaSet", "web-1"), retain}, options...)...)
}

const webOwner = "apps/v1 Deployment web"

// full is a pool whose one address a pod has.
func full(policy v1alpha1.ReleasePolicy) []runtime.Object {
	return objects(oneWeb, ip("10.0.70.2", "v1 Pod v", "v@n1", policy), pod("v", bound("n1", "10.0.70.2")))
}

func phaseCases() map[string]phaseCase {
	return map[string]phaseCase{
		"a pod without an address": {
			pod:  pod("a", asking("0")),
			want: want{batched: true, unfiltered: true, bind: result{api: []string{"a: on n1"}}},
		},
		"an annotation and no address": {
			world: objects(oneWeb), pod: pod("a", asking("0"), with(v1alpha1.AnnotationPools, "web")),
			want: want{preFilter: result{code: unresolvable, text: "annotation berth.dev/pools but no container requests berth.dev/ip"}},
		},
		"an address": {
			world: objects(oneWeb), pod: pod("a"),
			want: want{unfiltered: true, bind: boundA},
		},
		"no pool": {
			pod:  pod("a"),
			want: want{preFilter: result{code: unresolvable, text: "there is no valid IPPool"}},
		},

		// Nodes.
		"a node without a pool": {
			world: objects(node("n1", "rack", "a"), node("n2", "rack", "b"), ipPool("web", "10.0.70.2-10.0.70.9", forNodes("rack", "a"))), pod: pod("a"),
			want: want{filter: map[string]result{"n2": {code: unresolvable, text: "node(s) in no IPPool that the pod may use"}}, score: map[string]int64{"n1": 100}, bind: boundA},
		},
		"pools with more and less room": {
			world: racks("10.0.70.2", "10.0.70.10-10.0.70.16"), pod: pod("a"), on: "n1",
			want: want{unfiltered: true, score: map[string]int64{"n1": 33, "n2": 100}, bind: boundA},
		},
		"pools with as much room": {
			world: racks("10.0.70.2", "10.0.70.10"), pod: pod("a"), on: "n1",
			want: want{unfiltered: true, bind: boundA},
		},
		"a pool is full": {
			world: full("PodDeleted"), pod: pod("a"),
			want: want{filter: map[string]result{"n1": {code: unschedulable, text: `pool "web" (10.0.70.2) has no free address (1 in use, 0 retained)`}}},
		},
		"a pool is disabled": {
			world: objects(ipPool("web", "10.0.70.2", disabled)), pod: pod("a"),
			want: want{filter: map[string]result{"n1": {code: unschedulable, text: "is disabled"}}},
		},
		"a node gives no more": {
			world: objects(advertising(node("n1"), "1"), node("n2"), ipPool("web", "10.0.70.2-10.0.70.9"), pod("v", bound("n1", ""))), pod: pod("a"),
			want: want{filter: map[string]result{"n1": {code: unschedulable, text: ipam.ReasonNodeCap}}, bind: result{api: []string{"10.0.70.2: " + ofPodA + ", held by a on n2", "a: on n2 with 10.0.70.2"}}},
		},
		"a node begins to give no more": {
			world: objects(oneWeb), pod: pod("a"),
			before: map[string]func(*cluster){"reserve": func(c *cluster) {
				c.nodeInfos()[0].(*framework.NodeInfo).SetNode(advertising(node("n1"), "0"))
			}},
			want: want{unfiltered: true, reserve: result{code: unschedulable, text: "node n1 began to cap addresses a moment ago"}},
		},

		// Addresses that an owner keeps.
		"a kept address": {
			world: append(racks("10.0.70.2", "10.0.70.10"), ip("10.0.70.2", dbOwner, "", "Retain")), pod: dbPod(),
			want: want{nodes: []string{"n1"}, bind: result{api: []string{"10.0.70.2: " + ofDB + ", held by db-0 on n1, last db-0", "db-0: on n1 with 10.0.70.2"}}},
		},
		"most nodes reach a kept address": {
			world: append(racks("10.0.70.2", "10.0.70.10"), node("n3", "rack", "a"), ip("10.0.70.2", dbOwner, "", "Retain")), pod: dbPod(),
			want: want{
				filter: map[string]result{"n2": {code: unresolvable, text: "node(s) where the pod's retained floating IP is not reachable"}},
				bind:   result{api: []string{"10.0.70.2: " + ofDB + ", held by db-0 on n1, last db-0", "db-0: on n1 with 10.0.70.2"}},
			},
		},
		"a kept address is not reachable": {
			world: objects(node("n2", "rack", "b"), ipPool("web", "10.0.70.2", forNodes("rack", "a")), ipPool("other", "10.0.70.10"), ip("10.0.70.2", dbOwner, "", "Retain")), pod: dbPod(),
			want: want{preFilter: result{code: unresolvable, text: "node(s) where the pod's retained floating IP is not reachable"}},
		},
		"a kept address is in no pool": {
			world: objects(ipPool("other", "10.0.70.10"), ip("10.0.70.2", dbOwner, "", "Retain")), pod: dbPod(),
			want: want{preFilter: result{code: unresolvable, text: "address 10.0.70.2 is retained for StatefulSet shop/db but no valid pool contains it"}},
		},
		"a kept address of another": {
			world: objects(oneWeb, ip("10.0.70.2", "apps/v1 StatefulSet db/db-1", "", "Retain")), pod: dbPod(),
			want: want{filter: map[string]result{"n1": {code: unschedulable, text: "(0 in use, 1 retained)"}}},
		},
		"an address to be kept": {
			world: objects(oneWeb), pod: dbPod(),
			want: want{unfiltered: true, bind: result{api: []string{"10.0.70.2: " + ofDB + ", held by db-0 on n1", "db-0: on n1 with 10.0.70.2"}}},
		},
		"an address of a deleted namespace of that name": {
			world: objects(ipPool("web", "10.0.70.2-10.0.70.3"), namespaceOf("shop"), func() *v1alpha1.FloatingIP {
				of := ip("10.0.70.2", dbOwner, "", "Retain")
				of.Spec.Owner.NamespaceUID = "before"
				return of
			}()), pod: dbPod(),
			want: want{unfiltered: true, bind: result{api: []string{"10.0.70.3: " + ofDB + ", held by db-0 on n1", "db-0: on n1 with 10.0.70.3"}}},
		},

		// The fixed set of a Deployment.
		"the first of a Deployment": {
			world: webOf(), pod: webPod("web-x"),
			want: want{unfiltered: true, bind: result{api: []string{"10.0.70.2: Retain of Deployment web, held by web-x on n1", "web-x: on n1 with 10.0.70.2"}}},
		},
		"a Deployment whose pods keep nothing has no fixed set": {
			world: webOf(ip("10.0.70.2", webOwner, "web-v@n1", "Retain"), webPod("web-v", bound("n1", "10.0.70.2"))), pod: pod("web-x", of("apps/v1", "ReplicaSet", "web-1")),
			want: want{unfiltered: true, bind: result{api: []string{"10.0.70.3: PodDeleted of Deployment web, held by web-x on n1", "web-x: on n1 with 10.0.70.3"}}},
		},
		"a Deployment has a free one": {
			world: webOf(ip("10.0.70.5", webOwner, "", "Retain")), pod: webPod("web-x"),
			want: want{bind: result{api: []string{"10.0.70.5: Retain of Deployment web, held by web-x on n1, last web-x", "web-x: on n1 with 10.0.70.5"}}},
		},
		"a Deployment has all": {
			world: webOf(ip("10.0.70.2", webOwner, "web-v@n1", "Retain"), webPod("web-v", bound("n1", "10.0.70.2"))), pod: webPod("web-x"),
			want: want{
				filter: map[string]result{"n1": {code: unresolvable, text: `Deployment "web" has all 1 address that it keeps, all with running pods (the pod gets the first that is given back; annotation berth.dev/spare-addresses`}},
				after:  []preempting{{node: "n1", remove: []*v1.Pod{webPod("web-v", bound("n1", "10.0.70.2"))}}},
			},
		},
		"a Deployment has all, one with a pod that ends": {
			world: webOf(ip("10.0.70.2", webOwner, "web-v@n1", "Retain"), webPod("web-v", bound("n1", "10.0.70.2"), terminating)), pod: webPod("web-x"),
			want: want{filter: map[string]result{"n1": {code: unresolvable, text: "1 is with a pod that is terminating"}}},
		},
		"a Deployment has all, one with a pod on a lost node": {
			world: webOf(node("n1"), tainted(node("n2")), ip("10.0.70.2", webOwner, "web-v@n2", "Retain"), webPod("web-v", bound("n2", "10.0.70.2"), terminating)), pod: webPod("web-x"),
			want: want{unfiltered: true, bind: result{api: []string{"10.0.70.3: Retain of Deployment web, held by web-x on n1", "web-x: on n1 with 10.0.70.3"}}},
		},
		"a Deployment has all, and a pod of an older template says that it may have more": {
			world: webOf(ip("10.0.70.2", webOwner, "web-v@n1", "Retain"), webPod("web-v", bound("n1", "10.0.70.2"))), pod: webPod("web-x", with(v1alpha1.AnnotationSpareAddresses, "1")),
			want: want{filter: map[string]result{"n1": {code: unresolvable, text: `Deployment "web" has all 1 address`}}},
		},
		"a Deployment has all, and may have more": {
			world: objects(sparing(deployment("web", 1), "1"), replicaSet("web-1", "web"), ipPool("web", "10.0.70.2-10.0.70.9"), ip("10.0.70.2", webOwner, "web-v@n1", "Retain"), webPod("web-v", bound("n1", "10.0.70.2"))),
			pod:   webPod("web-x"),
			want:  want{unfiltered: true, bind: result{api: []string{"10.0.70.3: Retain of Deployment web, held by web-x on n1", "web-x: on n1 with 10.0.70.3"}}},
		},
		"a group of a LeaderWorkerSet restarted": {
			world: objects(
				ipPool("web", "10.0.70.2-10.0.70.9"), ip("10.0.70.5", "apps/v1 StatefulSet llm/llm-0-1", "", "Retain"), pod("llm-0", of("apps/v1", "StatefulSet", "llm"), asking("0")),
				func() *appsv1.StatefulSet {
					workers := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "llm-0", UID: "llm-0"}}
					controlledBy(workers, "v1", "Pod", "llm-0")
					return workers
				}()),
			pod:  pod("llm-0-1", of("apps/v1", "StatefulSet", "llm-0"), retain, func(pod *v1.Pod) { pod.Labels = map[string]string{podrequest.LabelGroup: "llm"} }),
			want: want{bind: result{api: []string{"10.0.70.5: Retain of StatefulSet llm/llm-0-1, held by llm-0-1 on n1, last llm-0-1", "llm-0-1: on n1 with 10.0.70.5"}}},
		},
		"a ReplicaSet has all": {
			world: objects(replicaSet("rs", ""), ipPool("web", "10.0.70.2-10.0.70.9"), ip("10.0.70.2", "apps/v1 ReplicaSet rs", "rs-v@n1", "Retain"), pod("rs-v", bound("n1", "10.0.70.2"))),
			pod:   pod("rs-x", of("apps/v1", "ReplicaSet", "rs"), retain),
			want:  want{filter: map[string]result{"n1": {code: unresolvable, text: `ReplicaSet "rs" has all 1 address`}}},
		},
		"a Deployment that was deleted has no set": {
			world: objects(replicaSet("web-1", "web"), ipPool("web", "10.0.70.2-10.0.70.9"), ip("10.0.70.2", webOwner, "web-v@n1", "Retain"), webPod("web-v", bound("n1", "10.0.70.2"))), pod: webPod("web-x"),
			want: want{unfiltered: true, bind: result{api: []string{"10.0.70.3: Retain of Deployment web, held by web-x on n1", "web-x: on n1 with 10.0.70.3"}}},
		},
		"a custom kind that is yet to be read": {
			world: objects(oneWeb), pod: pod("ro-x", of("argoproj.io/v1alpha1", "Rollout", "ro"), retain),
			want: want{preFilter: result{code: unresolvable, text: `Rollout "ro" is being read`}},
		},

		// Claims.
		"a claim": {
			world: objects(oneWeb, claim("licences", 1)), pod: pod("a", with(v1alpha1.AnnotationClaim, "licences")),
			want: want{bind: result{api: []string{"10.0.70.2: Retain of IPClaim licences, held by a on n1", "a: on n1 with 10.0.70.2"}}},
		},
		"there is no such claim": {
			world: objects(oneWeb), pod: pod("a", with(v1alpha1.AnnotationClaim, "licences")),
			want: want{preFilter: result{code: unresolvable, text: `there is no IPClaim "licences" in namespace "shop"`}},
		},
		"a claim that is being deleted": {
			world: objects(oneWeb, func() *v1alpha1.IPClaim {
				c, now := claim("licences", 1), metav1.Now()
				c.DeletionTimestamp, c.Finalizers = &now, []string{"example.com/hold"}
				return c
			}()), pod: pod("a", with(v1alpha1.AnnotationClaim, "licences")),
			want: want{preFilter: result{code: unresolvable, text: `there is no IPClaim "licences"`}},
		},
		"a claim has all": {
			world: objects(ipPool("web", "10.0.70.2-10.0.70.9"), claim("licences", 1), ip("10.0.70.2", "berth.dev/v1alpha1 IPClaim licences", "v@n1", "Retain"), pod("v", bound("n1", "10.0.70.2"))), pod: pod("a", with(v1alpha1.AnnotationClaim, "licences")),
			want: want{filter: map[string]result{"n1": {code: unschedulable, text: `IPClaim "licences" has`}}},
		},
		"a claim and another annotation": {
			world: objects(oneWeb, claim("licences", 1)), pod: pod("a", retain, with(v1alpha1.AnnotationClaim, "licences")),
			want: want{preFilter: result{code: unresolvable, text: "annotation berth.dev/release-policy has no effect with berth.dev/claim"}},
		},

		// Namespaces.
		"a namespace has as many as it may": {
			world: objects(ipPool("web", "10.0.70.2-10.0.70.9", atMost(1)), ip("10.0.70.2", "v1 Pod v", "v@n1", "PodDeleted"), pod("v", bound("n1", "10.0.70.2"))), pod: pod("a"),
			want: want{filter: map[string]result{"n1": {code: unschedulable, text: `gives namespace "shop" at most 1 addresses, and it has 1 (1 in use, 0 retained)`}},
				after: []preempting{{node: "n1", remove: []*v1.Pod{pod("v", bound("n1", "10.0.70.2"))}}}},
		},
		"a pool that does not admit the namespace": {
			world: objects(ipPool("web", "10.0.70.2", forNamespaces("tier", "web"))), pod: pod("a"),
			want: want{preFilter: result{code: unresolvable, text: `does not admit namespace "shop"`}},
		},
		"a pool that admits the namespace": {
			world: objects(namespaceOf("shop", "tier", "web"), ipPool("web", "10.0.70.2", forNamespaces("tier", "web"))), pod: pod("a"),
			want: want{unfiltered: true, bind: boundA},
		},
		"a namespace that nobody knows": {
			world: objects(oneWeb), pod: pod("a", func(pod *v1.Pod) { pod.Namespace = "none" }),
			want: want{preFilter: result{code: fwk.Error, text: "find namespace none"}},
		},

		// Several addresses, and particular ones.
		"both families": {
			world: objects(oneWeb, ipPool("six", "2001:db8::2")), pod: pod("a", asking("2"), with(v1alpha1.AnnotationFamilies, "IPv4,IPv6")),
			want: want{bind: result{api: []string{
				"10.0.70.2: " + heldByA, "2001-0db8-0000-0000-0000-0000-0000-0002: " + heldByA + ", index 1",
				"a: on n1 with 10.0.70.2,2001-0db8-0000-0000-0000-0000-0000-0002",
			}}},
		},
		"both families, one of which is not there": {
			world: objects(oneWeb), pod: pod("a", asking("2"), with(v1alpha1.AnnotationFamilies, "IPv4,IPv6")),
			want: want{preFilter: result{code: unresolvable, text: "address 2 of 2 (IPv6): pool \"web\" (10.0.70.2) has no IPv6 addresses"}},
		},
		"two addresses": {
			world: objects(ipPool("web", "10.0.70.2-10.0.70.3")), pod: pod("a", asking("2")),
			want: want{bind: result{api: []string{"10.0.70.2: " + heldByA, "10.0.70.3: " + heldByA + ", index 1", "a: on n1 with 10.0.70.2,10.0.70.3"}}},
		},
		"two addresses of a pool that has one": {
			world: objects(oneWeb), pod: pod("a", asking("2")),
			want: want{filter: map[string]result{"n1": {code: unschedulable, text: "only 1 free"}}},
		},
		"two addresses, one of which fails": {
			world: objects(ipPool("web", "10.0.70.2-10.0.70.3")), pod: pod("a", asking("2")),
			before: map[string]func(*cluster){"bind": fails(ipamtest.Fault{Name: "10.0.70.3", Err: errInternal})},
			want: want{bind: result{code: fwk.Error, text: "commit floating IP 10.0.70.2,10.0.70.3: ", api: []string{"10.0.70.2: " + heldByA, "create 10.0.70.3 without effect"}},
				again: &want{
					bind: result{api: []string{"10.0.70.2: " + heldByA + ", index 1", "10.0.70.3: " + heldByA, "a: on n1 with 10.0.70.3,10.0.70.2"}}}},
		},
		"nine addresses": {
			world: objects(oneWeb), pod: pod("a", asking("9")),
			want: want{preFilter: result{code: unresolvable, text: "the pod requests berth.dev/ip: 9; a pod can have 8"}},
		},
		"an address by name": {
			world: objects(ipPool("web", "10.0.70.2-10.0.70.9")), pod: pod("a", with(v1alpha1.AnnotationAddresses, "10.0.70.7")),
			want: want{bind: result{api: []string{"10.0.70.7: " + heldByA, "a: on n1 with 10.0.70.7"}}},
		},
		"an address by name that another has": {
			world: full("PodDeleted"), pod: pod("a", with(v1alpha1.AnnotationAddresses, "10.0.70.2")),
			want: want{filter: map[string]result{"n1": {code: unschedulable, text: "10.0.70.2 is held by pod shop/v"}}},
		},
		"an address by name that is in no pool": {
			world: objects(oneWeb), pod: pod("a", with(v1alpha1.AnnotationAddresses, "10.0.70.7")),
			want: want{preFilter: result{code: unresolvable, text: "has none of 10.0.70.7"}},
		},

		// Mistakes of a pod's author.
		"an address by name that is none": {
			world: objects(oneWeb), pod: pod("a", with(v1alpha1.AnnotationAddresses, "10.0.70")),
			want: want{preFilter: result{code: unresolvable, text: "annotation berth.dev/addresses: "}},
		},
		"a policy that is none": {
			world: objects(oneWeb), pod: pod("a", with(v1alpha1.AnnotationReleasePolicy, "Keep")),
			want: want{preFilter: result{code: unresolvable, text: `annotation berth.dev/release-policy: "Keep" is not one of PodDeleted, Retain, Never`}},
		},
		"the annotation of a bound pod, before it is": {
			world: full("PodDeleted"), pod: pod("a", with(v1alpha1.AnnotationFloatingIPs, "10.0.70.2")),
			want: want{filter: map[string]result{"n1": {code: unschedulable, text: "has no free address"}}},
		},
		"the node's network": {
			world: objects(oneWeb), pod: pod("a", func(pod *v1.Pod) { pod.Spec.HostNetwork = true }),
			want: want{preFilter: result{code: unresolvable, text: "uses the node's network (hostNetwork: true)"}},
		},
		"a ReplicaSet that is not there": {
			world: objects(oneWeb), pod: webPod("web-x"),
			want: want{preFilter: result{code: fwk.Error, text: "find ReplicaSet shop/web-1 of the pod"}},
		},
		"a ReplicaSet with another UID": {
			world: webOf(), pod: webPod("web-x", func(pod *v1.Pod) { pod.OwnerReferences[0].UID = "forged" }),
			want: want{preFilter: result{code: fwk.Error, text: "but the pod's owner reference has UID forged"}},
		},
		"an IPClaim as controller": {
			world: objects(oneWeb, claim("licences", 1)), pod: pod("a", of("berth.dev/v1alpha1", "IPClaim", "licences")),
			want: want{preFilter: result{code: unresolvable, text: `IPClaim "licences" cannot be the controller of the pod`}},
		},
		"an annotation that there is not": {
			world: objects(oneWeb), pod: pod("db-0", of("apps/v1", "StatefulSet", "db"), retain, with("berth.dev/preallocate", "true")),
			want: want{preFilter: result{code: unresolvable, text: "annotation berth.dev/preallocate is unknown"}},
		},

		// Failover.
		"failover of a StatefulSet's pod": {
			world: objects(oneWeb, volumeClaim("data-db-0", v1.ReadWriteMany)),
			pod:   pod("db-0", of("apps/v1", "StatefulSet", "db"), retain, moved, mounts("data-db-0")),
			want:  want{unfiltered: true, bind: result{api: []string{"10.0.70.2: " + ofDB + ", held by db-0 on n1", "db-0: on n1 with 10.0.70.2"}}},
		},
		"failover of a DaemonSet's pod": {
			world: objects(oneWeb), pod: pod("ds-x", of("apps/v1", "DaemonSet", "ds"), moved),
			want: want{preFilter: result{code: unresolvable, text: "annotation berth.dev/failover is not for pods of a DaemonSet"}},
		},
		"failover of a pod without a workload": {
			world: objects(oneWeb), pod: pod("a", moved),
			want: want{preFilter: result{code: unresolvable, text: "annotation berth.dev/failover is not for a pod without a workload"}},
		},
		"failover with a volume of one node": {
			world: objects(oneWeb, volumeClaim("data-db-0", v1.ReadWriteOnce)),
			pod:   pod("db-0", of("apps/v1", "StatefulSet", "db"), retain, moved, mounts("data-db-0")),
			want:  want{preFilter: result{code: unresolvable, text: "one node at a time can mount PersistentVolumeClaim data-db-0 ([ReadWriteOnce])"}},
		},
		"failover with a volume of one node that is accepted": {
			world: objects(oneWeb, volumeClaim("data-db-0", v1.ReadWriteOnce)),
			pod:   pod("db-0", of("apps/v1", "StatefulSet", "db"), retain, moved, with(v1alpha1.AnnotationFailoverVolumes, v1alpha1.FailoverVolumesAccept), mounts("data-db-0")),
			want:  want{unfiltered: true, bind: result{api: []string{"10.0.70.2: " + ofDB + ", held by db-0 on n1", "db-0: on n1 with 10.0.70.2"}}},
		},
		"failover with a claim that is not there": {
			world: objects(oneWeb), pod: pod("db-0", of("apps/v1", "StatefulSet", "db"), retain, moved, mounts("data-db-0")),
			want: want{preFilter: result{code: unresolvable, text: `find PersistentVolumeClaim data-db-0, to know how many nodes can mount it: persistentvolumeclaim "data-db-0" not found`}},
		},

		// Other workloads.
		"a DaemonSet": {
			world: objects(ipPool("web", "10.0.70.2-10.0.70.9"), node("n1"), node("n2"), func() *v1alpha1.FloatingIP {
				of := ip("10.0.70.5", "apps/v1 DaemonSet ds", "", "Retain")
				of.Spec.Owner.NodeName = "n2"
				return of
			}()),
			pod: pod("ds-x", of("apps/v1", "DaemonSet", "ds"), retain, onNode("n2")), on: "n2",
			want: want{bind: result{api: []string{"10.0.70.5: Retain of DaemonSet ds/n2, held by ds-x on n2, last ds-x", "ds-x: on n2 with 10.0.70.5"}}},
		},
		"a DaemonSet's pod without a node": {
			world: objects(oneWeb), pod: pod("ds-x", of("apps/v1", "DaemonSet", "ds"), retain),
			want: want{preFilter: result{code: unresolvable, text: "the pod belongs to a DaemonSet but its node affinity does not name its node"}},
		},
		"a DaemonSet's pod without a node that keeps nothing": {
			world: objects(oneWeb), pod: pod("ds-x", of("apps/v1", "DaemonSet", "ds")),
			want: want{unfiltered: true, bind: result{api: []string{"10.0.70.2: PodDeleted of DaemonSet ds, held by ds-x on n1", "ds-x: on n1 with 10.0.70.2"}}},
		},
		"a CronJob": {
			world: objects(oneWeb, job("sum-1", "sum")), pod: pod("sum-x", of("batch/v1", "Job", "sum-1"), retain),
			want: want{unfiltered: true, bind: result{api: []string{"10.0.70.2: Retain of CronJob sum, held by sum-x on n1", "sum-x: on n1 with 10.0.70.2"}}},
		},
		"a Job that is not known": {
			world: objects(oneWeb), pod: pod("sum-x", of("batch/v1", "Job", "sum-1"), retain),
			want: want{preFilter: result{code: fwk.Error, text: "find Job shop/sum-1 of the pod"}},
		},

		// Somebody is faster.
		"the address goes to another after Filter": {
			world: objects(oneWeb), pod: pod("a"),
			before: map[string]func(*cluster){"reserve": func(c *cluster) {
				c.berth.Put(ip("10.0.70.2", "v1 Pod v", "v@n1", "PodDeleted"))
				c.settle()
				c.changes()
			}},
			want: want{unfiltered: true, reserve: result{code: unschedulable, text: "has no free address (1 in use"},
				again: &want{filter: map[string]result{"n1": {code: unschedulable, text: "has no free address"}}}},
		},
		"the address goes to another scheduler before Bind": {
			world: objects(ipPool("web", "10.0.70.2-10.0.70.3")), pod: pod("a"),
			before: map[string]func(*cluster){"bind": takes(ip("10.0.70.2", "v1 Pod v", "v@n1", "PodDeleted"))},
			want: want{unfiltered: true, bind: result{code: fwk.Error, text: "the address went to somebody else or to another pool in the meantime", api: []string{"create 10.0.70.2 without effect"}},
				again: &want{unfiltered: true, bind: result{api: []string{"10.0.70.3: " + heldByA, "a: on n1 with 10.0.70.3"}}}},
		},
		"another scheduler took that address for the pod": {
			world: objects(oneWeb), pod: pod("a"),
			before: map[string]func(*cluster){"bind": takes(ip("10.0.70.2", "v1 Pod a", "a@n2", "PodDeleted"))},
			want:   want{unfiltered: true, bind: result{api: []string{"10.0.70.2: " + heldByA, "a: on n1 with 10.0.70.2", "create 10.0.70.2 without effect"}}},
		},
		"another scheduler took that address and bound the pod with it": {
			world: objects(oneWeb), pod: pod("a"),
			before: map[string]func(*cluster){"bind": func(c *cluster) {
				takes(ip("10.0.70.2", "v1 Pod a", "a@n2", "PodDeleted"))(c)
				c.bindElsewhere("a", "n2")
			}},
			want: want{unfiltered: true, bind: result{code: fwk.Error, text: "the pod was bound by another scheduler or replaced", api: []string{"create 10.0.70.2 without effect"}}},
		},
		"the pool goes": {
			world: objects(oneWeb), pod: pod("a"),
			before: map[string]func(*cluster){"bind": func(c *cluster) { c.berth.Remove(oneWeb) }},
			want:   want{unfiltered: true, bind: result{code: fwk.Error, text: "no valid pool contains it any longer"}},
		},

		// Bind fails.
		"the API server refuses the address": {
			world: objects(oneWeb), pod: pod("a"),
			before: map[string]func(*cluster){"bind": fails(ipamtest.Fault{Err: errInternal})},
			want: want{unfiltered: true, bind: result{code: fwk.Error, text: "commit floating IP 10.0.70.2: ", api: []string{"create 10.0.70.2 without effect"}},
				again: &want{unfiltered: true, bind: boundA}},
		},
		"the API server refuses the address, for which another pod waits": {
			world: objects(oneWeb, pod("b")), pod: pod("a"),
			before: map[string]func(*cluster){
				"bind": func(c *cluster) { tries(pod("b"))(c); c.berth.Fail(ipamtest.Fault{Err: errInternal}) },
			},
			want: want{unfiltered: true, bind: result{code: fwk.Error, text: "commit floating IP", api: []string{"create 10.0.70.2 without effect"}}, unreserve: result{woken: []string{"b"}}},
		},
		"the answer to the address gets lost": {
			world: objects(ipPool("web", "10.0.70.2-10.0.70.3")), pod: pod("a"),
			before: map[string]func(*cluster){"bind": fails(ipamtest.Fault{Err: errNet, Done: true})},
			want: want{unfiltered: true, bind: result{code: fwk.Error, text: "connection reset by peer", api: []string{"10.0.70.2: " + heldByA}},
				again: &want{bind: result{api: []string{"10.0.70.2: written again", "a: on n1 with 10.0.70.2"}}}},
		},
		"the answer to the address gets lost, and the watch is late": {
			world: objects(oneWeb), pod: pod("a"),
			before: map[string]func(*cluster){"bind": func(c *cluster) { c.berth.Late(); c.berth.Fail(ipamtest.Fault{Err: errTimeout, Done: true}) }},
			want: want{unfiltered: true, bind: result{code: fwk.Error, text: "commit floating IP", api: []string{"10.0.70.2: " + heldByA}},
				again: &want{unfiltered: true, bind: result{api: []string{"10.0.70.2: written again", "a: on n1 with 10.0.70.2", "create 10.0.70.2 without effect"}}}},
		},
		"the Binding is refused": {
			world: objects(oneWeb), pod: pod("a"),
			before: map[string]func(*cluster){"bind": func(c *cluster) { c.refuse(errInternal) }},
			want: want{unfiltered: true, bind: result{code: fwk.Error, text: "failed calling webhook", api: []string{"create 10.0.70.2 without effect", "delete 10.0.70.2 without effect", "bind a without effect"}},
				again: &want{unfiltered: true, bind: boundA}},
		},
		"the Binding of a pod with a kept address is refused": {
			world: objects(oneWeb, ip("10.0.70.2", dbOwner, "", "Retain")), pod: dbPod(),
			before: map[string]func(*cluster){"bind": func(c *cluster) { c.refuse(errInternal) }},
			want:   want{bind: result{code: fwk.Error, text: "failed calling webhook", api: []string{"10.0.70.2: written again", "update 10.0.70.2 without effect", "bind db-0 without effect"}}},
		},
		"the Binding may yet be carried out": {
			world: objects(oneWeb), pod: pod("a"),
			before: map[string]func(*cluster){"bind": func(c *cluster) { c.refuse(errTimeout) }},
			want: want{unfiltered: true, bind: result{code: fwk.Error, text: "try again", api: []string{"10.0.70.2: " + heldByA, "bind a without effect"}},
				again: &want{bind: result{api: []string{"10.0.70.2: written again", "a: on n1 with 10.0.70.2"}}}},
		},
		"the answer to the Binding gets lost": {
			world: objects(oneWeb), pod: pod("a"),
			before: map[string]func(*cluster){"bind": func(c *cluster) { c.refuse(errNet) }},
			want: want{unfiltered: true, bind: result{code: fwk.Error, text: "connection reset by peer", api: []string{"10.0.70.2: " + heldByA, "bind a without effect"}},
				again: &want{bind: result{api: []string{"10.0.70.2: written again", "a: on n1 with 10.0.70.2"}}}},
		},
		"another scheduler bound the pod": {
			world: objects(oneWeb), pod: pod("a"),
			before: map[string]func(*cluster){"bind": func(c *cluster) { c.bindElsewhere("a", "n2") }},
			want:   want{unfiltered: true, bind: result{code: fwk.Error, text: "is assigned to a node", api: []string{"create 10.0.70.2 without effect", "delete 10.0.70.2 without effect", "bind a without effect"}}},
		},
		"another scheduler bound the pod to that node, perhaps with that address": {
			world: objects(oneWeb), pod: pod("a"),
			before: map[string]func(*cluster){"bind": func(c *cluster) { c.bindElsewhere("a", "n1") }},
			want:   want{unfiltered: true, bind: result{code: fwk.Error, text: "is assigned to a node", api: []string{"10.0.70.2: " + heldByA, "bind a without effect"}}},
		},
		"a pod that is to end names the address": {
			world: objects(oneWeb), pod: pod("a", with(v1alpha1.AnnotationFloatingIPs, "10.0.70.2")),
			before: map[string]func(*cluster){"bind": func(c *cluster) { puts(pod("a", terminating, with(v1alpha1.AnnotationFloatingIPs, "10.0.70.2")))(c) }},
			want:   want{unfiltered: true, bind: result{code: fwk.Error, text: "is assigned to a node", api: []string{"create 10.0.70.2 without effect", "delete 10.0.70.2 without effect", "bind a without effect"}}},
		},
		"the next pod of that name is bound and names the address": {
			world: objects(oneWeb), pod: pod("a"),
			before: map[string]func(*cluster){"bind": func(c *cluster) {
				puts(pod("a", bound("n2", "10.0.70.2"), func(pod *v1.Pod) { pod.UID = "next" }))(c)
				c.settle()
				c.changes()
			}},
			want: want{unfiltered: true, bind: result{code: fwk.Error, text: "is assigned to a node", api: []string{"create 10.0.70.2 without effect", "delete 10.0.70.2 without effect", "bind a without effect"}}},
		},
		"the pod is deleted": {
			world: objects(oneWeb), pod: pod("a"),
			before: map[string]func(*cluster){"bind": deletes("a")},
			want:   want{unfiltered: true, bind: result{code: fwk.Error, text: "not found", api: []string{"create 10.0.70.2 without effect", "delete 10.0.70.2 without effect", "bind a without effect"}}},
		},
		"the pod with a kept address is deleted": {
			world: objects(oneWeb, ip("10.0.70.2", dbOwner, "", "Retain")), pod: dbPod(),
			before: map[string]func(*cluster){"bind": deletes("db-0")},
			want:   want{bind: result{code: fwk.Error, text: "not found", api: []string{"10.0.70.2: written again", "update 10.0.70.2 without effect", "bind db-0 without effect"}}},
		},
		"the pod is deleted, and the address is given back at the second try": {
			world: objects(oneWeb), pod: pod("a"),
			before: map[string]func(*cluster){"bind": func(c *cluster) { deletes("a")(c); c.berth.Fail(ipamtest.Fault{Verb: "delete", Err: errTimeout}) }},
			want:   want{unfiltered: true, bind: result{code: fwk.Error, text: "not found", api: []string{"create 10.0.70.2 without effect", "delete 10.0.70.2 without effect", "delete 10.0.70.2 without effect", "bind a without effect"}}},
		},
		"the pod is deleted, and the address cannot be given back": {
			world: objects(oneWeb), pod: pod("a"),
			before: map[string]func(*cluster){"bind": func(c *cluster) {
				deletes("a")(c)
				for range abandonBackoff.Steps {
					c.berth.Fail(ipamtest.Fault{Verb: "delete", Err: errTimeout})
				}
			}},
			want: want{unfiltered: true, bind: result{code: fwk.Error, text: "give back floating IP 10.0.70.2", api: []string{
				"10.0.70.2: " + heldByA, "create 10.0.70.2 without effect", "delete 10.0.70.2 without effect", "delete 10.0.70.2 without effect", "delete 10.0.70.2 without effect", "delete 10.0.70.2 without effect", "bind a without effect"}}},
		},
		"an external assigner that there is not": {
			world: objects(ipPool("web", "10.0.70.2", func(spec *v1alpha1.IPPoolSpec) { spec.ExternalAssigner = true })), pod: pod("a"),
			want: want{unfiltered: true, bind: result{code: fwk.Error, text: `pool "web" needs the external assigner`, api: []string{"10.0.70.2: " + heldByA}}},
		},

		// Preemption.
		"a victim": {
			world: full("PodDeleted"), pod: pod("a"),
			want: want{
				filter: map[string]result{"n1": {code: unschedulable, text: "has no free address"}},
				after: []preempting{
					{node: "n1", remove: []*v1.Pod{pod("v", bound("n1", "10.0.70.2"))}},
					{node: "n1", remove: []*v1.Pod{pod("v", bound("n1", "10.0.70.2"))}, add: []*v1.Pod{pod("v", bound("n1", "10.0.70.2"))}, want: result{code: unschedulable, text: "has no free address"}},
					{node: "n1", remove: []*v1.Pod{pod("w", bound("n1", "10.0.70.2"))}, want: result{code: unschedulable, text: "has no free address"}},
					{node: "n1", remove: []*v1.Pod{pod("v", bound("n1", "10.0.70.2"), asking("0"))}, want: result{code: unschedulable, text: "has no free address"}},
					{node: "n1", remove: []*v1.Pod{pod("v", bound("n1", "10.0.70.2"))}, add: []*v1.Pod{pod("b")}, want: result{code: unschedulable, text: "has no free address"}},
					{node: "n1", remove: []*v1.Pod{pod("v", bound("n1", "10.0.70.2"))}, add: []*v1.Pod{pod("b", asking("0"))}},
				},
			},
		},
		"a victim that keeps its address": {
			world: full("Retain"), pod: pod("a"),
			want: want{
				filter: map[string]result{"n1": {code: unschedulable, text: "has no free address"}},
				after:  []preempting{{node: "n1", remove: []*v1.Pod{pod("v", bound("n1", "10.0.70.2"))}, want: result{code: unschedulable, text: "has no free address"}}},
			},
		},
		"a nominated pod of the namespace, or of another": {
			world: objects(node("n1"), node("n2", "rack", "b"), ipPool("web", "10.0.70.2-10.0.70.9", atMost(1)), ipPool("none", "10.0.70.20", forNodes("rack", "c"))), pod: pod("a", with(v1alpha1.AnnotationPools, "web,none")),
			before: map[string]func(*cluster){"preFilter": func(c *cluster) {
				tries(pod("w1", with(v1alpha1.AnnotationPools, "web,none")))(c)
				tries(pod("w2", with(v1alpha1.AnnotationPools, "web,none")))(c)
			}},
			want: want{
				after: []preempting{
					{node: "n1", add: []*v1.Pod{pod("b")}, want: result{code: unschedulable, text: "node(s) without an address for the pod"}},
					{node: "n1", add: []*v1.Pod{pod("b", func(pod *v1.Pod) { pod.Namespace = "other" })}},
				},
				bind: boundA,
			},
		},
		"a nominated pod whose owner keeps an address for it": {
			world: objects(node("n1"), node("n2", "rack", "b"), ipPool("web", "10.0.70.2-10.0.70.3", atMost(2)), ipPool("none", "10.0.70.20", forNodes("rack", "c")), ip("10.0.70.3", dbOwner, "", "Retain")),
			pod:   pod("a", with(v1alpha1.AnnotationPools, "web,none")),
			before: map[string]func(*cluster){"preFilter": func(c *cluster) {
				tries(pod("w1", with(v1alpha1.AnnotationPools, "web,none")))(c)
				tries(pod("w2", with(v1alpha1.AnnotationPools, "web,none")))(c)
			}},
			want: want{
				after: []preempting{
					{node: "n1", add: []*v1.Pod{dbPod()}},
					{node: "n1", add: []*v1.Pod{pod("db-0", of("apps/v1", "StatefulSet", "db"), retain, asking("2"))}, want: result{code: unschedulable, text: "address"}},
					{node: "n1", add: []*v1.Pod{pod("db-1", of("apps/v1", "StatefulSet", "db"), retain)}, want: result{code: unschedulable, text: "address"}},
				},
				bind: boundA,
			},
		},
		"a nominated pod": {
			world: objects(node("n1"), node("n2", "rack", "b"), oneWeb, ipPool("none", "10.0.70.20", forNodes("rack", "c"))), pod: pod("a", with(v1alpha1.AnnotationPools, "web,none")),
			before: map[string]func(*cluster){"preFilter": func(c *cluster) {
				tries(pod("w1", with(v1alpha1.AnnotationPools, "web,none")))(c)
				tries(pod("w2", with(v1alpha1.AnnotationPools, "web,none")))(c)
			}},
			want: want{
				after: []preempting{
					{node: "n1", add: []*v1.Pod{pod("b")}, want: result{code: unschedulable, text: "address"}},
					{node: "n1", add: []*v1.Pod{pod("b", with(v1alpha1.AnnotationFamilies, "none"))}},
					{node: "n1", add: []*v1.Pod{pod("b", bound("n1", "10.0.70.9"))}},
					{node: "n1", add: []*v1.Pod{pod("b", terminating)}},
				},
				bind: boundA,
			},
		},
	}
}

// onNode requires a node by name, as the DaemonSet controller does.
func onNode(name string) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		pod.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
			NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn, Values: []string{name}}}}},
		}}}
	}
}

// bindElsewhere makes another scheduler bind a pod to a node. A user has dropped the annotation.
func (c *cluster) bindElsewhere(name, node string) {
	pod, err := c.kube.CoreV1().Pods("shop").Get(c.ctx, name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	bound(node, "")(pod)
	if err := c.kube.Tracker().Update(v1.SchemeGroupVersion.WithResource("pods"), pod, "shop"); err != nil {
		c.t.Fatal(err)
	}
	c.settle()
	c.changes()
}
