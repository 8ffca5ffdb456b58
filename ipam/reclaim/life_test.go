// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
)

// given returns an address of pool p with policy Retain, of an owner in namespace ns. A
// pod has it if one is named.
func given(name string, owner *v1alpha1.Owner, pod string, changes ...func(*v1alpha1.FloatingIPSpec)) *v1alpha1.FloatingIP {
	address, _ := v1alpha1.AddrOf(name)
	ip := record(name, owner, int(address.AsSlice()[3]), pod)
	ip.Spec.Owner.Namespace, ip.Spec.Owner.NamespaceUID = "ns", "now"
	ip.Spec.Pool, ip.Spec.ReleasePolicy = "p", v1alpha1.ReleaseRetain
	for _, change := range changes {
		change(&ip.Spec)
	}
	return ip
}

func last(pod string) func(*v1alpha1.FloatingIPSpec) {
	return func(spec *v1alpha1.FloatingIPSpec) { spec.LastPod = pod }
}

func under(policy v1alpha1.ReleasePolicy) func(*v1alpha1.FloatingIPSpec) {
	return func(spec *v1alpha1.FloatingIPSpec) { spec.ReleasePolicy = policy }
}

func onNode(node string) func(*v1alpha1.FloatingIPSpec) {
	return func(spec *v1alpha1.FloatingIPSpec) { spec.Node = node }
}

func attached(spec *v1alpha1.FloatingIPSpec) { spec.ExternallyAssigned = true }

func reserved(spec *v1alpha1.FloatingIPSpec) { spec.Reserved = true }

// until keeps an address for so long.
func until(d time.Duration) func(*v1alpha1.FloatingIPSpec) {
	return func(spec *v1alpha1.FloatingIPSpec) { spec.KeepUntil = &metav1.Time{Time: start.Add(d)} }
}

func limited(d time.Duration) func(*v1alpha1.FloatingIPSpec) {
	return func(spec *v1alpha1.FloatingIPSpec) {
		spec.RetainFor, spec.Since = &metav1.Duration{Duration: d}, &metav1.Time{Time: start}
	}
}

// start is when the clock of a synctest bubble starts.
var start = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// with returns a pod in namespace ns, bound to node1 with addresses.
func with(name string, addresses ...string) *v1.Pod {
	pod := boundTo(name, int64(len(addresses)), addresses...)
	pod.Namespace = "ns"
	return pod
}

// controlledBy gives an object a controller.
func controlledBy[T metav1.Object](object T, apiVersion, kind, name string, uid types.UID) T {
	yes := true
	object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: uid, Controller: &yes}})
	return object
}

// web is the metadata of workload web.
func web(generation int64) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "owner", Generation: generation}
}

// template is of pods that ask for so many addresses.
func template(n int64) v1.PodTemplateSpec {
	list := v1.ResourceList{}
	if n > 0 {
		list[v1alpha1.ResourceIP] = *resource.NewQuantity(n, resource.DecimalSI)
	}
	return v1.PodTemplateSpec{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main", Resources: v1.ResourceRequirements{Requests: list}}}}}
}

func statefulSet(replicas int32) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{ObjectMeta: web(int64(10 - replicas)), Spec: appsv1.StatefulSetSpec{Replicas: &replicas, Template: template(1)}}
}

// deployment keeps one address more than it has replicas.
func deployment(replicas int32) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: web(int64(10 - replicas)), Spec: appsv1.DeploymentSpec{Replicas: &replicas, Template: template(1)}}
}

// replicaSet is web-1, of a Deployment web of this UID.
func replicaSet(uid types.UID) *appsv1.ReplicaSet {
	return controlledBy(&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-1", UID: "set"}}, "apps/v1", "Deployment", "web", uid)
}

// replicaSets is pod x of web-1, which has an address.
func replicaSets(address string) *v1.Pod {
	return controlledBy(with("x", address), "apps/v1", "ReplicaSet", "web-1", "set")
}

// successor is another workload of the name.
func successor(deployment *appsv1.Deployment) *appsv1.Deployment {
	deployment.UID = "now"
	return deployment
}

// demanding is a Deployment whose pods ask for two addresses.
func demanding(replicas int32) *appsv1.Deployment {
	deployment := deployment(replicas)
	deployment.Spec.Template = template(2)
	return deployment
}

func job(conditions ...batchv1.JobCondition) *batchv1.Job {
	return &batchv1.Job{ObjectMeta: web(1), Spec: batchv1.JobSpec{Template: template(1)}, Status: batchv1.JobStatus{Conditions: conditions}}
}

// cronJob has pods that ask for no addresses any more.
func cronJob(active int) *batchv1.CronJob {
	cron := &batchv1.CronJob{ObjectMeta: web(1), Status: batchv1.CronJobStatus{Active: make([]v1.ObjectReference, active)}}
	cron.Spec.JobTemplate.Spec.Template = template(0)
	return cron
}

// updating is a StatefulSet whose pods no longer ask for addresses, once the update is
// done.
func updating(done bool) *appsv1.StatefulSet {
	set := statefulSet(1)
	set.Spec.Template = template(0)
	set.Status = appsv1.StatefulSetStatus{ObservedGeneration: set.Generation, CurrentRevision: "a", UpdateRevision: "b"}
	if done {
		set.Status.CurrentRevision = "b"
	}
	return set
}

func daemonSet() *appsv1.DaemonSet {
	set := &appsv1.DaemonSet{ObjectMeta: web(1), Spec: appsv1.DaemonSetSpec{Template: template(1)}}
	set.Spec.Template.Spec.NodeSelector = map[string]string{"zone": "a"}
	return set
}

func node1(zone string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "node1", Labels: map[string]string{"zone": zone}}}
}

