// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// Which updates of an object lead to another look at addresses.
func TestMatters(t *testing.T) {
	type change[T any] struct {
		name string
		of   func(T)
		want bool
	}
	workloads := func(want func(before, after metav1.Object) bool) func(before, after *batchv1.Job) bool {
		return func(before, after *batchv1.Job) bool { return want(before, after) }
	}
	ofJob := []change[*batchv1.Job]{
		{"nothing", func(*batchv1.Job) {}, false},
		{"its status", func(j *batchv1.Job) { j.Status.Active = 1 }, false},
		{"its specification", func(j *batchv1.Job) { j.Generation++ }, true},
		{"it is another", func(j *batchv1.Job) { j.UID = "another" }, true},
		{"it is being deleted", func(j *batchv1.Job) { j.DeletionTimestamp = &metav1.Time{Time: start} }, true},
		{"its controller", func(j *batchv1.Job) { controlledBy(j, "batch/v1", "CronJob", "web", "now") }, true},
	}
	for name, matters := range map[string]func(before, after *batchv1.Job) bool{"reconsider": workloads(reconsider), "updated": workloads(updated), "jobChanged": workloads(jobChanged)} {
		for _, c := range ofJob {
			before := controlledBy(job(), "batch/v1", "CronJob", "web", "owner")
			after := before.DeepCopy()
			c.of(after)
			if got := matters(before, after); got != c.want {
				t.Errorf("%s: %s: %v", name, c.name, got)
			}
		}
	}
	for _, c := range []change[*v1.Pod]{
		{"nothing", func(*v1.Pod) {}, false},
		{"its status", func(p *v1.Pod) { p.Status.Phase = v1.PodRunning }, false},
		{"its end", func(p *v1.Pod) { p.Status.Phase = v1.PodFailed }, true},
		{"it is another", func(p *v1.Pod) { p.UID = "another" }, true},
		{"its node", func(p *v1.Pod) { p.Spec.NodeName = "node2" }, true},
		{"its controller", func(p *v1.Pod) { controlledBy(p, "apps/v1", "ReplicaSet", "web-1", "now") }, true},
		{"its addresses", func(p *v1.Pod) { p.Status.PodIPs = []v1.PodIP{{IP: "10.0.70.3"}} }, true},
		{"what a user wrote", func(p *v1.Pod) { p.Annotations = nil }, false},
		{"its annotations", func(p *v1.Pod) { p.Annotations["a"] = "b" }, false},
	} {
		before := controlledBy(with("x", "10.0.70.2"), "apps/v1", "ReplicaSet", "web-1", "owner")
		after := before.DeepCopy()
		c.of(after)
		if got := podChanged(before, after); got != c.want {
			t.Errorf("pod: %s: %v", c.name, got)
		}
	}
	for _, c := range []change[*v1.Node]{
		{"nothing", func(*v1.Node) {}, false},
		{"it is cordoned", func(n *v1.Node) { n.Spec.Unschedulable = true }, false},
		{"it is out of service", func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: v1.TaintNodeOutOfService}} }, true},
		{"its labels", func(n *v1.Node) { n.Labels["zone"] = "b" }, true},
		{"it is another", func(n *v1.Node) { n.UID = "another" }, true},
	} {
		before := node1("a")
		after := before.DeepCopy()
		c.of(after)
		if got := nodeChanged(before, after); got != c.want {
			t.Errorf("node: %s: %v", c.name, got)
		}
	}
	before := namespaceOf("ns", "now", 0)
	labelled := before.DeepCopy()
	labelled.Labels = map[string]string{"a": "b"}
	if madeAgain(before, labelled) || !madeAgain(before, namespaceOf("ns", "later", 1)) {
		t.Error("only another namespace of the name matters")
	}
}

// A deletion that a broken watch missed proves nothing: its last state may be old.
func TestMissedDeletion(t *testing.T) {
	ip := given("10.0.70.2", shared("apps/v1", "Deployment"), "", last("x"))
	w := newFixture(t, pool(1))
	w.cache(pool(1))
	pod := with("x", ip.Name)
	for _, missed := range []bool{true, false} {
		wants := !missed
		var lastPod, lastIP any = pod, ip
		if missed {
			lastPod, lastIP = cache.DeletedFinalStateUnknown{Obj: pod}, cache.DeletedFinalStateUnknown{Obj: ip}
		}
		w.open()
		told := 0
		w.noteEnd(cache.ResourceEventHandlerFuncs{DeleteFunc: func(any) { told++ }}).OnDelete(lastPod)
		w.addressHandler().OnDelete(lastIP)
		end, known := w.deleted.Get(pod.UID)
		if known != wants || known && !end.(*podEnd).bound {
			t.Errorf("missed %v: the pod is known as deleted: %v", missed, known)
		}
		if _, known := w.deletions.Get(ip.Name); known != wants {
			t.Errorf("missed %v: the address rests: %v", missed, known)
		}
		if told != 1 || w.queue.Len() != 1 {
			t.Errorf("missed %v: %d events of pods were passed on, and %d addresses are looked at", missed, told, w.queue.Len())
		}
		name, _ := w.queue.Get()
		w.queue.Done(name)
	}
}

// A step of a rolling update, which scales a ReplicaSet, has none of its Deployment's addresses
// looked at.
func TestStepsOfAnUpdate(t *testing.T) {
	const a = "10.0.70.2"
	ip := given(a, shared("apps/v1", "Deployment"), "", last("x"))
	w := newFixture(t, ip)
	w.cache(ip)
	w.open()
	handler := w.controlled("ReplicaSet", reconsider)
	steps := replicaSet("owner")
	handler.OnAdd(steps, false)
	if w.queue.Len() != 1 {
		t.Fatalf("a new ReplicaSet has %d addresses looked at, want 1", w.queue.Len())
	}
	name, _ := w.queue.Get()
	w.queue.Done(name)
	for range 10 {
		next := steps.DeepCopy()
		next.Generation++
		handler.OnUpdate(steps, next)
		steps = next
	}
	if w.queue.Len() != 0 {
		t.Errorf("ten steps have %d addresses looked at", w.queue.Len())
	}
	handler.OnUpdate(steps, replicaSet("now"))
	if w.queue.Len() != 1 {
		t.Errorf("an adopted ReplicaSet has %d addresses looked at, want 1", w.queue.Len())
	}
}
