// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// puts writes objects: new ones of Berth's kinds, or existing ones of Kubernetes' kinds.
func puts(objects ...runtime.Object) func(c *cluster) {
	return func(c *cluster) {
		for _, object := range objects {
			var gvr schema.GroupVersionResource
			switch object.(type) {
			case *v1.Pod:
				gvr = v1.SchemeGroupVersion.WithResource("pods")
			case *v1.Node:
				gvr = v1.SchemeGroupVersion.WithResource("nodes")
			case *v1.Namespace:
				gvr = v1.SchemeGroupVersion.WithResource("namespaces")
			case *appsv1.Deployment:
				gvr = appsv1.SchemeGroupVersion.WithResource("deployments")
			case *appsv1.ReplicaSet:
				gvr = appsv1.SchemeGroupVersion.WithResource("replicasets")
			default:
				c.berth.Put(object.(metav1.Object))
				continue
			}
			if err := c.kube.Tracker().Update(gvr, object, object.(metav1.Object).GetNamespace()); err != nil {
				c.t.Fatal(err)
			}
		}
	}
}

func removes(object metav1.Object) func(c *cluster) {
	return func(c *cluster) { c.berth.Remove(object) }
}

func removesNode(name string) func(c *cluster) {
	return func(c *cluster) {
		if err := c.kube.Tracker().Delete(v1.SchemeGroupVersion.WithResource("nodes"), "", name); err != nil {
			c.t.Fatal(err)
		}
	}
}

