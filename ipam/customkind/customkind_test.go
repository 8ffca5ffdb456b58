// SPDX-License-Identifier: Apache-2.0

package customkind

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// A kind counts as not served only if discovery says so without an error.
func TestDiscover(t *testing.T) {
	const (
		kinds = `{"kind":"APIResourceList","groupVersion":"example.org/v1","resources":[
			{"name":"things","kind":"Thing","namespaced":true,"verbs":["get"]},
			{"name":"things/status","kind":"Thing","namespaced":true,"verbs":["get"]},
			{"name":"things/scale","group":"autoscaling","version":"v1","kind":"Scale","namespaced":true,"verbs":["get"]}]}`
		unscaled = `{"kind":"APIResourceList","groupVersion":"example.org/v1","resources":[
			{"name":"others/scale","group":"autoscaling","version":"v1","kind":"Scale","namespaced":true,"verbs":["get"]},
			{"name":"things","kind":"Thing","namespaced":false,"verbs":["get"]}]}`
		others = `{"kind":"APIResourceList","groupVersion":"example.org/v1","resources":[{"name":"others","kind":"Other","namespaced":false,"verbs":["get"]}]}`
		groups = `{"kind":"APIGroupList","groups":[{"name":"example.org","versions":[{"groupVersion":"example.org/v2","version":"v2"}]}]}`
		none   = `{"kind":"APIGroupList","groups":[]}`
	)
	scalable := func(version string) *servedKind {
		return &servedKind{resource: schema.GroupVersionResource{Group: "example.org", Version: version, Resource: "things"}, scalable: true}
	}
	for _, test := range []struct {
		name string
		// answers by path; 404 where there is none, 503 where it is empty.
		answers map[string]string
		want    *servedKind
		fails   bool
	}{
		{"served", map[string]string{"/apis/example.org/v1": kinds}, scalable("v1"), false},
		{"served without a scale subresource", map[string]string{"/apis/example.org/v1": unscaled},
			&servedKind{resource: scalable("v1").resource, cluster: true}, false},
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
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
				answer, ok := test.answers[request.URL.Path]
				if request.URL.Path == "/api" {
					answer, ok = `{"kind":"APIVersions","versions":["v1"]}`, true
				}
				switch {
				case !ok:
					http.NotFound(w, request)
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
			r := NewReader(Config{Discovery: client})
			got, err := r.discover(schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Thing"})
			if failed := err != nil; failed != test.fails {
				t.Errorf("got error %v", err)
			}
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(servedKind{})); diff != "" {
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
		{"not allowed", kinds, http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`, "", "Berth may not read things.example.org"},
		{"no longer served there", kinds, http.StatusNotFound, "404 page not found", "", ErrMoved.Error()},
		{"the API server is ill", kinds, http.StatusInternalServerError, "", "", "get things.example.org shop/web"},
		{"its kind is not served", "", 0, "", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch {
				case request.URL.Path == "/api":
					_, _ = w.Write([]byte(`{"kind":"APIVersions","versions":["v1"]}`))
				case request.URL.Path == "/apis":
					_, _ = w.Write([]byte(`{"kind":"APIGroupList","groups":[]}`))
				case request.URL.Path == "/apis/example.org/v1" && test.kinds != "":
					_, _ = w.Write([]byte(test.kinds))
				case request.URL.Path == "/apis/example.org/v1/namespaces/shop/things/web":
					w.WriteHeader(test.code)
					_, _ = w.Write([]byte(test.answer))
				default:
					http.NotFound(w, request)
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
			r := NewReader(Config{Discovery: found, Metadata: api})
			got, err := r.UIDOf(t.Context(), &v1alpha1.Owner{APIVersion: "example.org/v1", Kind: "Thing", Namespace: "shop", Name: "web", UID: v1alpha1.NilUID})
			if got != test.want || (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
				t.Errorf("got %q, %v; want %q, %q", got, err, test.want, test.fails)
			}
		})
	}
}

// The event has the rule as one can paste it.
func TestForbidden(t *testing.T) {
	err := &ForbiddenError{schema.GroupVersionResource{Group: "apps.kruise.io", Version: "v1alpha1", Resource: "clonesets"}, true, errors.New("no")}
	const want = `Berth may not read clonesets.apps.kruise.io: add a ClusterRole with the label rbac.berth.dev/aggregate-to-controller: "true" and the rule {apiGroups: ["apps.kruise.io"], resources: ["clonesets", "clonesets/scale"], verbs: [get, list, watch]}: no`
	if err.Error() != want {
		t.Errorf("got %s", err)
	}
}

// A pod's author can name any object as its controller: a rule to add is only in the event of a
// kind that is one of workloads, and Kubernetes' own kinds that make no pods are not read at all.
func TestForbiddenOfNoWorkload(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var answer string
		code := http.StatusOK
		switch path := request.URL.Path; {
		case path == "/api/v1":
			answer = `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"secrets","kind":"Secret","namespaced":true,"verbs":["get"]}]}`
		case path == "/apis/example.org/v1":
			answer = `{"kind":"APIResourceList","groupVersion":"example.org/v1","resources":[
				{"name":"keys","kind":"Key","namespaced":true,"verbs":["get"]},
				{"name":"things","kind":"Thing","namespaced":true,"verbs":["get"]},
				{"name":"things/scale","group":"autoscaling","version":"v1","kind":"Scale","namespaced":true,"verbs":["get"]}]}`
		case path == "/apis/kubevirt.io/v1":
			answer = `{"kind":"APIResourceList","groupVersion":"kubevirt.io/v1","resources":[{"name":"virtualmachines","kind":"VirtualMachine","namespaced":true,"verbs":["get"]}]}`
		default:
			answer, code = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`, http.StatusForbidden
		}
		w.WriteHeader(code)
		_, _ = w.Write([]byte(answer))
	}))
	defer server.Close()
	config := &rest.Config{Host: server.URL}
	discover, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	r := NewReader(Config{Discovery: discover, Objects: objects})
	const rule = "add a ClusterRole"
	for _, test := range []struct {
		apiVersion, kind string
		fails, asks      bool
	}{
		{"example.org/v1", "Thing", true, true},
		{"kubevirt.io/v1", "VirtualMachine", true, true},
		{"example.org/v1", "Key", true, false},
		{"v1", "Secret", false, false},
	} {
		w, live, err := r.Find(t.Context(), &v1alpha1.Owner{APIVersion: test.apiVersion, Kind: test.kind, Namespace: "shop", Name: "web", UID: "u"}, false)
		if err == nil && (w.Exists || !live) {
			t.Errorf("%s: it exists", test.kind)
		}
		if failed := err != nil; failed != test.fails || failed && strings.Contains(err.Error(), rule) != test.asks {
			t.Errorf("%s: got %v", test.kind, err)
		}
	}
}