func pool(cooldown time.Duration) *v1alpha1.IPPool {
	return &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1alpha1.IPPoolSpec{Cooldown: &metav1.Duration{Duration: cooldown}}}
}

// limiting is a pool that limits for how long addresses are kept without a pod.
func limiting() *v1alpha1.IPPool {
	pool := pool(0)
	pool.Spec.MaxRetainFor = &metav1.Duration{Duration: time.Hour}
	return pool
}

func ipClaim(size int32) *v1alpha1.IPClaim {
	return &v1alpha1.IPClaim{ObjectMeta: web(0), Spec: v1alpha1.IPClaimSpec{Size: size}}
}

// preallocating is an IPClaim that keeps an address for a pod before there is one.
func preallocating() *v1alpha1.IPClaim {
	claim := ipClaim(1)
	claim.Spec.Preallocate = true
	return claim
}

// describe names the pod that has an address, or its state.
func describe(ip *v1alpha1.FloatingIP) string {
	spec, text := &ip.Spec, "kept"
	switch {
	case spec.Pod != nil:
		text = "of pod " + spec.Pod.Name
	case spec.ReleasedAt != nil:
		text = fmt.Sprintf("cools down since %v", spec.ReleasedAt.Sub(start))
	case spec.Since != nil:
		text = fmt.Sprintf("kept since %v", spec.Since.Sub(start))
	}
	if spec.Node != "" {
		text += " on " + spec.Node
	}
	if spec.ExternallyAssigned {
		text += ", attached"
	}
	if spec.LastPod != "" {
		text += ", last of " + spec.LastPod
	}
	if spec.LastNode != nil {
		text += ", lately on " + spec.LastNode.Name
	}
	if spec.LastOwner != nil {
		text += ", for " + spec.LastOwner.Namespace
	}
	if spec.KeepUntil != nil {
		text += fmt.Sprintf(", until %v", spec.KeepUntil.Sub(start))
	}
	if spec.Owner != nil && spec.Owner.UID != "owner" {
		text += ", for " + string(spec.Owner.UID)
	}
	if spec.Owner != nil && spec.Owner.NamespaceUID != "now" {
		text += ", in " + string(spec.Owner.NamespaceUID)
	}
	return text
}

