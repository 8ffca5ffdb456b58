// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

func TestOwnerOf(t *testing.T) {
	owned := func(apiVersion, kind, name, uid string) *v1.Pod {
		pod := testPod(1)
		controller := true
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID(uid), Controller: &controller}}
		return pod
	}
	set := func(uid string, owner *v1.Pod) Getter {
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
	itself := v1alpha1.Owner{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: "web-0", UID: "pod-uid", PodName: "web-0"}
	for _, test := range []struct {
		name string
		pod  *v1.Pod
		// between is the ReplicaSet or Job.
		between Getter
		want    v1alpha1.Owner
		err     string
	}{
		{"bare pod", testPod(1), none, v1alpha1.Owner{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: "web-0", UID: "pod-uid", PodName: "web-0"}, ""},
		{"StatefulSet", owned("apps/v1", "StatefulSet", "web", "u"), none,
			v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "shop", Name: "web", UID: "u", PodName: "web-0"}, ""},
		{"Deployment", owned("apps/v1", "ReplicaSet", "web-5d", "rs"), set("rs", owned("apps/v1", "Deployment", "web", "d")),
			v1alpha1.Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web", UID: "d"}, ""},
		{"ReplicaSet of its own", owned("apps/v1", "ReplicaSet", "web", "rs"), set("rs", nil),
			v1alpha1.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Namespace: "shop", Name: "web", UID: "rs"}, ""},
		{"ReplicaSet of something else", owned("apps/v1", "ReplicaSet", "web", "rs"), set("rs", owned("argoproj.io/v1alpha1", "Rollout", "web", "r")),
			v1alpha1.Owner{APIVersion: "argoproj.io/v1alpha1", Kind: "Rollout", Namespace: "shop", Name: "web", UID: "r"}, ""},
		{"a Job", owned("batch/v1", "Job", "we", "j"), set("j", nil), v1alpha1.Owner{APIVersion: "batch/v1", Kind: "Job", Namespace: "shop", Name: "we", UID: "j"}, ""},
		{"a Job whose pod has a name of digits", named("job-75496", owned("batch/v1", "Job", "job", "j")), set("j", nil), v1alpha1.Owner{APIVersion: "batch/v1", Kind: "Job", Namespace: "shop", Name: "job", UID: "j"}, ""},
		{"a CronJob", owned("batch/v1", "Job", "we-29", "j"), set("j", owned("batch/v1", "CronJob", "we", "c")), v1alpha1.Owner{APIVersion: "batch/v1", Kind: "CronJob", Namespace: "shop", Name: "we", UID: "c"}, ""},
		{"a Job of another kind", owned("batch/v1", "Job", "we-0", "j"), set("j", owned("jobset.x-k8s.io/v1alpha2", "JobSet", "we", "s")), v1alpha1.Owner{APIVersion: "batch/v1", Kind: "Job", Namespace: "shop", Name: "we-0", UID: "j"}, ""},
		{"a Job of another group's CronJob", owned("batch/v1", "Job", "we-29", "j"), set("j", owned("example.com/v1", "CronJob", "we", "c")), v1alpha1.Owner{APIVersion: "batch/v1", Kind: "Job", Namespace: "shop", Name: "we-29", UID: "j"}, ""},
		{"a Job of another group", owned("batch.volcano.sh/v1alpha1", "Job", "web", "v"), none, v1alpha1.Owner{APIVersion: "batch.volcano.sh/v1alpha1", Kind: "Job", Namespace: "shop", Name: "web", UID: "v"}, ""},
		{"a Job that is not there", owned("batch/v1", "Job", "we-29", "j"), none, v1alpha1.Owner{}, "find Job shop/we-29"},
		{"a Job of that name, but another", owned("batch/v1", "Job", "we-29", "forged"), set("j", owned("batch/v1", "CronJob", "we", "c")), v1alpha1.Owner{}, "but the pod's owner reference has UID forged"},
		{"a custom kind whose pod has a generated name of digits", named("db-24568", owned("example.com/v1", "Database", "db", "x")), none,
			v1alpha1.Owner{APIVersion: "example.com/v1", Kind: "Database", Namespace: "shop", Name: "db", UID: "x"}, ""},
		{"a StatefulSet of another group, whose pods have other names", owned("apps.kruise.io/v1", "StatefulSet", "x", "k"), none,
			v1alpha1.Owner{APIVersion: "apps.kruise.io/v1", Kind: "StatefulSet", Namespace: "shop", Name: "x", UID: "k", PodName: "web-0"}, ""},
		{"a DaemonSet", daemon, none, v1alpha1.Owner{APIVersion: "apps/v1", Kind: "DaemonSet", Namespace: "shop", Name: "web", UID: "ds", NodeName: "node1"}, ""},
		{"a pod", owned("v1", "Pod", "driver", "p"), none, v1alpha1.Owner{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: "web-0", UID: "pod-uid", PodName: "web-0"}, ""},
		{"a pod that its name continues", owned("v1", "Pod", "web", "p"), none, v1alpha1.Owner{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: "web-0", UID: "pod-uid", PodName: "web-0"}, ""},
		{"a Pod of another group", owned("example.com/v1", "Pod", "web", "x"), none,
			v1alpha1.Owner{APIVersion: "example.com/v1", Kind: "Pod", Namespace: "shop", Name: "web", UID: "x", PodName: "web-0"}, ""},
		{"a VirtualMachine", named("virt-launcher-vm-x2x4z", owned("kubevirt.io/v1", "VirtualMachineInstance", "vm", "i")), set("i", owned("kubevirt.io/v1", "VirtualMachine", "vm", "m")),
			v1alpha1.Owner{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Namespace: "shop", Name: "vm", UID: "m"}, ""},
		{"a VirtualMachineInstance of its own", owned("kubevirt.io/v1", "VirtualMachineInstance", "web", "i"), set("i", nil),
			v1alpha1.Owner{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Namespace: "shop", Name: "web", UID: "i"}, ""},
		{"a VirtualMachineInstance of that name, but another", owned("kubevirt.io/v1", "VirtualMachineInstance", "vm", "forged"), set("i", nil), v1alpha1.Owner{}, "but the pod's owner reference has UID forged"},
		{"a ReplicationController", owned("v1", "ReplicationController", "front", "rc"), none,
			v1alpha1.Owner{APIVersion: "v1", Kind: "ReplicationController", Namespace: "shop", Name: "front", UID: "rc"}, ""},
		{"a Secret", owned("v1", "Secret", "tls", "s"), none, itself, ""},
		{"a Secret that its name continues", owned("v1", "Secret", "web", "s"), none, itself, ""},
		{"a kind of another of Kubernetes' groups", owned("rbac.authorization.k8s.io/v1", "Role", "reader", "r"), none, itself, ""},
		{"a kind of apps that makes no pods", owned("apps/v1", "ControllerRevision", "web-1", "r"), none, itself, ""},
		{"a kind of batch that is not known", owned("batch/v2", "Queue", "q", "r"), none, itself, ""},
		{"a ReplicaSet of a Secret", owned("apps/v1", "ReplicaSet", "web", "rs"), set("rs", owned("v1", "Secret", "tls", "s")),
			v1alpha1.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Namespace: "shop", Name: "web", UID: "rs"}, ""},
		{"a Secret of another group", owned("example.com/v1", "Secret", "tls", "x"), none,
			v1alpha1.Owner{APIVersion: "example.com/v1", Kind: "Secret", Namespace: "shop", Name: "tls", UID: "x"}, ""},
		{"a kind of a group of a Kubernetes SIG", owned("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "llm", "x"), none,
			v1alpha1.Owner{APIVersion: "leaderworkerset.x-k8s.io/v1", Kind: "LeaderWorkerSet", Namespace: "shop", Name: "llm", UID: "x"}, ""},
		{"a ReplicaSet that is not there", owned("apps/v1", "ReplicaSet", "web", "rs"), none, v1alpha1.Owner{}, "find ReplicaSet shop/web"},
		{"a ReplicaSet of that name, but another", owned("apps/v1", "ReplicaSet", "web", "forged"), set("rs", nil), v1alpha1.Owner{}, "but the pod's owner reference has UID forged"},
		{"a ReplicaSet of another group", owned("apps.kruise.io/v1", "ReplicaSet", "web", "k"), none,
			v1alpha1.Owner{APIVersion: "apps.kruise.io/v1", Kind: "ReplicaSet", Namespace: "shop", Name: "web", UID: "k", PodName: "web-0"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := OwnerOf(test.pod, Between{ReplicaSet: test.between, Job: test.between, VirtualMachineInstance: test.between})
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

// The address of a LeaderWorkerSet's worker belongs to the StatefulSet of the leaders, because the
// workers' own is made anew when the group restarts. Whoever writes the label without these objects
// gets what the pod's controller says.
func TestOwnerOfWorker(t *testing.T) {
	controlled := func(uid, apiVersion, kind, name, by string) *metav1.ObjectMeta {
		yes := true
		return &metav1.ObjectMeta{UID: types.UID(uid), OwnerReferences: []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID(by), Controller: &yes}}}
	}
	leaders := v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "shop", Name: "llm", UID: "leaders", PodName: "llm-0-1"}
	own := v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "shop", Name: "llm-0", UID: "workers", PodName: "llm-0-1"}
	workers, leader := controlled("workers", "v1", "Pod", "llm-0", "leader"), controlled("leader", "apps/v1", "StatefulSet", "llm", "leaders")
	for name, test := range map[string]struct {
		pod             string
		unlabeled       bool
		workers, leader *metav1.ObjectMeta
		want            v1alpha1.Owner
		err             string
	}{
		"a worker":                                {workers: workers, leader: leader, want: leaders},
		"without the label":                       {unlabeled: true, want: own},
		"a StatefulSet of nobody's":               {workers: &metav1.ObjectMeta{UID: "workers"}, want: own},
		"a StatefulSet of something else":         {workers: controlled("workers", "example.com/v1", "Pod", "llm-0", "leader"), want: own},
		"a StatefulSet of a pod of another name":  {workers: controlled("workers", "v1", "Pod", "llm-9", "leader"), want: own},
		"a leader of nobody's":                    {workers: workers, leader: &metav1.ObjectMeta{UID: "leader"}, want: own},
		"a leader of something else":              {workers: workers, leader: controlled("leader", "apps/v1", "ReplicaSet", "llm", "leaders"), want: own},
		"a leader of another name's StatefulSet":  {workers: workers, leader: controlled("leader", "apps/v1", "StatefulSet", "other", "leaders"), want: own},
		"a pod that has another name":             {pod: "llm-1-1", workers: workers, leader: leader, want: v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "shop", Name: "llm-0", UID: "workers", PodName: "llm-1-1"}},
		"a StatefulSet that is not there":         {err: "find StatefulSet shop/llm-0"},
		"a StatefulSet of that name, but another": {workers: &metav1.ObjectMeta{UID: "next"}, err: "but the pod's owner reference has UID workers"},
		"a leader that is not there":              {workers: workers, err: "find Pod shop/llm-0"},
		"a leader of that name, but another":      {workers: workers, leader: controlled("next", "apps/v1", "StatefulSet", "llm", "leaders"), err: "but the pod's owner reference has UID leader"},
	} {
		pod := testPod(1)
		if pod.Name = "llm-0-1"; test.pod != "" {
			pod.Name = test.pod
		}
		pod.OwnerReferences = controlled("", "apps/v1", "StatefulSet", "llm-0", "workers").OwnerReferences
		if !test.unlabeled {
			pod.Labels = map[string]string{LabelGroup: "llm"}
		}
		find := func(object *metav1.ObjectMeta) Getter {
			return func(string, string) (metav1.Object, error) {
				if object == nil {
					return nil, errors.New("not found")
				}
				return object, nil
			}
		}
		got, err := OwnerOf(pod, Between{StatefulSet: find(test.workers), Pod: find(test.leader)})
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: error %v, want one with %q", name, err, test.err)
			}
			continue
		}
		if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v: -want +got\n%s", name, err, diff)
		}
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
		pod := testPod(1)
		pod.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: test.terms}}}
		if got := requiredNode(pod); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
	for _, affinity := range []*v1.Affinity{nil, {}, {NodeAffinity: &v1.NodeAffinity{}}} {
		pod := testPod(1)
		pod.Spec.Affinity = affinity
		if got := requiredNode(pod); got != "" {
			t.Errorf("without a required affinity: %q", got)
		}
	}
}

