// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/fixedset"
)

// cacheOf returns what an informer with the transform Slim would have.
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

// What is found in the caches, which is all that matters of the objects, for every
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
	three := int32(3)
	dual := asking(map[string]string{v1alpha1.AnnotationFamilies: "IPv4, IPv6"})
	done := batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: batchv1.JobFailureTarget, Status: v1.ConditionTrue}, {Type: batchv1.JobFailed, Status: v1.ConditionTrue}}}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("asked the API server for %s", r.URL) }))
	defer server.Close()
	kube, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	api, err := client.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	o := &owners{
		client: kube, api: api,
		statefulSets: appslisters.NewStatefulSetLister(cacheOf(t,
			&appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: &three, Ordinals: &appsv1.StatefulSetOrdinals{Start: 5}, Template: dual}},
			&appsv1.StatefulSet{ObjectMeta: ending, Spec: appsv1.StatefulSetSpec{Replicas: &three, Template: asking(nil)}})),
		deployments: appslisters.NewDeploymentLister(cacheOf(t,
			&appsv1.Deployment{ObjectMeta: named("ahead"), Spec: appsv1.DeploymentSpec{Template: asking(map[string]string{
				v1alpha1.AnnotationReleasePolicy: "Never", v1alpha1.AnnotationPreallocate: "true",
			})}},
			&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Template: asking(map[string]string{v1alpha1.AnnotationFamilies: "ipv4"})}})),
		replicaSets: appslisters.NewReplicaSetLister(cacheOf(t, &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Replicas: &three, Template: asking(nil)}})),
		daemonSets:  appslisters.NewDaemonSetLister(cacheOf(t, &appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Template: asking(nil)}})),
		jobs: batchlisters.NewJobLister(cacheOf(t,
			&batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{Parallelism: &three, Template: asking(nil)}},
			&batchv1.Job{ObjectMeta: named("done"), Spec: batchv1.JobSpec{Parallelism: &three, Template: asking(nil)}, Status: done})),
		cronJobs: batchlisters.NewCronJobLister(cacheOf(t, &batchv1.CronJob{ObjectMeta: meta, Spec: batchv1.CronJobSpec{JobTemplate: batchv1.JobTemplateSpec{
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
	two := fixedset.Demand{Total: 2}
	for _, test := range []struct {
		owner *v1alpha1.Owner
		want  workload
	}{
		{owner("apps/v1", "StatefulSet", "web", ""), workload{exists: true, replicas: 3, start: 5, each: fixedset.Demand{Total: 2, Families: []v1alpha1.IPFamily{v1alpha1.IPv4, v1alpha1.IPv6}}}},
		{owner("apps/v1", "StatefulSet", "ending", ""), workload{replicas: 3, each: two}},
		{owner("apps/v1beta9", "Deployment", "web", ""), workload{exists: true, replicas: 1, spare: 1, each: two}},
		{owner("apps/v1", "Deployment", "ahead", ""), workload{exists: true, replicas: 1, spare: 1, each: two, ahead: true}},
		{owner("apps/v1", "ReplicaSet", "web", ""), workload{exists: true, replicas: 3, each: two}},
		{owner("batch/v1", "Job", "web", ""), workload{exists: true, replicas: 3, each: two}},
		{owner("batch/v1", "Job", "done", ""), workload{replicas: 3, each: two}},
		{owner("batch/v1", "CronJob", "web", ""), workload{exists: true, replicas: 3, each: two}},
		{owner("apps/v1", "DaemonSet", "web", "node1"), workload{exists: true, unbounded: true, each: two}},
		{owner("apps/v1", "DaemonSet", "web", "node2"), workload{exists: true, unbounded: true, each: two, offNode: true}},
		{owner("apps/v1", "DaemonSet", "web", "node9"), workload{exists: true, unbounded: true, each: two, offNode: true}},
		{owner("berth.dev/v1alpha1", "IPClaim", "web", ""), workload{claim: true, exists: true, replicas: 3}},
		{owner("berth.dev/v1alpha1", "IPClaim", "ahead", ""), workload{claim: true, exists: true, replicas: 3, preallocates: []v1alpha1.IPFamily{v1alpha1.IPv4}}},
	} {
		t.Run(test.owner.Kind+" "+test.owner.Name+" "+test.owner.NodeName, func(t *testing.T) {
			got, live, err := o.find(t.Context(), test.owner, false)
			if err != nil || live {
				t.Fatalf("live %v, %v", live, err)
			}
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(workload{}, span{})); diff != "" {
				t.Error(diff)
			}
		})
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
				"the template": fixedset.DemandOf(&template).Total, "the slim template": fixedset.DemandOf(&slimmed).Total,
				"the slim pod": requested(&slimPod.(*v1.Pod).Spec),
			} {
				if got != test.want {
					t.Errorf("%s: got %d, want %d", name, got, test.want)
				}
			}
		})
	}
}