// TestWakes checks that a pod that found no address is woken by changes that may help it,
// and by no others.
func TestWakes(t *testing.T) {
	onLost := func(options ...func(*v1.Pod)) *v1.Pod {
		return webPod("web-v", append(options, bound("n2", "10.0.70.2"))...)
	}
	held := ip("10.0.70.2", webOwner, "web-v@n2", "Retain")
	rsPod := pod("rs-x", of("apps/v1", "ReplicaSet", "rs"), retain)
	rsWorld := objects(replicaSet("rs", ""), ipPool("web", "10.0.70.2-10.0.70.9"), ip("10.0.70.2", "apps/v1 ReplicaSet rs", "rs-v@n1", "Retain"), pod("rs-v", of("apps/v1", "ReplicaSet", "rs"), retain, bound("n1", "10.0.70.2")))
	grown := replicaSet("rs", "")
	two := int32(2)
	grown.Spec.Replicas, grown.Generation = &two, 2
	bigger := deployment("web", 1)
	bigger.Status.Replicas = 1
	claimPod := pod("a", with(v1alpha1.AnnotationClaim, "licences"))
	claimWorld := objects(ipPool("web", "10.0.70.2-10.0.70.9"), claim("licences", 1), ip("10.0.70.2", "berth.dev/v1alpha1 IPClaim licences", "v@n1", "Retain"), pod("v", bound("n1", "10.0.70.2")))
	larger := claim("licences", 2)
	annotated := namespaceOf("shop")
	annotated.Annotations = map[string]string{"a": "b"}
	internal := node("n1")
	internal.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "10.1.0.1"}}

	for _, test := range []struct {
		name    string
		world   []runtime.Object
		pod     *v1.Pod
		happens func(c *cluster)
		// after is how long it takes.
		after time.Duration
		wakes bool
	}{
		{"an address comes free", full("PodDeleted"), pod("a"), removes(ip("10.0.70.2", "v1 Pod v", "v@n1", "PodDeleted")), 0, true},
		{"a pool comes", nil, pod("a"), puts(oneWeb), 0, true},
		{"a pool gets more addresses", full("PodDeleted"), pod("a"), puts(ipPool("web", "10.0.70.2-10.0.70.3")), 0, true},
		{"the pod that had the address is deleted", full("PodDeleted"), pod("a"), deletesQuietly("v"), 0, false},
		{"nothing", full("PodDeleted"), pod("a"), func(*cluster) {}, time.Minute, false},

		{"a claim comes", objects(oneWeb), claimPod, puts(claim("licences", 1)), 0, true},
		{"a claim may have more", claimWorld, claimPod, puts(larger), 0, true},
		{"the holder of a claim's address is deleted", claimWorld, claimPod, deletesQuietly("v"), 0, true},

		{"a pod of the Deployment is deleted", webOf(node("n2"), held, onLost()), webPod("web-x"), deletesQuietly("web-v"), 0, true},
		{"a pod of the Deployment is finished", webOf(node("n2"), held, onLost()), webPod("web-x"), puts(onLost(func(pod *v1.Pod) { pod.Status.Phase = v1.PodFailed })), 0, true},
		{"a pod of the Deployment is ready", webOf(node("n2"), held, onLost()), webPod("web-x"), puts(onLost(func(pod *v1.Pod) { pod.Status.Phase = v1.PodRunning })), 0, false},
		{"a pod of the Deployment is to end", webOf(node("n2"), held, onLost()), webPod("web-x"), puts(onLost(terminating)), 0, false},
		{"a pod of the Deployment is to end on a lost node", webOf(tainted(node("n2")), held, onLost()), webPod("web-x"), puts(onLost(terminating)), 0, true},
		{"a pod of the Deployment makes way for another of its name", webOf(node("n2"), held, onLost()), webPod("web-x"), puts(onLost(func(pod *v1.Pod) { pod.UID = "next" })), 0, true},
		{"a node is lost, and a pod is to end there", webOf(node("n2"), held, onLost(terminating)), webPod("web-x"), puts(tainted(node("n2"))), 0, true},
		{"a node is lost, and the pod there is not to end", webOf(node("n2"), held, onLost()), webPod("web-x"), puts(tainted(node("n2"))), 0, false},
		{"a node goes, and a pod is to end there", webOf(node("n2"), held, onLost(terminating)), webPod("web-x"), removesNode("n2"), 0, true},
		{"another node goes", webOf(node("n2"), node("n3"), held, onLost(terminating)), webPod("web-x"), removesNode("n3"), 0, false},

		{"the Deployment is scaled", webOf(node("n2"), held, onLost()), webPod("web-x"), puts(deployment("web", 2)), 0, true},
		{"the Deployment keeps spare ones", webOf(node("n2"), held, onLost()), webPod("web-x"), puts(sparing(deployment("web", 1), "1")), 0, true},
		{"another Deployment is scaled", webOf(deployment("other", 1), node("n2"), held, onLost()), webPod("web-x"), puts(deployment("other", 2)), 0, false},
		{"the Deployment's status changes", webOf(node("n2"), held, onLost()), webPod("web-x"), puts(bigger), 0, false},
		{"the ReplicaSet is scaled", rsWorld, rsPod, puts(grown), 0, true},
		{"the ReplicaSet's status changes", rsWorld, rsPod, puts(replicaSet("rs", "")), 0, false},

		{"an address comes free for a pod whose status changed", full("PodDeleted"), pod("a"), func(c *cluster) {
			puts(pod("a", func(pod *v1.Pod) { pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled}} }))(c)
			c.settle()
			removes(ip("10.0.70.2", "v1 Pod v", "v@n1", "PodDeleted"))(c)
		}, 0, true},
		{"a node is not lost, and a pod is to end there", webOf(node("n2"), held, onLost(terminating)), webPod("web-x"), puts(node("n2", "rack", "a")), 0, false},
		{"a lost node changes, and a pod is to end there", webOf(tainted(node("n2")), held, onLost(terminating)), webPod("web-x"), puts(tainted(node("n2", "rack", "a"))), 0, false},

		{"the namespace gets a label", objects(ipPool("web", "10.0.70.2", forNamespaces("tier", "web"))), pod("a"), puts(namespaceOf("shop", "tier", "web")), 0, true},
		{"the namespace gets a label that no pool selects", objects(ipPool("web", "10.0.70.2", forNamespaces("tier", "web"))), pod("a"), puts(namespaceOf("shop", "tier", "db")), time.Minute, false},
		{"another namespace gets a label", objects(namespaceOf("bank"), ipPool("web", "10.0.70.2", forNamespaces("tier", "web"))), pod("a"), puts(namespaceOf("bank", "tier", "web")), time.Minute, false},
		{"the namespace loses a label", objects(namespaceOf("shop", "tier", "web"), ipPool("web", "10.0.70.2", forNamespaces("tier", "web")), ip("10.0.70.2", "v1 Pod v", "v@n1", "PodDeleted"), pod("v", bound("n1", "10.0.70.2"))), pod("a"), puts(namespaceOf("shop")), 0, true},
		{"the namespace gets an annotation", objects(ipPool("web", "10.0.70.2", forNamespaces("tier", "web"))), pod("a"), puts(annotated), 0, false},

		{"a node comes to be in the pool", objects(node("n1"), ipPool("web", "10.0.70.2", forNodes("rack", "a"))), pod("a"), puts(node("n1", "rack", "a")), nodeSettles, true},
		{"a node comes to be in the pool by its address", objects(node("n1"), ipPool("web", "10.0.70.2", func(spec *v1alpha1.IPPoolSpec) { spec.NodeSubnets = []string{"10.1.0.0/24"} })), pod("a"), puts(internal), nodeSettles, true},
		{"before kube-scheduler knows", objects(node("n1"), ipPool("web", "10.0.70.2", forNodes("rack", "a"))), pod("a"), puts(node("n1", "rack", "a")), nodeSettles - time.Millisecond, false},
		{"a node gets another label", objects(node("n1"), ipPool("web", "10.0.70.2", forNodes("rack", "a"))), pod("a"), puts(node("n1", "rack", "b")), time.Minute, false},

		// kube-scheduler does not report that the attempt failed for another reason.
		{"a kept address that left out nodes is given up", append(racks("10.0.70.2", "10.0.70.10"), ip("10.0.70.2", dbOwner, "", "Retain")), dbPod(), removes(ip("10.0.70.2", dbOwner, "", "Retain")), endsWithin, true},
		{"a kept address that is everywhere is given up", objects(node("n1"), node("n2"), oneWeb, ip("10.0.70.2", dbOwner, "", "Retain")), dbPod(), removes(ip("10.0.70.2", dbOwner, "", "Retain")), endsWithin, false},

		{"a custom workload cannot be read", objects(oneWeb), pod("ro-x", of("argoproj.io/v1alpha1", "Rollout", "ro"), retain), func(*cluster) {}, patience + readTimeout, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, append(slices.Clone(test.world), test.pod)...)
				tries(test.pod)(c)
				test.happens(c)
				<-time.After(test.after)
				c.settle()
				if woken := c.takeWoken(); slices.Contains(woken, test.pod.Name) != test.wakes {
					t.Errorf("woke %q, want the pod to be woken: %v", woken, test.wakes)
				}
			})
		})
	}
}