// TestLife runs a controller while the cluster changes.
func TestLife(t *testing.T) {
	const a, b, c, d = "10.0.70.2", "10.0.70.3", "10.0.70.4", "10.0.70.5"
	const minute = time.Minute
	type all = []runtime.Object
	type ips = map[string]string
	type counts = map[string]float64
	puts := func(objects ...runtime.Object) func(*fixture) { return func(w *fixture) { w.put(objects...) } }
	removes := func(objects ...runtime.Object) func(*fixture) { return func(w *fixture) { w.remove(objects...) } }
	after := func(d time.Duration) func(*fixture) { return func(w *fixture) { w.after(d) } }
	settles := after(0)
	fails := func(fault ipamtest.Fault, then func(*fixture)) func(*fixture) {
		return func(w *fixture) {
			w.berth.Fail(fault)
			then(w)
			w.after(time.Second)
		}
	}
	both := func(first, second func(*fixture)) func(*fixture) {
		return func(w *fixture) {
			first(w)
			synctest.Wait()
			second(w)
		}
	}
	ended := func(pod *v1.Pod) *v1.Pod {
		pod.Status.Phase = v1.PodSucceeded
		return pod
	}
	pending := func(pod *v1.Pod) *v1.Pod {
		pod.Spec.NodeName, pod.Status.PodIPs = "", nil
		return pod
	}
	ofSet, ofDeployment, ofJob, ofCron := set("web-0"), shared("apps/v1", "Deployment"), shared("batch/v1", "Job"), shared("batch/v1", "CronJob")
	itself := func(spec *v1alpha1.FloatingIPSpec) {
		spec.Owner = &v1alpha1.Owner{APIVersion: "v1", Kind: "Pod", Namespace: "ns", NamespaceUID: "now", Name: spec.Pod.Name, UID: spec.Pod.UID, PodName: spec.Pod.Name}
	}
	awaited := func(spec *v1alpha1.FloatingIPSpec) { spec.Owner.UID = v1alpha1.NilUID }
	namespaceless := func(spec *v1alpha1.FloatingIPSpec) { spec.Owner.NamespaceUID = "" }
	again := namespaceOf("ns", "later", start.Add(time.Hour).Unix())
	refused := errors.New("connection reset")
	for _, test := range []struct {
		name  string
		given all
		// before is called before the controller starts; nil: it is to leave all as it is until does is
		// called.
		before   func(*fixture)
		does     func(*fixture)
		want     ips
		counted  counts
		emitted  []string
		detached []string
	}{
		{name: "the pod is deleted, and its StatefulSet wants the address", given: all{statefulSet(1), with("web-0", a), given(a, ofSet, "web-0", last("web-0"))},
			does: removes(with("web-0", a)), want: ips{a: "kept since 0s, last of web-0"}, counted: counts{"retained_total Retain": 1}},
		{name: "the pod ends, and its StatefulSet wants the address", given: all{statefulSet(1), with("web-0", a), given(a, ofSet, "web-0")},
			does: puts(ended(with("web-0", a))), want: ips{a: "kept since 0s, last of web-0"}, counted: counts{"retained_total Retain": 1}},
		{name: "the pod is deleted, and its namespace was not recorded", given: all{statefulSet(1), with("web-0", a), given(a, ofSet, "web-0", namespaceless)},
			does: removes(with("web-0", a)), want: ips{a: "kept since 0s, last of web-0"}, counted: counts{"retained_total Retain": 1}},
		{name: "the pod is deleted, and nobody wants the address", given: all{statefulSet(0), with("web-0", a), given(a, ofSet, "web-0")},
			does: removes(with("web-0", a)), want: ips{}, counted: counts{"released_total Retain": 1}},
		{name: "the pod is deleted, and its address with it", given: all{statefulSet(1), with("web-0", a), given(a, ofSet, "web-0", under(v1alpha1.ReleasePodDeleted))},
			does: removes(with("web-0", a)), want: ips{}, counted: counts{"released_total PodDeleted": 1}},
		{name: "the pod is deleted, and its address with it, as an unknown policy says", given: all{statefulSet(1), with("web-0", a), given(a, ofSet, "web-0", under("Soon"))},
			does: removes(with("web-0", a)), want: ips{}, counted: counts{"released_total PodDeleted": 1}},
		{name: "the pod is deleted, and its address stays for ever", given: all{with("web-0", a), given(a, ofSet, "web-0", under(v1alpha1.ReleaseNever))},
			does: removes(with("web-0", a)), want: ips{a: "kept since 0s, last of web-0"}, counted: counts{"retained_total Never": 1}},
		{name: "the pod is deleted, and its address is reserved", given: all{with("web-0", a), given(a, ofSet, "web-0", reserved)},
			does: removes(with("web-0", a)), want: ips{a: "of pod web-0 on node1"}},
		{name: "the pod was deleted before the start", given: all{statefulSet(1), given(a, ofSet, "web-0")},
			before: settles, want: ips{a: "kept since 0s, last of web-0"}, counted: counts{"retained_total Retain": 1}},
		{name: "the pod was made again before the start", given: all{statefulSet(1), given(a, ofSet, "old"), with("old", b)},
			before: func(w *fixture) {
				pod := with("old", b)
				pod.UID = "another"
				w.put(pod)
			}, want: ips{a: "kept since 0s, last of old"}, counted: counts{"retained_total Retain": 1}},

		{name: "the StatefulSet is scaled down", given: all{statefulSet(1), given(a, ofSet, "", last("web-0"))},
			does: puts(statefulSet(0)), want: ips{}, counted: counts{"released_total Retain": 1}},
		{name: "the StatefulSet is deleted", given: all{statefulSet(1), given(a, ofSet, "", last("web-0"))},
			does: removes(statefulSet(1)), want: ips{}, counted: counts{"released_total Retain": 1}},
		{name: "the StatefulSet is updated, and asks for no addresses", given: all{updating(false), given(a, ofSet, "", last("web-0"))},
			does: puts(updating(true)), want: ips{}, counted: counts{"released_total Retain": 1}},
		{name: "the Deployment is scaled down", given: all{deployment(3), given(a, ofDeployment, "", last("x")), given(b, ofDeployment, "", last("x")), given(c, ofDeployment, "", last("x")), given(d, ofDeployment, "", last("x"))},
			does: both(puts(deployment(1)), after(time.Second)), want: ips{a: "kept, last of x", b: "kept, last of x"}, counted: counts{"released_total Retain": 2}},
		{name: "the Deployment of pods with two addresses is scaled down", given: all{demanding(2), given(a, ofDeployment, "", last("w")), given(b, ofDeployment, "", last("x")), given(c, ofDeployment, "", last("y")), given(d, ofDeployment, "", last("z"))},
			does: puts(demanding(1)), want: ips{a: "kept, last of w", b: "kept, last of x", c: "kept, last of y", d: "kept, last of z"}},
		{name: "a pod of the Deployment takes another address", given: all{deployment(1), given(a, ofDeployment, "", last("x")), given(b, ofDeployment, "", last("x"))},
			does: puts(with("y", c), given(c, ofDeployment, "y")), want: ips{a: "kept, last of x", c: "of pod y on node1"}, counted: counts{"released_total Retain": 1}},
		{name: "several pods of the Deployment take other addresses", given: all{deployment(1), given(a, ofDeployment, "", last("x")), given(b, ofDeployment, "", last("x"))},
			does: both(puts(with("y", c), with("z", d), given(c, ofDeployment, "y"), given(d, ofDeployment, "z")), after(time.Second)), want: ips{c: "of pod y on node1", d: "of pod z on node1"}, counted: counts{"released_total Retain": 2}},
		{name: "the ReplicaSet is deleted", given: all{&appsv1.ReplicaSet{ObjectMeta: web(1), Spec: appsv1.ReplicaSetSpec{Template: template(1)}}, given(a, shared("apps/v1", "ReplicaSet"), "", last("x"))},
			does: removes(&appsv1.ReplicaSet{ObjectMeta: web(1)}), want: ips{}, counted: counts{"released_total Retain": 1}},
		{name: "the Job is done", given: all{job(), given(a, ofJob, "", last("x"))},
			does: puts(job(batchv1.JobCondition{Type: batchv1.JobComplete, Status: v1.ConditionTrue})), want: ips{}, counted: counts{"released_total Retain": 1}},
		{name: "the Job is not done yet", given: all{job(), given(a, ofJob, "", last("x"))},
			does: puts(job(batchv1.JobCondition{Type: batchv1.JobComplete, Status: v1.ConditionFalse}, batchv1.JobCondition{Type: batchv1.JobSuspended, Status: v1.ConditionTrue})), want: ips{a: "kept, last of x"}},
		{name: "the CronJob's runs end, and it asks for no addresses", given: all{cronJob(1), given(a, ofCron, "", last("x"))},
			does: puts(cronJob(0)), want: ips{}, counted: counts{"released_total Retain": 1}},
		{name: "the DaemonSet's node is deleted", given: all{daemonSet(), node1("a"), given(a, daemon, "", last("x"))},
			does: removes(node1("a")), want: ips{}, counted: counts{"released_total Retain": 1}},
		{name: "the DaemonSet's node is another", given: all{daemonSet(), node1("a"), given(a, daemon, "", last("x"))},
			does: puts(node1("b")), want: ips{}, counted: counts{"released_total Retain": 1}},
		{name: "the IPClaim gets smaller", given: all{ipClaim(2), given(a, claim, "", last("x")), given(b, claim, "", last("y"))},
			does: puts(ipClaim(1)), want: ips{a: "kept, last of x"}, counted: counts{"released_total Retain": 1}},
		{name: "the IPClaim is deleted", given: all{ipClaim(2), given(a, claim, "", last("x"))},
			does: removes(ipClaim(2)), want: ips{}, counted: counts{"released_total Retain": 1}},
		{name: "the namespace is made again", given: all{given(a, ofDeployment, "", last("x"), under(v1alpha1.ReleaseNever))},
			does: both(removes(again), puts(again)), want: ips{}, counted: counts{"released_total Never": 1}},

		{name: "the address is retained for its limit, and not longer", given: all{deployment(1), given(a, ofDeployment, "", last("x"), limited(minute))},
			does: after(minute), want: ips{}, counted: counts{"released_total Retain": 1}},
		{name: "the address is retained until its limit", given: all{deployment(1), given(a, ofDeployment, "", last("x"), limited(minute))},
			does: after(minute - 1), want: ips{a: "kept since 0s, last of x"}},
		{name: "the address is retained for its limit, but is preallocated", given: all{preallocating(), given(a, claim, "", last("x"), under(v1alpha1.ReleaseNever), limited(minute))},
			does: after(minute), want: ips{a: "kept since 0s, last of x"}},
		{name: "the address is preallocated, but its pool limits that", given: all{limiting(), preallocating(), given(a, claim, "", last("x"), under(v1alpha1.ReleaseNever), limited(minute))},
			does: after(minute), want: ips{}, counted: counts{"released_total Never": 1}},
		{name: "the address is preallocated, and its pool begins to limit that", given: all{pool(0), preallocating(), given(a, claim, "", last("x"), under(v1alpha1.ReleaseNever), limited(minute))},
			does: both(after(minute), puts(limiting())), want: ips{}, counted: counts{"released_total Never": 1}},
		{name: "a restored address is kept until its time", given: all{given(a, ofDeployment, "", last("x"), until(minute))},
			does: after(minute - 1), want: ips{a: "kept, last of x, until 1m0s"}},
		{name: "a restored address is kept for its owner after its time", given: all{deployment(1), given(a, ofDeployment, "", last("x"), until(minute))},
			does: after(minute), want: ips{a: "kept, last of x"}},
		{name: "a restored address is kept for its owner after its time, and the record of that fails", given: all{deployment(1), given(a, ofDeployment, "", last("x"), until(minute))},
			does: fails(ipamtest.Fault{Verb: "update", Err: refused}, after(minute)), want: ips{a: "kept, last of x"}},
		{name: "a restored address is kept until its time, and not longer", given: all{given(a, ofDeployment, "", last("x"), until(minute))},
			does: after(minute), want: ips{}, counted: counts{"released_total Retain": 1}},
		{name: "a restored address finds its owner", given: all{job(), &metav1.PartialObjectMetadata{ObjectMeta: web(1)}, given(a, ofJob, "", last("x"), awaited, until(minute))},
			does: after(minute), want: ips{a: "kept, last of x"}},
		{name: "a restored address finds its owner, and the record of that fails", given: all{job(), &metav1.PartialObjectMetadata{ObjectMeta: web(1)}, given(a, ofJob, "", last("x"), awaited)},
			before: func(w *fixture) { w.berth.Fail(ipamtest.Fault{Verb: "update", Err: refused}) },
			does:   after(time.Second), want: ips{a: "kept, last of x"}},
		{name: "a restored address finds no owner", given: all{given(a, ofJob, "", last("x"), awaited, until(minute))},
			does: after(minute), want: ips{}, counted: counts{"released_total Retain": 1}},

		{name: "the pod is on another node", given: all{statefulSet(1), with("web-0", a), given(a, ofSet, "web-0", onNode("node2"))},
			before: settles, want: ips{a: "of pod web-0 on node1"}},
		{name: "the pod is on another node, and the record of that fails", given: all{statefulSet(1), with("web-0", a), given(a, ofSet, "web-0", onNode("node2"))},
			before: func(w *fixture) { w.berth.Fail(ipamtest.Fault{Verb: "update", Err: refused}) },
			does:   after(time.Second), want: ips{a: "of pod web-0 on node1"}},
		{name: "the pod is on another node than the external assigner knows", given: all{statefulSet(1), with("web-0", a), given(a, ofSet, "web-0", onNode("node2"), attached)},
			before: settles, want: ips{a: "of pod web-0 on node1, attached"},
			emitted: []string{
				"Misplaced of 10.0.70.2: The address was recorded for node node2, but its pod is on node node1. The external assigner may have attached it to the wrong node: if the pod cannot be reached, delete it.",
				"Misplaced of web-0 and 10.0.70.2: The address was recorded for node node2, but its pod is on node node1. The external assigner may have attached it to the wrong node: if the pod cannot be reached, delete it.",
			}},
		{name: "the pod is bound with one of two addresses", given: all{pool(minute), deployment(1), pending(with("x", a)), given(a, ofDeployment, "x"), given(b, ofDeployment, "x", onNode("node2"))},
			does: puts(with("x", a)), want: ips{a: "of pod x on node1"}, counted: counts{"released_total Retain": 1}},
		{name: "the pod is bound with one of two addresses, of which the other had a pod", given: all{pool(minute), deployment(1), pending(with("x", a)), given(a, ofDeployment, "x"), given(b, ofDeployment, "x", onNode("node2"), last("y"))},
			does: puts(with("x", a)), want: ips{a: "of pod x on node1", b: "kept since 0s, last of x"}, counted: counts{"retained_total Retain": 1}},
		{name: "the pod of a name gets another address than the one that is kept for the name", given: all{statefulSet(1), given(a, ofSet, "", last("web-0"))},
			does: puts(with("web-0", b), given(b, ofSet, "web-0")), want: ips{b: "of pod web-0 on node1"}, counted: counts{"released_total Retain": 1}},
		{name: "the pod was never bound", given: all{pool(minute), statefulSet(1), pending(with("web-0", a)), given(a, ofSet, "web-0")},
			does: removes(with("web-0", a)), want: ips{}, counted: counts{"released_total Retain": 1}},
		{name: "another workload adopts the pod", given: all{deployment(1), replicaSet("owner"), replicaSets(a), given(a, ofDeployment, "x")},
			does: both(puts(successor(deployment(1))), puts(replicaSet("now"))), want: ips{a: "of pod x on node1, for now"}},
		{name: "another workload adopts the pod, whose address stays for ever", given: all{deployment(1), replicaSet("owner"), replicaSets(a), given(a, ofDeployment, "x", under(v1alpha1.ReleaseNever))},
			does: both(puts(successor(deployment(1))), puts(replicaSet("now"))), want: ips{a: "of pod x on node1, for now"}},
		{name: "another workload adopts the pod, whose address goes with it", given: all{deployment(1), replicaSet("owner"), replicaSets(a), given(a, ofDeployment, "x", under(v1alpha1.ReleasePodDeleted))},
			does: both(puts(successor(deployment(1))), puts(replicaSet("now"))), want: ips{a: "of pod x on node1"}},
		{name: "another workload adopts the pod, and the record of that fails", given: all{deployment(1), replicaSet("owner"), replicaSets(a), given(a, ofDeployment, "x")},
			does: both(puts(successor(deployment(1))), fails(ipamtest.Fault{Verb: "update", Err: refused}, puts(replicaSet("now")))), want: ips{a: "of pod x on node1, for now"}},
		{name: "the pod says that another workload adopted it", given: all{deployment(1), replicaSet("now"), replicaSets(a), given(a, ofDeployment, "x")},
			does: settles, want: ips{a: "of pod x on node1"}},

		{name: "a workload adopts a pod that had none", given: all{statefulSet(1), with("web-0", a), given(a, ofSet, "web-0", itself)},
			does: puts(controlledBy(with("web-0", a), "apps/v1", "StatefulSet", "web", "owner")), want: ips{a: "of pod web-0 on node1"}},
		{name: "a workload adopts a pod that had none, and its next pod has the same address", given: all{statefulSet(1), with("web-0", a), given(a, ofSet, "web-0", itself)},
			does: both(puts(controlledBy(with("web-0", a), "apps/v1", "StatefulSet", "web", "owner")), removes(with("web-0", a))), want: ips{a: "kept since 0s, last of web-0"}, counted: counts{"retained_total Retain": 1}},
		{name: "a workload that keeps an address for its name adopts a pod", given: all{statefulSet(1), with("web-0", a), given(a, ofSet, "web-0", itself), given(b, ofSet, "", last("web-0"))},
			does: puts(controlledBy(with("web-0", a), "apps/v1", "StatefulSet", "web", "owner")), want: ips{a: "of pod web-0 on node1, for uid of web-0", b: "kept, last of web-0"}},
		{name: "a pod that had no workload says that one adopted it", given: all{with("web-0", a), given(a, ofSet, "web-0", itself)},
			does: puts(controlledBy(with("web-0", a), "apps/v1", "StatefulSet", "web", "owner")), want: ips{a: "of pod web-0 on node1, for uid of web-0"}},

		{name: "the cooldown begins", given: all{pool(minute), statefulSet(0), with("web-0", a), given(a, ofSet, "web-0")},
			does: removes(with("web-0", a)), want: ips{a: "cools down since 0s, last of web-0"}, counted: counts{"released_total Retain": 1}},
		{name: "the cooldown goes on", given: all{pool(minute), statefulSet(0), with("web-0", a), given(a, ofSet, "web-0")},
			does: both(removes(with("web-0", a)), after(minute-1)), want: ips{a: "cools down since 0s, last of web-0"}, counted: counts{"released_total Retain": 1}},
		{name: "the cooldown ends", given: all{pool(minute), statefulSet(0), with("web-0", a), given(a, ofSet, "web-0")},
			does: both(removes(with("web-0", a)), after(minute)), want: ips{}, counted: counts{"released_total Retain": 1}},
		{name: "the pool's cooldown gets shorter", given: all{pool(minute), statefulSet(0), with("web-0", a), given(a, ofSet, "web-0")},
			does: both(removes(with("web-0", a)), puts(pool(0))), want: ips{}, counted: counts{"released_total Retain": 1}},
		{name: "the pool's cooldown gets longer", given: all{pool(minute), statefulSet(0), with("web-0", a), given(a, ofSet, "web-0")},
			does: both(both(removes(with("web-0", a)), puts(pool(2*minute))), after(minute)), want: ips{a: "cools down since 0s, last of web-0"}, counted: counts{"released_total Retain": 1}},
		{name: "the pool is gone", given: all{pool(minute), statefulSet(0), with("web-0", a), given(a, ofSet, "web-0")},
			does: both(removes(with("web-0", a)), removes(pool(minute))), want: ips{}, counted: counts{"released_total Retain": 1}},
		{name: "nobody knows whether the cooldown got longer", given: all{pool(minute), statefulSet(0), with("web-0", a), given(a, ofSet, "web-0")},
			does: both(removes(with("web-0", a)), fails(ipamtest.Fault{Verb: "get", Name: "p", Err: refused}, after(minute))), want: ips{}, counted: counts{"released_total Retain": 1}},

		{name: "somebody deletes an address that is to cool down", given: all{pool(minute), deployment(1), given(a, ofDeployment, "", last("x"))},
			does: removes(given(a, ofDeployment, "")), want: ips{a: "cools down since 0s, last of x"}},
		{name: "somebody deletes an address that is to cool down, until that is over", given: all{pool(minute), deployment(1), given(a, ofDeployment, "", last("x"))},
			does: both(removes(given(a, ofDeployment, "")), after(minute)), want: ips{}},
		{name: "somebody deletes an address that no pod had", given: all{pool(minute), deployment(1), given(a, ofDeployment, "")},
			does: removes(given(a, ofDeployment, "")), want: ips{}},
		{name: "somebody deletes an address, and the record of its cooldown fails", given: all{pool(minute), deployment(1), given(a, ofDeployment, "", last("x"))},
			does: fails(ipamtest.Fault{Verb: "create", Err: refused}, removes(given(a, ofDeployment, ""))), want: ips{a: "cools down since 0s, last of x"}},
		{name: "somebody deletes an address, and the record of its cooldown fails until that is over", given: all{pool(time.Millisecond), deployment(1), given(a, ofDeployment, "", last("x"))},
			does: fails(ipamtest.Fault{Verb: "create", Err: refused}, removes(given(a, ofDeployment, ""))), want: ips{}},
		{name: "somebody deletes an address, and a pod takes it", given: all{pool(minute), deployment(1), given(a, ofDeployment, "", last("x")), with("y", a)},
			does: func(w *fixture) {
				w.berth.Fail(ipamtest.Fault{Verb: "create", Before: func() { w.put(given(a, ofDeployment, "y")) }})
				w.remove(given(a, ofDeployment, ""))
			}, want: ips{a: "of pod y on node1"}},

		{name: "somebody changes an address first", given: all{statefulSet(1), with("web-0", a), given(a, ofSet, "web-0")},
			does: func(w *fixture) {
				w.berth.Fail(ipamtest.Fault{Verb: "update", Before: func() { w.put(given(a, ofSet, "web-0", last("web-1"))) }})
				w.remove(with("web-0", a))
			}, want: ips{a: "kept since 0s, last of web-0"}, counted: counts{"conflicts_total": 1, "retained_total Retain": 1}},
		{name: "the API server fails to free an address", given: all{deployment(3), given(a, ofDeployment, "", last("x")), given(b, ofDeployment, "", last("x")), given(c, ofDeployment, "", last("x"))},
			does: fails(ipamtest.Fault{Verb: "delete", Err: refused}, puts(deployment(1))), want: ips{a: "kept, last of x", b: "kept, last of x"}, counted: counts{"released_total Retain": 1}},
		{name: "the API server fails to free the address of a pod", given: all{statefulSet(0), with("web-0", a), given(a, ofSet, "web-0")},
			does: fails(ipamtest.Fault{Verb: "delete", Err: refused}, removes(with("web-0", a))), want: ips{}, counted: counts{"released_total Retain": 1, "lag_seconds": 0.05}},

		{name: "an attached address is kept", given: all{statefulSet(1), with("web-0", a), given(a, ofSet, "web-0", attached)},
			does: removes(with("web-0", a)), want: ips{a: "kept since 0s, last of web-0"}, counted: counts{"retained_total Retain": 1}, detached: []string{a + " from node1"}},
		{name: "an attached address is freed", given: all{statefulSet(0), with("web-0", a), given(a, ofSet, "web-0", attached)},
			does: removes(with("web-0", a)), want: ips{}, counted: counts{"released_total Retain": 1}, detached: []string{a + " from node1"}},
		{name: "an attached address cools down", given: all{pool(minute), statefulSet(0), with("web-0", a), given(a, ofSet, "web-0", attached)},
			does: removes(with("web-0", a)), want: ips{a: "cools down since 0s, last of web-0"}, counted: counts{"released_total Retain": 1}, detached: []string{a + " from node1"}},
		{name: "an attached address whose pod was never bound is freed", given: all{pool(minute), statefulSet(1), pending(with("web-0", a)), given(a, ofSet, "web-0", attached)},
			does: removes(with("web-0", a)), want: ips{}, counted: counts{"released_total Retain": 1}, detached: []string{a + " from node1"}},
		{name: "the external assigner is slow", given: all{deployment(0), with("w", a), with("x", b), with("y", c), given(a, ofDeployment, "w", attached), given(b, ofDeployment, "x", attached), given(c, ofDeployment, "y")},
			does: func(w *fixture) {
				w.detachTakes = time.Hour
				w.remove(with("w", a), with("x", b))
				synctest.Wait()
				w.remove(with("y", c))
			}, want: ips{a: "kept since 0s on node1, attached, last of w", b: "kept since 0s on node1, attached, last of x"}, counted: counts{"released_total Retain": 1}},
		{name: "the external assigner fails once", given: all{statefulSet(1), with("web-0", a), given(a, ofSet, "web-0", attached)},
			does: func(w *fixture) {
				w.detachFails = []error{errors.New("try later")}
				w.remove(with("web-0", a))
				w.after(time.Second)
			}, want: ips{a: "kept since 0s, last of web-0"}, counted: counts{"retained_total Retain": 1}, detached: []string{a + " from node1", a + " from node1"},
			emitted: []string{"DetachFailed of 10.0.70.2: The address is kept, because detaching it from node node1 failed: try later"}},
		{name: "there is no external assigner", given: all{statefulSet(1), with("web-0", a), given(a, ofSet, "web-0", attached)},
			before: func(w *fixture) { w.detacher = nil },
			does:   removes(with("web-0", a)), want: ips{a: "kept since 0s on node1, attached, last of web-0"},
			emitted: []string{"NoExternalAssigner of 10.0.70.2: The address is kept: an external assigner attached it to node node1 and must detach it, but the controller has no external assigner configured."}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t, test.given...)
				if test.before != nil {
					test.before(w)
				}
				w.start()
				if writes := w.berth.Writes(); test.before == nil && writes != nil {
					t.Errorf("it wrote %v before anything happened", writes)
				}
				if test.does != nil {
					test.does(w)
					synctest.Wait()
				}
				got := ips{}
				for name, ip := range w.berth.IPs() {
					got[name] = describe(ip)
				}
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("addresses: %s", diff)
				}
				counted := w.counted()
				if test.counted["conflicts_total"] == 0 {
					delete(counted, "conflicts_total") // A look before the event of a write meets one.
				}
				if diff := cmp.Diff(test.counted, counted, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("metrics: %s", diff)
				}
				if diff := cmp.Diff(test.emitted, w.emitted); diff != "" {
					t.Errorf("events: %s", diff)
				}
				if diff := cmp.Diff(test.detached, w.detached); diff != "" {
					t.Errorf("detached: %s", diff)
				}
			})
		})
	}
}

