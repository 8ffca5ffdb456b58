// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// testPod asks for n addresses with pairs of annotations.
func testPod(n int64, annotations ...string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "pod-uid", Annotations: map[string]string{}}}
	for i := 0; i+1 < len(annotations); i += 2 {
		pod.Annotations[annotations[i]] = annotations[i+1]
	}
	container := v1.Container{}
	if n > 0 {
		container.Resources.Requests = v1.ResourceList{v1alpha1.ResourceIP: *resource.NewQuantity(n, resource.DecimalSI)}
	}
	pod.Spec.Containers = []v1.Container{container}
	return pod
}

func TestCompile(t *testing.T) {
	onHost := testPod(1)
	onHost.Spec.HostNetwork = true
	inInit := testPod(0)
	inInit.Spec.InitContainers = testPod(1).Spec.Containers
	twice := testPod(1)
	twice.Spec.Containers = append(twice.Spec.Containers, twice.Spec.Containers[0])
	plain := ipam.Request{Namespace: "shop", Name: "web-0", UID: "pod-uid", Policy: v1alpha1.ReleasePodDeleted}
	with := func(policy v1alpha1.ReleasePolicy, pools ...string) ipam.Request {
		request := plain
		request.Policy, request.Pools = policy, pools
		return request
	}
	for _, test := range []struct {
		name string
		pod  *v1.Pod
		want ipam.Request
		err  string
	}{
		{name: "nothing but the resource", pod: testPod(1), want: plain},
		{name: "an init container asks", pod: inInit, want: plain},
		{name: "policy and pools", pod: testPod(1, v1alpha1.AnnotationReleasePolicy, "Retain", v1alpha1.AnnotationPools, "web, db,web"),
			want: with(v1alpha1.ReleaseRetain, "web", "db")},
		{name: "two addresses", pod: testPod(2), err: "requests berth.dev/ip: 2; a pod can have 1"},
		{name: "two containers with one each", pod: twice, err: "requests berth.dev/ip: 2; a pod can have 1"},
		{name: "host network", pod: onHost, err: "hostNetwork: true"},
		{name: "policy", pod: testPod(1, v1alpha1.AnnotationReleasePolicy, "immutable"), err: `"immutable" is not one of PodDeleted, Retain, Never`},
		{name: "empty policy", pod: testPod(1, v1alpha1.AnnotationReleasePolicy, ""), err: `"" is not one of`},
		{name: "empty pools", pod: testPod(1, v1alpha1.AnnotationPools, ""), err: `"" is not the name of an IPPool`},
		{name: "pools with a trailing comma", pod: testPod(1, v1alpha1.AnnotationPools, "web,"), err: `"" is not the name of an IPPool`},
		{name: "JSON for pools", pod: testPod(1, v1alpha1.AnnotationPools, `["web"]`), err: "separated by commas"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := compile(test.pod)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("error is %v, want one with %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// Whatever is in the annotations, compile neither panics nor lets through a
// request that later code does not expect.
func FuzzCompile(f *testing.F) {
	f.Add("Retain", "web")
	f.Add("", "")
	f.Add("Never", "a,b , c")
	f.Add("PodDeleted", "\x00,\n")
	f.Fuzz(func(t *testing.T, policy, pools string) {
		request, err := compile(testPod(1, v1alpha1.AnnotationReleasePolicy, policy, v1alpha1.AnnotationPools, pools))
		if err != nil {
			return
		}
		if request.Policy != v1alpha1.ReleasePodDeleted && request.Policy != v1alpha1.ReleaseRetain && request.Policy != v1alpha1.ReleaseNever {
			t.Errorf("policy %q came through", request.Policy)
		}
		if len(request.Pools) == 0 {
			t.Errorf("pools %q were dropped", pools)
		}
		for _, name := range request.Pools {
			if name == "" || strings.ContainsAny(name, ", \n\x00") {
				t.Errorf("pool name %q came through", name)
			}
		}
	})
}

func TestOwnerOf(t *testing.T) {
	owned := func(apiVersion, kind, name, uid string) *v1.Pod {
		pod := testPod(1)
		controller := true
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID(uid), Controller: &controller}}
		return pod
	}
	set := func(uid string, owner *v1.Pod) replicaSets {
		return func(namespace, name string) (metav1.Object, error) {
			object := &metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid)}
			if owner != nil {
				object.OwnerReferences = owner.OwnerReferences
			}
			return object, nil
		}
	}
	none := func(string, string) (metav1.Object, error) { return nil, errors.New("not found") }
	for _, test := range []struct {
		name string
		pod  *v1.Pod
		sets replicaSets
		want ipam.Owner
		err  string
	}{
		{"bare pod", testPod(1), none, ipam.Owner{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: "web-0", UID: "pod-uid", PodName: "web-0"}, ""},
		{"StatefulSet", owned("apps/v1", "StatefulSet", "web", "u"), none,
			ipam.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "shop", Name: "web", UID: "u", PodName: "web-0"}, ""},
		{"Deployment", owned("apps/v1", "ReplicaSet", "web-5d", "rs"), set("rs", owned("apps/v1", "Deployment", "web", "d")),
			ipam.Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web", UID: "d"}, ""},
		{"ReplicaSet of its own", owned("apps/v1", "ReplicaSet", "web", "rs"), set("rs", nil),
			ipam.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Namespace: "shop", Name: "web", UID: "rs", PodName: "web-0"}, ""},
		{"ReplicaSet of something else", owned("apps/v1", "ReplicaSet", "web", "rs"), set("rs", owned("argoproj.io/v1alpha1", "Rollout", "web", "r")),
			ipam.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Namespace: "shop", Name: "web", UID: "rs", PodName: "web-0"}, ""},
		{"a ReplicaSet that is not there", owned("apps/v1", "ReplicaSet", "web", "rs"), none, ipam.Owner{}, "find ReplicaSet shop/web"},
		{"a ReplicaSet of that name, but another", owned("apps/v1", "ReplicaSet", "web", "forged"), set("rs", nil), ipam.Owner{}, "made by another with UID forged"},
		{"a ReplicaSet of another group", owned("apps.kruise.io/v1", "ReplicaSet", "web", "k"), none,
			ipam.Owner{APIVersion: "apps.kruise.io/v1", Kind: "ReplicaSet", Namespace: "shop", Name: "web", UID: "k", PodName: "web-0"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := ownerOf(test.pod, test.sets)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("error is %v, want one with %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}
