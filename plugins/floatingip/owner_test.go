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
	"github.com/berth-dev/berth/ipam/podrequest"
)

// testPod asks for an address.
func testPod() *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "pod-uid"}}
	pod.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1alpha1.ResourceIP: resource.MustParse("1")}}}}
	return pod
}

func TestOwnerOf(t *testing.T) {
	owned := func(apiVersion, kind, name, uid string) *v1.Pod {
		pod := testPod()
		controller := true
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID(uid), Controller: &controller}}
		return pod
	}
	set := func(uid string, owner *v1.Pod) getter {
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
		// between is the ReplicaSet or Job.
		between getter
		want    ipam.Owner
		err     string
	}{
		{"bare pod", testPod(), none, ipam.Owner{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: "web-0", UID: "pod-uid", PodName: "web-0"}, ""},
		{"StatefulSet", owned("apps/v1", "StatefulSet", "web", "u"), none,
			ipam.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "shop", Name: "web", UID: "u", PodName: "web-0"}, ""},
		{"Deployment", owned("apps/v1", "ReplicaSet", "web-5d", "rs"), set("rs", owned("apps/v1", "Deployment", "web", "d")),
			ipam.Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web", UID: "d"}, ""},
		{"ReplicaSet of its own", owned("apps/v1", "ReplicaSet", "web", "rs"), set("rs", nil),
			ipam.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Namespace: "shop", Name: "web", UID: "rs"}, ""},
		{"ReplicaSet of something else", owned("apps/v1", "ReplicaSet", "web", "rs"), set("rs", owned("argoproj.io/v1alpha1", "Rollout", "web", "r")),
			ipam.Owner{APIVersion: "argoproj.io/v1alpha1", Kind: "Rollout", Namespace: "shop", Name: "web", UID: "r"}, ""},
		{"a Job", owned("batch/v1", "Job", "we", "j"), set("j", nil), ipam.Owner{APIVersion: "batch/v1", Kind: "Job", Namespace: "shop", Name: "we", UID: "j"}, ""},
		{"a Job whose pod has a name of digits", named("job-75496", owned("batch/v1", "Job", "job", "j")), set("j", nil), ipam.Owner{APIVersion: "batch/v1", Kind: "Job", Namespace: "shop", Name: "job", UID: "j"}, ""},
		{"a CronJob", owned("batch/v1", "Job", "we-29", "j"), set("j", owned("batch/v1", "CronJob", "we", "c")), ipam.Owner{APIVersion: "batch/v1", Kind: "CronJob", Namespace: "shop", Name: "we", UID: "c"}, ""},
		{"a Job of another kind", owned("batch/v1", "Job", "we-0", "j"), set("j", owned("jobset.x-k8s.io/v1alpha2", "JobSet", "we", "s")), ipam.Owner{APIVersion: "batch/v1", Kind: "Job", Namespace: "shop", Name: "we-0", UID: "j"}, ""},
		{"a Job of another group", owned("batch.volcano.sh/v1alpha1", "Job", "web", "v"), none, ipam.Owner{APIVersion: "batch.volcano.sh/v1alpha1", Kind: "Job", Namespace: "shop", Name: "web", UID: "v"}, ""},
		{"a Job that is not there", owned("batch/v1", "Job", "we-29", "j"), none, ipam.Owner{}, "find Job shop/we-29"},
		{"a Job of that name, but another", owned("batch/v1", "Job", "we-29", "forged"), set("j", owned("batch/v1", "CronJob", "we", "c")), ipam.Owner{}, "made by another with UID forged"},
		{"a custom kind whose pod has a generated name of digits", named("db-24568", owned("example.com/v1", "Database", "db", "x")), none,
			ipam.Owner{APIVersion: "example.com/v1", Kind: "Database", Namespace: "shop", Name: "db", UID: "x"}, ""},
		{"a StatefulSet of another group, whose pods have other names", owned("apps.kruise.io/v1", "StatefulSet", "x", "k"), none,
			ipam.Owner{APIVersion: "apps.kruise.io/v1", Kind: "StatefulSet", Namespace: "shop", Name: "x", UID: "k", PodName: "web-0"}, ""},
		{"a DaemonSet", daemon, none, ipam.Owner{APIVersion: "apps/v1", Kind: "DaemonSet", Namespace: "shop", Name: "web", UID: "ds", NodeName: "node1"}, ""},
		{"a pod", owned("v1", "Pod", "driver", "p"), none, ipam.Owner{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: "web-0", UID: "pod-uid", PodName: "web-0"}, ""},
		{"a pod that its name continues", owned("v1", "Pod", "web", "p"), none, ipam.Owner{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: "web-0", UID: "pod-uid", PodName: "web-0"}, ""},
		{"a ReplicaSet that is not there", owned("apps/v1", "ReplicaSet", "web", "rs"), none, ipam.Owner{}, "find ReplicaSet shop/web"},
		{"a ReplicaSet of that name, but another", owned("apps/v1", "ReplicaSet", "web", "forged"), set("rs", nil), ipam.Owner{}, "made by another with UID forged"},
		{"a ReplicaSet of another group", owned("apps.kruise.io/v1", "ReplicaSet", "web", "k"), none,
			ipam.Owner{APIVersion: "apps.kruise.io/v1", Kind: "ReplicaSet", Namespace: "shop", Name: "web", UID: "k", PodName: "web-0"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := ownerOf(test.pod, between{replicaSet: test.between, job: test.between})
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

// A DaemonSet's pod is for one node.
func TestRequiredNode(t *testing.T) {
	field := func(key string, operator v1.NodeSelectorOperator, values ...string) v1.NodeSelectorTerm {
		return v1.NodeSelectorTerm{MatchFields: []v1.NodeSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
	}
	one := field(metav1.ObjectNameField, v1.NodeSelectorOpIn, "n1")
	for _, test := range []struct {
		name  string
		terms []v1.NodeSelectorTerm
		want  string
	}{
		{"its node", []v1.NodeSelectorTerm{one}, "n1"},
		{"its node twice", []v1.NodeSelectorTerm{one, one}, "n1"},
		{"two nodes", []v1.NodeSelectorTerm{one, field(metav1.ObjectNameField, v1.NodeSelectorOpIn, "n2")}, ""},
		{"either node", []v1.NodeSelectorTerm{field(metav1.ObjectNameField, v1.NodeSelectorOpIn, "n1", "n2")}, ""},
		{"any other node", []v1.NodeSelectorTerm{field(metav1.ObjectNameField, v1.NodeSelectorOpNotIn, "n1")}, ""},
		{"another field", []v1.NodeSelectorTerm{field("metadata.uid", v1.NodeSelectorOpIn, "n1")}, ""},
		{"none", nil, ""},
	} {
		pod := testPod()
		pod.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: test.terms}}}
		if got := requiredNode(pod); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
	for _, affinity := range []*v1.Affinity{nil, {}, {NodeAffinity: &v1.NodeAffinity{}}} {
		pod := testPod()
		pod.Spec.Affinity = affinity
		if got := requiredNode(pod); got != "" {
			t.Errorf("without a required affinity: %q", got)
		}
	}
}

// An IPClaim has pods by their annotation only, or its size would not count.
func TestNoClaimControls(t *testing.T) {
	yes := true
	controlled := func(apiVersion, kind string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "front", UID: "u", Controller: &yes}}
	}
	between := func(references []metav1.OwnerReference) between {
		get := func(namespace, name string) (metav1.Object, error) {
			return &metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "u", OwnerReferences: references}, nil
		}
		return between{replicaSet: get, job: get}
	}
	for _, test := range []struct {
		name    string
		pod     []metav1.OwnerReference
		set     []metav1.OwnerReference
		refused bool
	}{
		{"the pod", controlled(v1alpha1.SchemeGroupVersion.String(), "IPClaim"), nil, true},
		{"the pod, another version", controlled(v1alpha1.GroupName+"/v1", "IPClaim"), nil, true},
		{"its ReplicaSet", controlled("apps/v1", "ReplicaSet"), controlled(v1alpha1.SchemeGroupVersion.String(), "IPClaim"), true},
		{"its ReplicaSet, another version", controlled("apps/v1", "ReplicaSet"), controlled(v1alpha1.GroupName+"/v2", "IPClaim"), true},
		{"nothing: an IPClaim of another group", controlled("example.com/v1", "IPClaim"), nil, false},
		{"nothing: its Job, which is of no CronJob then", controlled("batch/v1", "Job"), controlled(v1alpha1.SchemeGroupVersion.String(), "IPClaim"), false},
		{"nothing: a Deployment", controlled("apps/v1", "ReplicaSet"), controlled("apps/v1", "Deployment"), false},
	} {
		pod := testPod()
		pod.OwnerReferences = test.pod
		owner, err := ownerOf(pod, between(test.set))
		if err != nil {
			t.Fatal(err)
		}
		for _, claim := range []string{"", "other"} {
			if err := checkOwner(&ipam.Request{Request: podrequest.Request{Claim: claim}, Owner: owner}); (err != nil) != test.refused {
				t.Errorf("an IPClaim controls %s: checkOwner() = %v", test.name, err)
			}
		}
	}
}

// Only what has a fixed set that the controller knows can have it taken ahead.
func TestCheckOwner(t *testing.T) {
	for _, test := range []struct {
		apiVersion, kind string
		ahead            bool
		err              string
	}{
		{"apps/v1", "Deployment", true, ""},
		{"apps/v1", "ReplicaSet", true, ""},
		{"apps/v1", "StatefulSet", false, ""},
		{"apps/v1", "StatefulSet", true, "a StatefulSet has this one"},
		{"argoproj.io/v1alpha1", "Rollout", true, "a Rollout has this one"},
		{"example.org/v1", "Deployment", true, "for pods of Deployments and ReplicaSets"},
		{"apps/v1", "DaemonSet", false, "no address can stand for it"},
	} {
		request := ipam.Request{Request: podrequest.Request{Policy: v1alpha1.ReleaseRetain, Preallocate: test.ahead}, Owner: ipam.Owner{APIVersion: test.apiVersion, Kind: test.kind}}
		if err := checkOwner(&request); (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s, ahead %v: error is %v, want %q", test.kind, test.ahead, err, test.err)
		}
	}
}