// The metric says since when an address could not be freed, and 0 once it is.
func TestOldestPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const a = "10.0.70.2"
		w := newFixture(t, statefulSet(1), with("web-0", a), given(a, set("web-0"), "web-0", attached))
		for range 15 {
			w.detachFails = append(w.detachFails, errors.New("try later"))
		}
		w.start()
		w.after(time.Minute)
		if age := w.oldest(); age != 0 {
			t.Errorf("%v s before a pod was gone", age)
		}
		w.remove(with("web-0", a))
		w.after(4 * time.Minute)
		if age := w.oldest(); age < 200 || age > 240 {
			t.Errorf("%v s after 4 minutes", age)
		}
		w.after(time.Hour)
		if age := w.oldest(); age != 0 {
			t.Errorf("%v s after it was freed", age)
		}
	})
}

// An address that nobody can detach is pending for ever.
func TestPendingWithoutAssigner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const a = "10.0.70.2"
		w := newFixture(t, statefulSet(1), with("web-0", a), given(a, set("web-0"), "web-0", attached))
		w.detacher = nil
		w.start()
		w.remove(with("web-0", a))
		w.after(time.Hour)
		if age := w.oldest(); age < 3500 {
			t.Errorf("%v s after an hour", age)
		}
	})
}

// oldest is the metric of the oldest address that could not be freed or kept.
func (w *fixture) oldest() float64 {
	w.t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "berth_reclaim_oldest_pending_seconds" {
			return family.Metric[0].GetGauge().GetValue()
		}
	}
	w.t.Fatal("there is no such metric")
	return 0
}