// deletesQuietly deletes a pod.
func deletesQuietly(name string) func(c *cluster) {
	return func(c *cluster) {
		if err := c.kube.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), "shop", name); err != nil {
			c.t.Fatal(err)
		}
	}
}

// Of a claim with many addresses a pod may have the one of a pod that is gone, although that pod
// names none.
func TestPodOfALargeClaimIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := objects(ipPool("web", "10.0.70.2-10.0.70.200"), claim("licences", 100))
		for i := range 100 {
			name := fmt.Sprint("v", i)
			world = append(world, ip(fmt.Sprint("10.0.70.", 2+i), "berth.dev/v1alpha1 IPClaim licences", name+"@n1", "Retain"), pod(name, bound("n1", "")))
		}
		c := newCluster(t, world...)
		kept := func() []netip.Addr {
			state := framework.NewCycleState()
			if _, status, _ := c.framework.RunPreFilterPlugins(c.ctx, state, pod("a", with(v1alpha1.AnnotationClaim, "licences"))); !status.IsSuccess() {
				t.Fatal(status.Message())
			}
			return stateOf(state).candidates.Kept()
		}
		if got := kept(); len(got) > 0 {
			t.Errorf("all pods run, and another may have %v", got)
		}
		deletes("v7")(c)
		if got, want := kept(), []netip.Addr{netip.MustParseAddr("10.0.70.9")}; !slices.Equal(got, want) {
			t.Errorf("v7 is gone, and another may have %v, want %v", got, want)
		}
	})
}