// Pods use an IPClaim by the annotation only; an owner reference would bypass its size.
func TestNoClaimControls(t *testing.T) {
	yes := true
	controlled := func(apiVersion, kind string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "front", UID: "u", Controller: &yes}}
	}
	between := func(references []metav1.OwnerReference) Between {
		get := func(namespace, name string) (metav1.Object, error) {
			return &metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "u", OwnerReferences: references}, nil
		}
		return Between{ReplicaSet: get, Job: get}
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
		pod := testPod(1)
		pod.OwnerReferences = test.pod
		owner, err := OwnerOf(pod, between(test.set))
		if err != nil {
			t.Fatal(err)
		}
		for _, claim := range []string{"", "other"} {
			if err := (&Request{Claim: claim}).CheckOwner(&owner); (err != nil) != test.refused {
				t.Errorf("an IPClaim controls %s: CheckOwner() = %v", test.name, err)
			}
		}
	}
}

// An address of a DaemonSet is kept for a node. Failover needs a workload that makes the pod
// again, on another node.
func TestCheckOwner(t *testing.T) {
	retained := Request{Policy: v1alpha1.ReleaseRetain}
	moved := Request{Policy: v1alpha1.ReleasePodDeleted, Failover: true}
	for _, test := range []struct {
		apiVersion, kind, node string
		request                Request
		err                    string
	}{
		{"apps/v1", "StatefulSet", "", retained, ""},
		{"apps/v1", "DaemonSet", "", retained, "no address can be kept for that node"},
		{"apps/v1", "DaemonSet", "node1", retained, ""},
		{"apps/v1", "DaemonSet", "", Request{Policy: v1alpha1.ReleasePodDeleted}, ""},
		{"apps/v1", "DaemonSet", "", Request{Claim: "licences", Policy: v1alpha1.ReleasePodDeleted}, ""},
		{"apps/v1", "DaemonSet", "", Request{Claim: "licences", Policy: v1alpha1.ReleaseRetain}, ""},
		{"apps/v1", "StatefulSet", "", moved, ""},
		{"batch/v1", "Job", "", moved, ""},
		{"apps/v1", "DaemonSet", "node1", moved, "annotation berth.dev/failover is not for pods of a DaemonSet"},
		{"apps.kruise.io/v1alpha1", "DaemonSet", "node1", moved, "not for pods of a DaemonSet"},
		{"apps/v1", "DaemonSet", "node1", Request{Claim: "licences", Failover: true}, "not for pods of a DaemonSet"},
		{"v1", "Pod", "", moved, "a pod without a workload, which nobody makes again"},
		{"v1", "Pod", "", Request{Policy: v1alpha1.ReleasePodDeleted}, ""},
	} {
		owner := v1alpha1.Owner{APIVersion: test.apiVersion, Kind: test.kind, NodeName: test.node}
		if err := test.request.CheckOwner(&owner); (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s on node %q, %+v: error is %v, want %q", test.kind, test.node, test.request, err, test.err)
		}
	}
}

func TestStandsBetween(t *testing.T) {
	for _, test := range []struct {
		apiVersion, kind string
		want             bool
	}{
		{"apps/v1", "ReplicaSet", true},
		{"batch/v1", "Job", true},
		{"apps.kruise.io/v1", "ReplicaSet", false},
		{"batch.volcano.sh/v1alpha1", "Job", false},
		{"apps/v1", "StatefulSet", false},
		{"batch/v1", "CronJob", false},
	} {
		if got := StandsBetween(&metav1.OwnerReference{APIVersion: test.apiVersion, Kind: test.kind}); got != test.want {
			t.Errorf("%s %s: got %v", test.apiVersion, test.kind, got)
		}
	}
}

// Digits of a generated name are no ordinal.
func TestIsNamedByOrdinal(t *testing.T) {
	for pod, want := range map[string]bool{
		"web-0": true, "web-12": true, "web-10000": true, "web-2456": true, "web-75496": false, "web-75491": true,
		"web-7f496": false, "web-": false, "web--1": false, "web-0-abcde": false, "other-0": false, "web-2147483648": false,
	} {
		if got := isNamedByOrdinal("web", pod); got != want {
			t.Errorf("isNamedByOrdinal(%q) = %v", pod, got)
		}
	}
}
