// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	appslisters "k8s.io/client-go/listers/apps/v1"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/customkind"
	"github.com/berth-dev/berth/ipam/fixedset"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// cacheOf returns the cache of an informer with the transform Slim.
func cacheOf(t *testing.T, objects ...any) cache.Indexer {
	t.Helper()
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for _, object := range objects {
		slim, err := Slim(object)
		if err != nil {
			t.Fatal(err)
		}
		if err := indexer.Add(slim); err != nil {
			t.Fatal(err)
		}
	}
	return indexer
}

// asking returns a template of pods that ask for two addresses, on nodes with the
// label zone=a that are not node9.
func asking(annotations map[string]string) v1.PodTemplateSpec {
	one := v1.ResourceRequirements{Requests: v1.ResourceList{v1alpha1.ResourceIP: resource.MustParse("1"), v1.ResourceCPU: resource.MustParse("1")}}
	return v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Annotations: annotations},
		Spec: v1.PodSpec{
			Containers:     []v1.Container{{Name: "a", Resources: one}, {Name: "b", Resources: one}, {Name: "c"}},
			InitContainers: []v1.Container{{Name: "i", Resources: one}},
			NodeSelector:   map[string]string{"zone": "a"},
			Affinity: &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
				NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{{Key: "metadata.name", Operator: v1.NodeSelectorOpNotIn, Values: []string{"node9"}}}}},
			}}},
		},
	}
}