// TestHints checks the queueing hint of each kube-scheduler event for a waiting pod.
func TestHints(t *testing.T) {
	labelled := fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.UpdateNodeLabel}
	added := fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add}
	allocatable := fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.UpdateNodeAllocatable}
	taints := fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.UpdateNodeTaint}
	updated := fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.UpdatePodLabel}
	deleted := fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Delete}
	other := node("n1")
	other.Status.Allocatable = v1.ResourceList{v1.ResourceCPU: resource.MustParse("3")}
	claimAdded := fwk.ClusterEvent{Resource: fwk.PersistentVolumeClaim, ActionType: fwk.Add}
	claimUpdated := fwk.ClusterEvent{Resource: fwk.PersistentVolumeClaim, ActionType: fwk.Update}
	again, bank := volumeClaim("data", v1.ReadWriteMany), volumeClaim("data", v1.ReadWriteMany)
	again.UID, bank.Namespace = "again", "bank"
	waits := pod("a")
	movedPod := pod("db-0", of("apps/v1", "StatefulSet", "db"), moved, mounts("data"))
	synctest.Test(t, func(t *testing.T) {
		inPool := func(name, limit string) *v1.Node { return advertising(node(name, "rack", "a"), limit) }
		c := newCluster(t, inPool("n1", "1"), node("n2"), waits, ipPool("web", "10.0.70.2", forNodes("rack", "a")))
		tries(waits)(c)
		registered, err := c.plugin.EventsToRegister(c.ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, test := range []struct {
			name          string
			event         fwk.ClusterEvent
			before, after any
			want          fwk.QueueingHint
		}{
			{"a node of the pool comes", added, nil, node("n3", "rack", "a"), fwk.Queue},
			{"another node comes", added, nil, node("n3", "rack", "b"), fwk.QueueSkip},
			{"a node comes to be in the pool", labelled, node("n2"), node("n2", "rack", "a"), fwk.Queue},
			{"a node gets another label", labelled, node("n2"), node("n2", "rack", "b"), fwk.QueueSkip},
			{"a node of the pool gets another label", labelled, node("n2", "rack", "a"), node("n2", "rack", "a", "a", "b"), fwk.QueueSkip},
			{"a node leaves the pool", labelled, node("n2", "rack", "a"), node("n2"), fwk.QueueSkip},
			{"a node gives more", allocatable, inPool("n1", "1"), inPool("n1", "2"), fwk.Queue},
			{"a node gives fewer", allocatable, inPool("n1", "2"), inPool("n1", "1"), fwk.QueueSkip},
			{"a node no longer caps", allocatable, inPool("n1", "1"), node("n1", "rack", "a"), fwk.Queue},
			{"a node begins to cap", allocatable, node("n1", "rack", "a"), inPool("n1", "1"), fwk.QueueSkip},
			{"a node of no pool gives more", allocatable, advertising(node("n2"), "1"), advertising(node("n2"), "2"), fwk.QueueSkip},
			{"a node gives as many", allocatable, inPool("n1", "1"), inPool("n1", "1"), fwk.QueueSkip},
			{"a node has more CPUs", allocatable, node("n1"), other, fwk.QueueSkip},
			{"a node of the pool loses its taint", taints, tainted(node("n3", "rack", "a")), node("n3", "rack", "a"), fwk.QueueSkip},
			{"no node", allocatable, pod("a"), node("n1"), fwk.QueueSkip},
			{"no node any more", allocatable, node("n1"), pod("a"), fwk.QueueSkip},
			{"its annotations change", updated, waits, pod("a", with("a", "b")), fwk.Queue},
			{"a workload adopts it", updated, waits, pod("a", of("apps/v1", "StatefulSet", "db")), fwk.Queue},
			{"its labels change", updated, waits, pod("a"), fwk.QueueSkip},
			{"another pod's annotations change", updated, pod("b"), pod("b", with("a", "b")), fwk.QueueSkip},
			{"no pod", updated, node("n1"), pod("a"), fwk.QueueSkip},
			{"no pod any more", updated, waits, node("n1"), fwk.QueueSkip},
			{"a pod leaves a node that caps", deleted, pod("v", bound("n1", "")), nil, fwk.Queue},
			{"a pod leaves another node", deleted, pod("v", bound("n2", "")), nil, fwk.QueueSkip},
			{"a pod leaves a node that is gone", deleted, pod("v", bound("n9", "")), nil, fwk.QueueSkip},
			{"a pod without an address leaves", deleted, pod("v", bound("n1", ""), asking("0")), nil, fwk.QueueSkip},
			{"a pod that was not bound", deleted, pod("v"), nil, fwk.QueueSkip},
			{"no pod is deleted", deleted, node("n1"), nil, fwk.QueueSkip},
			{"a claim comes", claimAdded, nil, volumeClaim("data", v1.ReadWriteMany), fwk.QueueSkip},
		} {
			if hint, asked := hintOf(t, registered, waits, test.event, test.before, test.after); hint != test.want || !asked {
				t.Errorf("%s: %v, asked %v; want %v", test.name, hint, asked, test.want)
			}
		}
		for _, test := range []struct {
			name          string
			event         fwk.ClusterEvent
			before, after any
			want          fwk.QueueingHint
		}{
			{"its claim comes", claimAdded, nil, volumeClaim("data", v1.ReadWriteMany), fwk.Queue},
			{"another claim comes", claimAdded, nil, volumeClaim("other", v1.ReadWriteMany), fwk.QueueSkip},
			{"a claim of another namespace comes", claimAdded, nil, bank, fwk.QueueSkip},
			{"its claim is made again", claimUpdated, volumeClaim("data", v1.ReadWriteOnce), again, fwk.Queue},
			{"its claim is bound", claimUpdated, volumeClaim("data", v1.ReadWriteOnce), volumeClaim("data", v1.ReadWriteOnce), fwk.QueueSkip},
			{"no claim", claimAdded, nil, node("n1"), fwk.QueueSkip},
			{"its volumes are accepted", updated, movedPod, pod("db-0", moved, with(v1alpha1.AnnotationFailoverVolumes, v1alpha1.FailoverVolumesAccept)), fwk.Queue},
		} {
			if hint, asked := hintOf(t, registered, movedPod, test.event, test.before, test.after); hint != test.want || !asked {
				t.Errorf("a pod with failover: %s: %v, asked %v; want %v", test.name, hint, asked, test.want)
			}
		}
	})
}