// The lag is of the pod that had the address last, also where the scheduler gave it the address
// when another one had ended.
func TestLagIsOfTheLastPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const a = "10.0.70.2"
		owner := shared("apps/v1", "Deployment")
		w := newFixture(t, given(a, owner, "x", under(v1alpha1.ReleasePodDeleted)))
		for _, queue := range []queue{w.queue, w.detaching, w.questions} {
			defer queue.ShutDown()
		}
		w.cache(w.berth.IP(a))
		w.podChanged(with("x", a), true)
		w.put(given(a, owner, "y", under(v1alpha1.ReleasePodDeleted)))
		w.cache(w.berth.IP(a))
		w.addressChanged(w.berth.IP(a), false)
		w.after(time.Hour)
		w.podChanged(with("y", a), true)
		w.after(time.Second)
		if err := w.look(a); err != nil {
			t.Fatal(err)
		}
		if counted := w.counted(); counted["lag_seconds"] != 1 {
			t.Errorf("counted %v, want a lag of one second", counted)
		}
	})
}

// A replica that does not lead has nothing in its queues after a day of pods, and forgets addresses
// that others freed once their rest is over. When it leads it does all that is left to do, without
// an event.
func TestStandby(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const a, b = "10.0.70.2", "10.0.70.3"
		w := newFixture(t, pool(time.Minute), given(a, shared("apps/v1", "Deployment"), "x", under(v1alpha1.ReleasePodDeleted)))
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { w.view.Run(ctx) })
		w.factory.Start(ctx.Done())
		kept := func(name, pod string) *v1alpha1.FloatingIP {
			return given(name, shared("apps/v1", "Deployment"), "", last(pod), under(v1alpha1.ReleasePodDeleted))
		}
		most := 0
		for i := range 5000 {
			ip := kept(fmt.Sprintf("2001-0db8-0000-0000-0000-0000-0000-%04x", i+1), "x")
			w.put(ip)
			synctest.Wait()
			w.berth.Remove(ip)
			w.after(10 * time.Second)
			most = max(most, len(w.deletions.names()))
		}
		if queued := w.queue.Len() + w.detaching.Len() + w.questions.Len(); queued > 0 || most > 2000 {
			t.Errorf("%d names are queued, and there were %d deletions", queued, most)
		}
		w.put(kept(b, "y"))
		synctest.Wait()
		w.berth.Remove(w.berth.IP(b)) // another client
		synctest.Wait()
		group.Go(func() { w.Run(ctx, 2) })
		synctest.Wait()
		for _, name := range []string{a, b} {
			if ip := w.berth.IP(name); ip == nil || ip.Spec.Owner != nil || ip.Spec.ReleasedAt == nil {
				t.Errorf("%s does not rest: %v", name, ip)
			}
		}
		cancel()
		w.factory.Shutdown()
		group.Wait()
	})
}