// The slim objects of the caches have all that matters to find an owner, for every
// kind that is built in.
func TestOwnersFromCaches(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "owner", Annotations: map[string]string{"other": "x"}, Labels: map[string]string{"app": "web"}}
	ending := meta
	ending.Name, ending.DeletionTimestamp, ending.Finalizers = "ending", &metav1.Time{}, []string{"foregroundDeletion"}
	named := func(name string) metav1.ObjectMeta {
		o := meta
		o.Name = name
		return o
	}
	three, yes, no := int32(3), true, false
	surge, none := intstr.FromString("10%"), intstr.FromInt32(0)
	dual := asking(map[string]string{v1alpha1.AnnotationFamilies: "IPv4, IPv6"})
	done := batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: batchv1.JobFailureTarget, Status: v1.ConditionTrue}, {Type: batchv1.JobFailed, Status: v1.ConditionTrue}}}
	w := newFixture(t)
	w.mustNotBeAsked()
	o := &owners{
		client: w.kube, api: w.berth.Client(),
		statefulSets: appslisters.NewStatefulSetLister(cacheOf(t,
			&appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: &three, Ordinals: &appsv1.StatefulSetOrdinals{Start: 5}, Template: dual}},
			&appsv1.StatefulSet{ObjectMeta: ending, Spec: appsv1.StatefulSetSpec{Replicas: &three, Template: asking(nil)}})),
		deployments: appslisters.NewDeploymentLister(cacheOf(t,
			&appsv1.Deployment{ObjectMeta: named("sparing"), Spec: appsv1.DeploymentSpec{Template: asking(map[string]string{v1alpha1.AnnotationSpareAddresses: "4"})}},
			&appsv1.Deployment{ObjectMeta: named("mistaken"), Spec: appsv1.DeploymentSpec{Template: asking(map[string]string{v1alpha1.AnnotationSpareAddresses: "four"})}},
			&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Template: asking(map[string]string{v1alpha1.AnnotationFamilies: "ipv4"})}})),
		replicaSets: appslisters.NewReplicaSetLister(cacheOf(t, &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Replicas: &three, Template: asking(nil)}})),
		daemonSets: appslisters.NewDaemonSetLister(cacheOf(t,
			&appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Template: asking(nil)}},
			&appsv1.DaemonSet{ObjectMeta: named("surging"), Spec: appsv1.DaemonSetSpec{Template: asking(nil), UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
				Type: appsv1.RollingUpdateDaemonSetStrategyType, RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxSurge: &surge, MaxUnavailable: &none},
			}}})),
		jobs: batchlisters.NewJobLister(cacheOf(t,
			&batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{Parallelism: &three, Template: asking(nil)}},
			&batchv1.Job{ObjectMeta: named("suspended"), Spec: batchv1.JobSpec{Parallelism: &three, Suspend: &yes, Template: asking(nil)}},
			&batchv1.Job{ObjectMeta: named("resumed"), Spec: batchv1.JobSpec{Parallelism: &three, Suspend: &no, Template: asking(nil)}},
			&batchv1.Job{ObjectMeta: named("done"), Spec: batchv1.JobSpec{Parallelism: &three, Template: asking(nil)}, Status: done})),
		cronJobs: batchlisters.NewCronJobLister(cacheOf(t, &batchv1.CronJob{ObjectMeta: meta, Spec: batchv1.CronJobSpec{JobTemplate: batchv1.JobTemplateSpec{
			Spec: batchv1.JobSpec{Parallelism: &three, Template: asking(nil)},
		}}}, &batchv1.CronJob{ObjectMeta: named("suspended"), Spec: batchv1.CronJobSpec{Suspend: &yes, JobTemplate: batchv1.JobTemplateSpec{
			Spec: batchv1.JobSpec{Parallelism: &three, Template: asking(nil)},
		}}})),
		nodes: corelisters.NewNodeLister(cacheOf(t,
			&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", Labels: map[string]string{"zone": "a"}}, Spec: v1.NodeSpec{Unschedulable: true, Taints: []v1.Taint{{Key: "x", Effect: v1.TaintEffectNoExecute}}}},
			&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node2", Labels: map[string]string{"zone": "b"}}},
			&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node9", Labels: map[string]string{"zone": "a"}}})),
		claims: cacheOf(t,
			&v1alpha1.IPClaim{ObjectMeta: meta, Spec: v1alpha1.IPClaimSpec{Size: 3}},
			&v1alpha1.IPClaim{ObjectMeta: named("ahead"), Spec: v1alpha1.IPClaimSpec{Size: 3, Preallocate: true}}),
	}
	owner := func(apiVersion, kind, name, node string) *v1alpha1.Owner {
		return &v1alpha1.Owner{APIVersion: apiVersion, Kind: kind, Namespace: "ns", Name: name, UID: "owner", NodeName: node}
	}
	two := podrequest.Demand{Total: 2}
	for _, test := range []struct {
		owner *v1alpha1.Owner
		want  workload
	}{
		{owner("apps/v1", "StatefulSet", "web", ""), workload{exists: true, replicas: 3, start: 5, each: podrequest.Demand{Total: 2, Families: []v1alpha1.IPFamily{v1alpha1.IPv4, v1alpha1.IPv6}}}},
		{owner("apps/v1", "StatefulSet", "ending", ""), workload{replicas: 3, each: two}},
		{owner("apps/v1beta9", "Deployment", "web", ""), workload{exists: true, replicas: 1, spare: 1, each: two}},
		{owner("apps/v1", "Deployment", "sparing", ""), workload{exists: true, replicas: 1, spare: 4, each: two}},
		{owner("apps/v1", "Deployment", "mistaken", ""), workload{exists: true, replicas: 1, spare: 1, each: two}},
		{owner("apps/v1", "ReplicaSet", "web", ""), workload{exists: true, replicas: 3, each: two}},
		{owner("batch/v1", "Job", "web", ""), workload{exists: true, replicas: 3, each: two}},
		{owner("batch/v1", "Job", "suspended", ""), workload{exists: true, each: two}},
		{owner("batch/v1", "Job", "resumed", ""), workload{exists: true, replicas: 3, each: two}},
		{owner("batch/v1", "CronJob", "suspended", ""), workload{exists: true, replicas: 3, each: two}},
		{owner("batch/v1", "Job", "done", ""), workload{replicas: 3, each: two}},
		{owner("batch/v1", "CronJob", "web", ""), workload{exists: true, replicas: 3, each: two}},
		{owner("apps/v1", "DaemonSet", "web", "node1"), workload{exists: true, unbounded: true, each: two}},
		{owner("apps/v1", "DaemonSet", "surging", "node1"), workload{exists: true, unbounded: true, spare: 1, each: two}},
		{owner("apps/v1", "DaemonSet", "web", "node2"), workload{exists: true, unbounded: true, each: two, offNode: true}},
		{owner("apps/v1", "DaemonSet", "web", "node9"), workload{exists: true, unbounded: true, each: two, offNode: true}},
		{owner("berth.dev/v1alpha1", "IPClaim", "web", ""), workload{claim: true, exists: true, replicas: 3}},
		{owner("berth.dev/v1alpha1", "IPClaim", "ahead", ""), workload{claim: true, exists: true, replicas: 3, ahead: []v1alpha1.IPFamily{v1alpha1.IPv4}}},
	} {
		t.Run(test.owner.Kind+" "+test.owner.Name+" "+test.owner.NodeName, func(t *testing.T) {
			got, live, err := o.find(t.Context(), test.owner, false)
			if err != nil || live {
				t.Fatalf("live %v, %v", live, err)
			}
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(workload{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The addresses that a workload of a custom kind keeps depend on its template, where it has one.
func TestOfCustom(t *testing.T) {
	sparing, none := asking(map[string]string{v1alpha1.AnnotationSpareAddresses: "4"}), template(0)
	for name, test := range map[string]struct {
		read    customkind.Workload
		want    workload
		passing bool
	}{
		"no template":                       {read: customkind.Workload{Exists: true, Updating: true}, want: workload{exists: true, unbounded: true, updating: true}},
		"no scale":                          {read: customkind.Workload{Exists: true, Template: &none}, want: workload{exists: true, unbounded: true}},
		"a scale":                           {read: customkind.Workload{Exists: true, Scaled: true, Size: fixedset.Size{Replicas: 3}}, want: workload{exists: true, replicas: 3}},
		"a scale of some pods":              {read: customkind.Workload{Exists: true, Scaled: true, Size: fixedset.Size{Replicas: 3, Partial: true}}, want: workload{exists: true, replicas: 3, partial: true}},
		"spare addresses":                   {read: customkind.Workload{Exists: true, Scaled: true, Size: fixedset.Size{Replicas: 3, Spare: 4}, Template: &sparing}, want: workload{exists: true, replicas: 3, spare: 4}},
		"an update, still with addresses":   {read: customkind.Workload{Exists: true, Updating: true, Size: fixedset.Size{Spare: 4}, Template: &sparing}, want: workload{exists: true, unbounded: true, updating: true, spare: 4}},
		"an update, no longer with address": {read: customkind.Workload{Exists: true, Updating: true, Template: &none}, want: workload{exists: true, unbounded: true, updating: true}, passing: true},
	} {
		if diff := cmp.Diff(test.want, ofCustom(&test.read), cmp.AllowUnexported(workload{})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if got := isPassing(&test.read); got != test.passing {
			t.Errorf("%s: passing is %v", name, got)
		}
	}
}

// A template says as much as its pods do once the API server wrote their requests,
// and no less where it was made slim.
func TestDemand(t *testing.T) {
	asks := func(n string) v1.ResourceList {
		return v1.ResourceList{v1alpha1.ResourceIP: resource.MustParse(n), v1.ResourceCPU: resource.MustParse("1")}
	}
	requests := func(n string) v1.Container {
		return v1.Container{Resources: v1.ResourceRequirements{Requests: asks(n), Limits: asks(n)}}
	}
	limits := func(n string) v1.Container {
		return v1.Container{Resources: v1.ResourceRequirements{Limits: asks(n)}}
	}
	always := v1.ContainerRestartPolicyAlways
	sidecar := limits("2")
	sidecar.RestartPolicy = &always
	for _, test := range []struct {
		name string
		spec v1.PodSpec
		want int64
	}{
		{"nothing", v1.PodSpec{Containers: []v1.Container{{}}}, 0},
		{"requests", v1.PodSpec{Containers: []v1.Container{requests("2"), {}}}, 2},
		{"limits only", v1.PodSpec{Containers: []v1.Container{limits("2"), {}, requests("1")}}, 3},
		{"init containers", v1.PodSpec{Containers: []v1.Container{limits("1")}, InitContainers: []v1.Container{{}, limits("3"), requests("2")}}, 3},
		{"a sidecar", v1.PodSpec{Containers: []v1.Container{limits("1")}, InitContainers: []v1.Container{sidecar, {}, requests("2")}}, 4},
		{"overhead", v1.PodSpec{Containers: []v1.Container{limits("1")}, Overhead: asks("1")}, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			template := v1.PodTemplateSpec{Spec: test.spec}
			slimmed := slimTemplate(&template)
			slimPod, err := Slim(&v1.Pod{Spec: test.spec})
			if err != nil {
				t.Fatal(err)
			}
			for name, got := range map[string]int64{
				"the template": podrequest.DemandOf(&template).Total, "the slim template": podrequest.DemandOf(&slimmed).Total,
				"the slim pod": requested(&slimPod.(*v1.Pod).Spec),
			} {
				if got != test.want {
					t.Errorf("%s: got %d, want %d", name, got, test.want)
				}
			}
		})
	}
}