// hintOf returns what the plugin says about an event for a waiting pod, and whether kube-scheduler
// asks it.
func hintOf(t *testing.T, registered []fwk.ClusterEventWithHint, waits *v1.Pod, event fwk.ClusterEvent, before, after any) (hint fwk.QueueingHint, asked bool) {
	t.Helper()
	hint = fwk.QueueSkip
	for _, r := range registered {
		if r.Event.Resource != event.Resource || r.Event.ActionType&event.ActionType == 0 {
			continue
		}
		asked = true
		if r.QueueingHintFn == nil {
			hint = fwk.Queue
			continue
		}
		said, err := r.QueueingHintFn(klog.Background(), waits, before, after)
		if err != nil {
			t.Error(err)
		}
		hint = max(hint, said)
	}
	return hint, asked
}

// A node of a full pool wakes no pod; the address that comes free does.
func TestNodeOfFullPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := pod("a")
		c := newCluster(t, append(full("PodDeleted"), node("n1"), waits)...)
		tries(waits)(c)
		hint := func(want fwk.QueueingHint) {
			t.Helper()
			if got, err := c.plugin.isSchedulableAfterNodeChanged(klog.Background(), waits, nil, node("n3")); got != want || err != nil {
				t.Errorf("a node comes: %v, %v, want %v", got, err, want)
			}
		}
		hint(fwk.QueueSkip)
		removes(ip("10.0.70.2", "v1 Pod v", "v@n1", "PodDeleted"))(c)
		c.settle()
		if woken := c.takeWoken(); !slices.Equal(woken, []string{"a"}) {
			t.Errorf("an address came free: woke %q", woken)
		}
		hint(fwk.Queue)
	})
}