// Only a new object, a new generation and the begin of a deletion are changes.
func TestHasChanged(t *testing.T) {
	now := metav1.Now()
	was := &metav1.ObjectMeta{UID: "a", Generation: 3, ResourceVersion: "7"}
	for name, test := range map[string]struct {
		is   metav1.ObjectMeta
		want bool
	}{
		"an update":        {metav1.ObjectMeta{UID: "a", Generation: 3, ResourceVersion: "8"}, false},
		"another object":   {metav1.ObjectMeta{UID: "b", Generation: 3, ResourceVersion: "8"}, true},
		"a new generation": {metav1.ObjectMeta{UID: "a", Generation: 4, ResourceVersion: "8"}, true},
		"a deletion":       {metav1.ObjectMeta{UID: "a", Generation: 3, ResourceVersion: "8", DeletionTimestamp: &now}, true},
	} {
		if got := hasChanged(was, &test.is); got != test.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// A field spec.template of another form is no pod template.
func TestTemplateOf(t *testing.T) {
	containers := []any{map[string]any{"name": "web"}}
	slim := func(template *v1.PodTemplateSpec) v1.PodTemplateSpec {
		return v1.PodTemplateSpec{Spec: v1.PodSpec{NodeName: template.Spec.Containers[0].Name}}
	}
	for name, test := range map[string]struct {
		spec map[string]any
		slim func(*v1.PodTemplateSpec) v1.PodTemplateSpec
		want *v1.PodTemplateSpec
	}{
		"a pod template":               {map[string]any{"template": map[string]any{"spec": map[string]any{"containers": containers}}}, slim, &v1.PodTemplateSpec{Spec: v1.PodSpec{NodeName: "web"}}},
		"a pod template is not wanted": {map[string]any{"template": map[string]any{"spec": map[string]any{"containers": containers}}}, nil, nil},
		"none":                         {map[string]any{}, slim, nil},
		"a name":                       {map[string]any{"template": "web"}, slim, nil},
		"without containers":           {map[string]any{"template": map[string]any{"spec": map[string]any{}}}, slim, nil},
		"fields of another type":       {map[string]any{"template": map[string]any{"spec": map[string]any{"containers": containers, "nodeName": int64(7)}}}, slim, nil},
	} {
		r := NewReader(Config{Slim: test.slim})
		if diff := cmp.Diff(test.want, r.templateOf(&unstructured.Unstructured{Object: map[string]any{"spec": test.spec}})); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}

func TestReadOrdinals(t *testing.T) {
	for _, test := range []struct {
		spec map[string]any
		want Workload
	}{
		{map[string]any{}, Workload{}},
		{map[string]any{"ordinals": map[string]any{"start": int64(5)}}, Workload{Ordinals: true, Start: 5}},
		{map[string]any{"reserveOrdinals": []any{int64(1), "3-5", "7", "x", "9-8", int64(-2)}}, Workload{Ordinals: true, Reserved: []Span{{1, 1}, {3, 5}, {7, 7}}}},
	} {
		var w Workload
		readOrdinals(&unstructured.Unstructured{Object: map[string]any{"spec": test.spec}}, &w)
		if diff := cmp.Diff(fmt.Sprint(test.want), fmt.Sprint(w)); diff != "" {
			t.Errorf("%v: %s", test.spec, diff)
		}
	}
}

// While pods may be made of an older template, the requests in the new one do not
// decide.
func TestIsUpdating(t *testing.T) {
	for _, test := range []struct {
		status map[string]any
		want   bool
	}{
		{nil, false},
		{map[string]any{"replicas": int64(2)}, false},
		{map[string]any{"replicas": int64(2), "updatedReplicas": int64(1)}, true},
		{map[string]any{"replicas": int64(2), "updatedReplicas": int64(2), "observedGeneration": int64(3)}, false},
		{map[string]any{"replicas": int64(2), "updatedReplicas": int64(2), "observedGeneration": int64(2)}, true},
		{map[string]any{"replicas": int64(2), "updatedReplicas": int64(2), "observedGeneration": "2"}, false}, // as a Rollout has it
	} {
		object := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"generation": int64(3)}}}
		if test.status != nil {
			object.Object["status"] = test.status
		}
		if got := isUpdating(object); got != test.want {
			t.Errorf("status %v: %v", test.status, got)
		}
	}
}

