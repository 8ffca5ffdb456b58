// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
	"github.com/berth-dev/berth/ipam/pools"
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
	plain := ipam.Request{Namespace: "shop", Name: "web-0", UID: "pod-uid", Policy: v1alpha1.ReleasePodDeleted, Parts: make([]ipam.Part, 1)}
	parts := func(parts ...ipam.Part) ipam.Request {
		request := plain
		request.Parts = parts
		return request
	}
	list := func(texts ...string) ipam.Part {
		var part ipam.Part
		for _, text := range texts {
			r, err := pools.ParseRange(text)
			if err != nil {
				t.Fatal(err)
			}
			part.Ranges = append(part.Ranges, r)
		}
		return part
	}
	four, six := ipam.Part{Family: v1alpha1.IPv4}, ipam.Part{Family: v1alpha1.IPv6}
	claimed := plain
	claimed.Claim = "licences"
	keeping := with(plain, v1alpha1.ReleaseRetain)
	keeping.RetainFor, keeping.KeepOnScaleDown = 72*time.Hour, true
	selected := plain
	selected.PoolSelector, _ = labels.Parse("tier=db")
	ofGalaxy := testPod(0, galaxy.AnnotationReleasePolicy, "immutable")
	ofGalaxy.Spec.Containers[0].Resources.Requests = v1.ResourceList{galaxy.ResourceENIIP: resource.MustParse("1")}
	for _, test := range []struct {
		name string
		pod  *v1.Pod
		want ipam.Request
		err  string
	}{
		{name: "nothing but the resource", pod: testPod(1), want: plain},
		{name: "an init container asks", pod: inInit, want: plain},
		{name: "policy and pools", pod: testPod(1, v1alpha1.AnnotationReleasePolicy, "Retain", v1alpha1.AnnotationPools, "web, db,web"),
			want: with(plain, v1alpha1.ReleaseRetain, "web", "db")},
		{name: "two addresses", pod: testPod(2), want: parts(ipam.Part{}, ipam.Part{})},
		{name: "two containers with one each", pod: twice, want: parts(ipam.Part{}, ipam.Part{})},
		{name: "too many addresses", pod: testPod(9), err: "requests berth.dev/ip: 9; a pod can have 8"},
		{name: "retained for a time, and on scale-down", want: keeping,
			pod: testPod(1, v1alpha1.AnnotationReleasePolicy, "Retain", v1alpha1.AnnotationRetainFor, "72h", v1alpha1.AnnotationKeepOnScaleDown, "true")},
		{name: "a time without a policy", pod: testPod(1, v1alpha1.AnnotationRetainFor, "72h"), err: "no effect with release policy PodDeleted"},
		{name: "three days", pod: testPod(1, v1alpha1.AnnotationReleasePolicy, "Retain", v1alpha1.AnnotationRetainFor, "3d"), err: `"3d" is not a duration`},
		{name: "scale-down with Never", pod: testPod(1, v1alpha1.AnnotationReleasePolicy, "Never", v1alpha1.AnnotationKeepOnScaleDown, "true"), err: "with release policy Retain only"},
		{name: "pools by label", pod: testPod(1, v1alpha1.AnnotationPoolSelector, "tier=db"), want: selected},
		{name: "a selector that is none", pod: testPod(1, v1alpha1.AnnotationPoolSelector, "tier=(db"), err: "is not a label selector"},
		{name: "a claim", pod: testPod(1, v1alpha1.AnnotationClaim, "licences"), want: claimed},
		{name: "a claim and a policy", pod: testPod(1, v1alpha1.AnnotationClaim, "licences", v1alpha1.AnnotationReleasePolicy, "Retain"), err: "the IPClaim says it"},
		{name: "dual-stack", pod: testPod(2, v1alpha1.AnnotationFamilies, "IPv4, IPv6"), want: parts(four, six)},
		{name: "dual-stack with one address", pod: testPod(1, v1alpha1.AnnotationFamilies, "IPv4,IPv6"), err: "requests berth.dev/ip: 1; make it 2"},
		{name: "a family that is none", pod: testPod(1, v1alpha1.AnnotationFamilies, "ipv4"), err: `"ipv4" is not one of`},
		{name: "an address", pod: testPod(1, v1alpha1.AnnotationAddresses, "10.0.70.5"), want: parts(list("10.0.70.5"))},
		{name: "one of several, one of a range, and any", pod: testPod(3, v1alpha1.AnnotationAddresses, "10.0.70.5, 10.0.70.7; 10.0.71.0/28"),
			want: parts(list("10.0.70.5", "10.0.70.7"), list("10.0.71.0/28"), ipam.Part{})},
		{name: "more lists than addresses", pod: testPod(1, v1alpha1.AnnotationAddresses, "10.0.70.5;10.0.70.6"), err: "has 2 lists, of each of which the pod is to get an address, but the pod requests berth.dev/ip: 1; make it 2"},
		{name: "addresses and families", pod: testPod(1, v1alpha1.AnnotationAddresses, "10.0.70.5", v1alpha1.AnnotationFamilies, "IPv4"), err: "remove it"},
		{name: "not an address", pod: testPod(1, v1alpha1.AnnotationAddresses, "10.0.70"), err: "annotation berth.dev/addresses"},
		{name: "a whole network", pod: testPod(1, v1alpha1.AnnotationAddresses, "2001:db8::/64"), err: "more than 4096 addresses"},
		{name: "Galaxy's resource and policy", pod: ofGalaxy, want: with(plain, v1alpha1.ReleaseRetain)},
		{name: "host network", pod: onHost, err: "hostNetwork: true"},
		{name: "policy", pod: testPod(1, v1alpha1.AnnotationReleasePolicy, "immutable"), err: `"immutable" is not one of PodDeleted, Retain, Never`},
		{name: "empty policy", pod: testPod(1, v1alpha1.AnnotationReleasePolicy, ""), err: `"" is not one of`},
		{name: "empty pools", pod: testPod(1, v1alpha1.AnnotationPools, ""), err: `"" is not the name of an IPPool`},
		{name: "pools with a trailing comma", pod: testPod(1, v1alpha1.AnnotationPools, "web,"), err: `"" is not the name of an IPPool`},
		{name: "JSON for pools", pod: testPod(1, v1alpha1.AnnotationPools, `["web"]`), err: "separated by commas"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := reader{galaxy: true}.compile(test.pod)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("error is %v, want one with %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(sameSelector)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func with(request ipam.Request, policy v1alpha1.ReleasePolicy, pools ...string) ipam.Request {
	request.Policy, request.Pools = policy, pools
	return request
}

func sameSelector(a, b labels.Selector) bool {
	return (a == nil) == (b == nil) && (a == nil || a.String() == b.String())
}

// Whatever is in the annotations, compile neither panics nor lets through a
// request that later code does not expect.
func FuzzCompile(f *testing.F) {
	f.Add("Retain", "web", "10.0.70.5;10.0.70.7-10.0.70.9")
	f.Add("", "", "")
	f.Add("Never", "a,b , c", ";")
	f.Add("PodDeleted", "\x00,\n", "2001:db8::/120,,")
	f.Fuzz(func(t *testing.T, policy, pools, addresses string) {
		request, err := reader{galaxy: true}.compile(testPod(2, v1alpha1.AnnotationReleasePolicy, policy, v1alpha1.AnnotationPools, pools, v1alpha1.AnnotationAddresses, addresses))
		if err != nil {
			return
		}
		if len(request.Parts) != 2 {
			t.Errorf("%d parts, want 2", len(request.Parts))
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
	named := func(name string, pod *v1.Pod) *v1.Pod {
		pod.Name = name
		return pod
	}
	daemon := owned("apps/v1", "DaemonSet", "web", "ds")
	daemon.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
		NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn, Values: []string{"node1"}}}}},
	}}}
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
			ipam.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Namespace: "shop", Name: "web", UID: "rs"}, ""},
		{"ReplicaSet of something else", owned("apps/v1", "ReplicaSet", "web", "rs"), set("rs", owned("argoproj.io/v1alpha1", "Rollout", "web", "r")),
			ipam.Owner{APIVersion: "argoproj.io/v1alpha1", Kind: "Rollout", Namespace: "shop", Name: "web", UID: "r"}, ""},
		{"a Job", owned("batch/v1", "Job", "we", "j"), none, ipam.Owner{APIVersion: "batch/v1", Kind: "Job", Namespace: "shop", Name: "we", UID: "j"}, ""},
		{"a Job whose pod has a name of digits", named("job-75496", owned("batch/v1", "Job", "job", "j")), none, ipam.Owner{APIVersion: "batch/v1", Kind: "Job", Namespace: "shop", Name: "job", UID: "j"}, ""},
		{"a custom kind whose pod has a generated name of digits", named("db-24568", owned("example.com/v1", "Database", "db", "x")), none,
			ipam.Owner{APIVersion: "example.com/v1", Kind: "Database", Namespace: "shop", Name: "db", UID: "x"}, ""},
		{"a StatefulSet of another group, whose pods have other names", owned("apps.kruise.io/v1", "StatefulSet", "x", "k"), none,
			ipam.Owner{APIVersion: "apps.kruise.io/v1", Kind: "StatefulSet", Namespace: "shop", Name: "x", UID: "k", PodName: "web-0"}, ""},
		{"a DaemonSet", daemon, none, ipam.Owner{APIVersion: "apps/v1", Kind: "DaemonSet", Namespace: "shop", Name: "web", UID: "ds", NodeName: "node1"}, ""},
		{"a forged claim", owned(v1alpha1.SchemeGroupVersion.String(), "IPClaim", "web", "c"), none, ipam.Owner{}, "cannot be the controller of a pod"},
		{"a pod", owned("v1", "Pod", "driver", "p"), none, ipam.Owner{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: "web-0", UID: "pod-uid", PodName: "web-0"}, ""},
		{"a pod that its name continues", owned("v1", "Pod", "web", "p"), none, ipam.Owner{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: "web-0", UID: "pod-uid", PodName: "web-0"}, ""},
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