// A node that comes to serve a full pool wakes a pod that may preempt a pod there and have its
// address.
func TestNodeWithVictims(t *testing.T) {
	high := priority(10)
	never := func(pod *v1.Pod) {
		policy := v1.PreemptNever
		pod.Spec.PreemptionPolicy = &policy
	}
	inPool := func(options ...func(*v1alpha1.IPPoolSpec)) *v1alpha1.IPPool {
		return ipPool("web", "10.0.70.2", append(options, forNodes("rack", "a"))...)
	}
	rests := func(spec *v1alpha1.IPPoolSpec) { spec.Cooldown = &metav1.Duration{Duration: time.Minute} }
	held, other := ip("10.0.70.2", "v1 Pod v", "v@n2", "PodDeleted"), ip("10.0.70.2", "v1 Pod u", "u@n9", "PodDeleted")
	ofBank := ip("10.0.70.2", "v1 Pod v", "v@n2", "PodDeleted")
	ofBank.Spec.Owner.Namespace, ofBank.Spec.Owner.NamespaceUID = "bank", "bank"
	two := func(options ...func(*v1alpha1.IPPoolSpec)) *v1alpha1.IPPool {
		return ipPool("web", "10.0.70.2-10.0.70.3", append(options, forNodes("rack", "a"))...)
	}
	for name, test := range map[string]struct {
		pool   *v1alpha1.IPPool
		ip     *v1alpha1.FloatingIP
		victim *v1.Pod
		pod    *v1.Pod
		wakes  bool
	}{
		"a pod of lower priority":                            {inPool(), held, pod("v", bound("n2", "10.0.70.2")), pod("a", high), true},
		"a pod of the same priority":                         {inPool(), held, pod("v", bound("n2", "10.0.70.2"), high), pod("a", high), false},
		"the waiting pod has no priority":                    {inPool(), held, pod("v", bound("n2", "10.0.70.2"), priority(-1)), pod("a"), true},
		"the waiting pod may not preempt":                    {inPool(), held, pod("v", bound("n2", "10.0.70.2")), pod("a", high, never), false},
		"the waiting pod may not use the pool":               {inPool(), held, pod("v", bound("n2", "10.0.70.2")), pod("a", high, with(v1alpha1.AnnotationPools, "db")), false},
		"the waiting pod wants another address":              {inPool(), held, pod("v", bound("n2", "10.0.70.2")), pod("a", high, with(v1alpha1.AnnotationAddresses, "10.0.70.9")), false},
		"a pod on another node":                              {inPool(), held, pod("v", bound("n1", "10.0.70.2")), pod("a", high), false},
		"a pod that is being deleted":                        {inPool(), held, pod("v", bound("n2", "10.0.70.2"), goneIn(time.Hour)), pod("a", high), false},
		"a finished pod":                                     {inPool(), held, pod("v", bound("n2", "10.0.70.2"), finished), pod("a", high), false},
		"a pod without an address":                           {inPool(), other, pod("v", bound("n2", ""), asking("0")), pod("a", high), false},
		"a pod that names the address of another":            {inPool(), other, pod("v", bound("n2", "10.0.70.2")), pod("a", high), false},
		"a pod whose workload keeps the address":             {inPool(), ip("10.0.70.2", "v1 Pod v", "v@n2", "Retain"), pod("v", bound("n2", "10.0.70.2")), pod("a", high), false},
		"a pod whose address has to rest":                    {inPool(rests), held, pod("v", bound("n2", "10.0.70.2")), pod("a", high), false},
		"a pod of the namespace, which is at its cap":        {two(atMost(1), rests), held, pod("v", bound("n2", "10.0.70.2")), pod("a", high), true},
		"a pod of another namespace than the one at its cap": {two(atMost(1)), ofBank, inNamespace(pod("v", bound("n2", "10.0.70.2")), "bank"), pod("a", high), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				world := objects(node("n1"), node("n2"), namespaceOf("bank"), test.pool, ipPool("db", "10.0.70.9", forNodes("rack", "b")), test.ip, test.victim, test.pod)
				if test.victim.Namespace == "bank" {
					world = append(world, ip("10.0.70.3", "v1 Pod w", "w@n9", "PodDeleted"))
				}
				c := newCluster(t, world...)
				tries(test.pod)(c)
				before, after := node("n2"), node("n2", "rack", "a")
				want := fwk.QueueSkip
				if test.wakes {
					want = fwk.Queue
				}
				if got, err := c.plugin.isSchedulableAfterNodeChanged(klog.Background(), test.pod, before, after); got != want || err != nil {
					t.Errorf("the hint is %v, %v; want %v", got, err, want)
				}
				puts(after)(c)
				<-time.After(nodeSettles)
				c.settle()
				if woken := c.takeWoken(); slices.Contains(woken, test.pod.Name) != test.wakes {
					t.Errorf("woke %q, want the pod to be woken: %v", woken, test.wakes)
				}
			})
		})
	}
}