func TestControllerOnly(t *testing.T) {
	kept := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "sum-1", UID: "sum-1", Labels: map[string]string{"a": "b"}, ResourceVersion: "7",
		OwnerReferences: []metav1.OwnerReference{{Kind: "CronJob", Name: "sum", Controller: new(true)}, {Name: "another"}},
	}}
	object, err := ControllerOnly(kept)
	if err != nil {
		t.Fatal(err)
	}
	slim := object.(*metav1.PartialObjectMetadata)
	if len(slim.Labels) > 0 || slim.Namespace != "shop" || slim.Name != "sum-1" || slim.UID != "sum-1" || slim.ResourceVersion != "7" || len(slim.OwnerReferences) != 1 || slim.OwnerReferences[0].Name != "sum" {
		t.Errorf("of a Job %+v is kept", slim.ObjectMeta)
	}
	object, err = ControllerOnly(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "sum-1", OwnerReferences: []metav1.OwnerReference{{Name: "another"}}}})
	if err != nil || len(object.(*metav1.PartialObjectMetadata).OwnerReferences) > 0 {
		t.Errorf("of a Job that nobody controls %v is kept, %v", object, err)
	}
	if other, err := ControllerOnly(v1alpha1.GroupName); other != v1alpha1.GroupName || err != nil {
		t.Errorf("another object is not left alone: %v, %v", other, err)
	}
}