// A kind counts as not served only if discovery says so without an error.
func TestDiscover(t *testing.T) {
	const (
		kinds = `{"kind":"APIResourceList","groupVersion":"example.org/v1","resources":[
			{"name":"things","kind":"Thing","namespaced":true,"verbs":["get"]},
			{"name":"things/status","kind":"Thing","namespaced":true,"verbs":["get"]},
			{"name":"things/scale","group":"autoscaling","version":"v1","kind":"Scale","namespaced":true,"verbs":["get"]}]}`
		others = `{"kind":"APIResourceList","groupVersion":"example.org/v1","resources":[{"name":"others","kind":"Other","namespaced":false,"verbs":["get"]}]}`
		groups = `{"kind":"APIGroupList","groups":[{"name":"example.org","versions":[{"groupVersion":"example.org/v2","version":"v2"}]}]}`
		none   = `{"kind":"APIGroupList","groups":[]}`
	)
	scalable := func(version string) *customKind {
		return &customKind{resource: schema.GroupVersionResource{Group: "example.org", Version: version, Resource: "things"}, scalable: true}
	}
	for _, test := range []struct {
		name string
		// answers by path; 404 where there is none, 503 where it is empty.
		answers map[string]string
		want    *customKind
		fails   bool
	}{
		{"served", map[string]string{"/apis/example.org/v1": kinds}, scalable("v1"), false},
		{"served in another version", map[string]string{"/apis": groups, "/apis/example.org/v2": kinds}, scalable("v2"), false},
		{"its version serves it no more, another does", map[string]string{"/apis/example.org/v1": others, "/apis": groups, "/apis/example.org/v2": kinds}, scalable("v2"), false},
		{"its group is gone", map[string]string{"/apis": none}, nil, false},
		{"its group serves other kinds", map[string]string{"/apis/example.org/v1": others, "/apis": groups, "/apis/example.org/v2": others}, nil, false},
		{"its group is aggregated and down", map[string]string{"/apis/example.org/v1": "", "/apis": none}, nil, true},
		{"another version is aggregated and down", map[string]string{"/apis": groups, "/apis/example.org/v2": ""}, nil, true},
		{"a version that is listed is not served", map[string]string{"/apis": groups}, nil, true},
		{"the list of groups fails", map[string]string{"/apis": ""}, nil, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				answer, ok := test.answers[r.URL.Path]
				if r.URL.Path == "/api" {
					answer, ok = `{"kind":"APIVersions","versions":["v1"]}`, true
				}
				switch {
				case !ok:
					http.NotFound(w, r)
				case answer == "":
					http.Error(w, "service unavailable", http.StatusServiceUnavailable)
				default:
					w.Header().Set("Content-Type", "application/json")
					_, _ = w.Write([]byte(answer))
				}
			}))
			defer server.Close()
			client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			c := &customs{discovery: client}
			got, err := c.discover(schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Thing"})
			if failed := err != nil; failed != test.fails {
				t.Errorf("got error %v", err)
			}
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(customKind{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// An owner that an address waits for counts as missing only if the API server says so.
func TestUIDOf(t *testing.T) {
	const kinds = `{"kind":"APIResourceList","groupVersion":"example.org/v1","resources":[{"name":"things","kind":"Thing","namespaced":true,"verbs":["get"]}]}`
	object := func(meta string) string {
		return `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"web","namespace":"shop",` + meta + `}}`
	}
	notFound := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"details":{"name":"web","kind":"things"}}`
	for _, test := range []struct {
		name   string
		kinds  string // empty: the group is not served
		code   int
		answer string
		want   types.UID
		fails  string
	}{
		{"there", kinds, http.StatusOK, object(`"uid":"a"`), "a", ""},
		{"being deleted", kinds, http.StatusOK, object(`"uid":"a","deletionTimestamp":"2026-01-02T03:04:05Z"`), "", ""},
		{"not there", kinds, http.StatusNotFound, notFound, "", ""},
		{"not allowed", kinds, http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`, "", "the controller may not read things.example.org"},
		{"no longer served there", kinds, http.StatusNotFound, "404 page not found", "", errMoved.Error()},
		{"the API server is ill", kinds, http.StatusInternalServerError, "", "", "get things.example.org shop/web"},
		{"its kind is not served", "", 0, "", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch {
				case r.URL.Path == "/api":
					_, _ = w.Write([]byte(`{"kind":"APIVersions","versions":["v1"]}`))
				case r.URL.Path == "/apis":
					_, _ = w.Write([]byte(`{"kind":"APIGroupList","groups":[]}`))
				case r.URL.Path == "/apis/example.org/v1" && test.kinds != "":
					_, _ = w.Write([]byte(test.kinds))
				case r.URL.Path == "/apis/example.org/v1/namespaces/shop/things/web":
					w.WriteHeader(test.code)
					_, _ = w.Write([]byte(test.answer))
				default:
					http.NotFound(w, r)
				}
			}))
			defer server.Close()
			config := &rest.Config{Host: server.URL}
			api, err := metadata.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			found, err := discovery.NewDiscoveryClientForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			c := &customs{discovery: found, metadata: api, kinds: map[schema.GroupKind]*customKind{}}
			got, err := c.uidOf(t.Context(), &v1alpha1.Owner{APIVersion: "example.org/v1", Kind: "Thing", Namespace: "shop", Name: "web", UID: v1alpha1.NilUID})
			if got != test.want || (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
				t.Errorf("got %q, %v; want %q, %q", got, err, test.want, test.fails)
			}
		})
	}
}

// The event has the rule as one can paste it.
func TestForbidden(t *testing.T) {
	err := &forbiddenError{schema.GroupVersionResource{Group: "apps.kruise.io", Version: "v1alpha1", Resource: "clonesets"}, errors.New("no")}
	const want = `the controller may not read clonesets.apps.kruise.io: add a ClusterRole with the label rbac.berth.dev/aggregate-to-controller: "true" and the rule {apiGroups: ["apps.kruise.io"], resources: ["clonesets", "clonesets/scale"], verbs: [get, list, watch]}: no`
	if err.Error() != want {
		t.Errorf("got %s", err)
	}
}