// A pod that was rejected because of a nominated pod is woken when that pod needs the addresses of
// the node no more.
func TestNominationEnds(t *testing.T) {
	nominated := func(node string) *v1.Pod {
		return pod("b", func(pod *v1.Pod) { pod.Status.NominatedNodeName = node })
	}
	on := func(name string) *v1.Pod {
		pod := nominated("n1")
		bound(name, "")(pod)
		return pod
	}
	again := nominated("n1")
	again.UID = "next"
	failed, ends := nominated("n1"), nominated("n1")
	failed.Status.Phase = v1.PodFailed
	terminating(ends)
	for _, test := range []struct {
		name    string
		happens func(c *cluster)
		wakes   bool
	}{
		{"it is deleted", deletesQuietly("b"), true},
		{"another has its name", puts(again), true},
		{"it fails", puts(failed), true},
		{"it is to end", puts(ends), true},
		{"it is nominated elsewhere", puts(nominated("n2")), true},
		{"it is nominated nowhere", puts(nominated("")), true},
		{"it is scheduled elsewhere", puts(on("n2")), true},
		{"it is scheduled there", puts(on("n1")), false},
		{"it gets a label", func(c *cluster) {
			pod := nominated("n1")
			pod.Labels = map[string]string{"a": "b"}
			puts(pod)(c)
		}, false},
		{"it is deleted, and the pool is full", func(c *cluster) {
			c.berth.Put(ip("10.0.70.2", "v1 Pod v", "v@n1", "PodDeleted"))
			deletesQuietly("b")(c)
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := pod("a"), nominated("n1")
				c := newCluster(t, node("n1"), node("n2"), oneWeb, a, b)
				tries(b)(c)
				state, info := framework.NewCycleState(), c.nodeInfos()[0]
				if _, status, _ := c.framework.RunPreFilterPlugins(c.ctx, state, a); !status.IsSuccess() {
					t.Fatal(status.Message())
				}
				nominee, err := framework.NewPodInfo(b)
				if err != nil {
					t.Fatal(err)
				}
				if status := c.framework.RunPreFilterExtensionAddPod(c.ctx, state, a, nominee, info); !status.IsSuccess() {
					t.Fatal(status.Message())
				}
				if status := c.framework.RunFilterPlugins(c.ctx, state, a, info); !status.IsRejected() {
					t.Fatalf("the address of the nominated pod is another's: %v", status)
				}
				test.happens(c)
				<-time.After(nodeSettles)
				c.settle()
				if woken := c.takeWoken(); slices.Contains(woken, "a") != test.wakes {
					t.Errorf("woke %q, want the pod to be woken: %v", woken, test.wakes)
				}
			})
		})
	}
}
