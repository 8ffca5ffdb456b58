// SPDX-License-Identifier: Apache-2.0

package galaxyimport

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/plan"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
)

const someTime = "2024-01-02T03:04:05Z"

// input is a cluster with pools 10.0.70.2-10.0.70.99 and 10.0.71.2-10.0.71.9,
// VLAN 7, which the options change.
func input(t *testing.T, options ...func(*Input)) *Input {
	t.Helper()
	subnets, err := galaxy.ParseConfig([]byte(`[
		{"nodeSubnets":["10.0.60.0/24"],"ips":["10.0.70.2~10.0.70.99"],"subnet":"10.0.70.0/24","gateway":"10.0.70.1"},
		{"nodeSubnets":["10.0.60.0/24"],"ips":["10.0.71.2~10.0.71.9"],"subnet":"10.0.71.0/24","gateway":"10.0.71.1","vlan":7}]`))
	if err != nil {
		t.Fatal(err)
	}
	in := &Input{Subnets: subnets, Options: Options{PoolPrefix: "galaxy-"}, Kinds: map[string][]schema.GroupVersionKind{
		"tapp":      {{Group: "apps.tkestack.io", Version: "v1", Kind: "TApp"}},
		"job":       {{Group: "batch", Version: "v1", Kind: "Job"}, {Group: "batch.volcano.sh", Version: "v1alpha1", Kind: "Job"}},
		"daemonset": {{Group: "apps", Version: "v1", Kind: "DaemonSet"}},
	}}
	for _, option := range options {
		option(in)
	}
	return in
}

// record adds a FloatingIP of Galaxy's.
func record(addr, key string, policy galaxy.Policy, options ...func(*galaxy.FloatingIP)) func(*Input) {
	return func(in *Input) {
		since, _ := time.Parse(time.RFC3339, someTime)
		ip := galaxy.FloatingIP{
			ObjectMeta: metav1.ObjectMeta{Name: addr},
			Spec:       galaxy.FloatingIPSpec{Key: key, Policy: policy, UpdateTime: metav1.NewTime(since)},
		}
		for _, option := range options {
			option(&ip)
		}
		in.IPs = append(in.IPs, ip)
	}
}

// of says which pod Galaxy recorded.
func of(uid, node string) func(*galaxy.FloatingIP) {
	return func(ip *galaxy.FloatingIP) { ip.Spec.Attribute = fmt.Sprintf(`{"NodeName":%q,"Uid":%q}`, node, uid) }
}

func reserved(ip *galaxy.FloatingIP) { ip.Labels = map[string]string{"reserved": ""} }

// pod adds a pod that asks Galaxy for addresses, on node1, of UID uid-<name>.
func pod(name string, options ...func(*v1.Pod)) func(*Input) {
	return func(in *Input) {
		pod := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name), Annotations: map[string]string{}},
			Spec: v1.PodSpec{NodeName: "node1", Containers: []v1.Container{{Resources: v1.ResourceRequirements{
				Requests: v1.ResourceList{galaxy.ResourceENIIP: resource.MustParse("1")},
			}}}},
			Status: v1.PodStatus{Phase: v1.PodRunning},
		}
		for _, option := range options {
			option(pod)
		}
		in.Pods = append(in.Pods, pod)
	}
}

func owned(apiVersion, kind, name string) func(*v1.Pod) {
	yes := true
	return func(pod *v1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID("uid-" + name), Controller: &yes}}
	}
}

func annotated(name, value string) func(*v1.Pod) {
	return func(pod *v1.Pod) { pod.Annotations[name] = value }
}

// assigned writes the annotation that Galaxy writes at bind.
func assigned(addresses ...string) func(*v1.Pod) {
	var infos []string
	for _, addr := range addresses {
		infos = append(infos, fmt.Sprintf(`{"ip":"%s/24","vlan":0,"gateway":"10.0.70.1"}`, addr))
	}
	return annotated(galaxy.AnnotationArgs, `{"common":{"ipinfos":[`+strings.Join(infos, ",")+`]}}`)
}

func phase(phase v1.PodPhase) func(*v1.Pod) { return func(pod *v1.Pod) { pod.Status.Phase = phase } }
func unbound(pod *v1.Pod)                   { pod.Spec.NodeName, pod.Status.Phase = "", v1.PodPending }
func plain(pod *v1.Pod)                     { pod.Spec.Containers[0].Resources.Requests = nil }
func in(namespace string) func(*v1.Pod)     { return func(pod *v1.Pod) { pod.Namespace = namespace } }

// workload adds an object in namespace shop of UID uid-<name>, of a controller
// "Kind/name" if given.
func workload(apiVersion, kind, name, controller string) func(*Input) {
	return func(in *Input) {
		version, _ := schema.ParseGroupVersion(apiVersion)
		w := Workload{GroupVersionKind: version.WithKind(kind), Namespace: "shop", Name: name, UID: types.UID("uid-" + name)}
		if controllerVersion, rest, ok := strings.Cut(controller, " "); ok {
			controllerKind, controllerName, _ := strings.Cut(rest, "/")
			w.Controller = &metav1.OwnerReference{APIVersion: controllerVersion, Kind: controllerKind, Name: controllerName, UID: types.UID("uid-" + controllerName)}
		}
		in.Workloads = append(in.Workloads, w)
	}
}

// berth adds a FloatingIP of Berth's.
func berth(addr string, change func(*v1alpha1.FloatingIP)) func(*Input) {
	return func(in *Input) {
		ip := &v1alpha1.FloatingIP{
			ObjectMeta: metav1.ObjectMeta{Name: addr, Generation: 2},
			Spec:       v1alpha1.FloatingIPSpec{Address: addr},
		}
		change(ip)
		in.ExistingIPs = append(in.ExistingIPs, ip)
	}
}

func make1(t *testing.T, in *Input) *Plan {
	t.Helper()
	plan, err := Make(in)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// line writes an item for comparison.
func line(item Item) string {
	text := fmt.Sprintf("%s %s", item.Action, strings.TrimPrefix(item.Namespace+"/"+item.Name, "/"))
	if item.Claim != nil {
		text += fmt.Sprintf(" size=%d preallocate=%t %s", item.Claim.Spec.Size, item.Claim.Spec.Preallocate, item.Claim.Spec.ReleasePolicy)
	}
	if item.Pool != nil {
		text += fmt.Sprintf(" %s %v gw=%s vlan=%d nodes=%v disabled=%t", item.Pool.Spec.Subnet, item.Pool.Spec.Ranges, item.Pool.Spec.Gateway, item.Pool.Spec.VLAN, item.Pool.Spec.NodeSubnets, item.Pool.Spec.Disabled)
	}
	if item.IP != nil {
		spec := item.IP.Spec
		if spec.Reserved {
			text += " reserved"
		}
		if owner := spec.Owner; owner != nil {
			text += fmt.Sprintf(" %s %s %s/%s %s", owner.APIVersion, owner.Kind, owner.Namespace, owner.Name, owner.UID)
			if owner.PodName != "" {
				text += " for " + owner.PodName
			}
			if owner.NodeName != "" {
				text += " on " + owner.NodeName
			}
			text += " " + string(spec.ReleasePolicy)
		}
		if spec.Pod != nil {
			text += fmt.Sprintf(" pod=%s/%s@%s", spec.Pod.Name, spec.Pod.UID, spec.Node)
		}
		if spec.Index != 0 {
			text += fmt.Sprintf(" index=%d", spec.Index)
		}
		if spec.LastPod != "" {
			text += " last=" + spec.LastPod
		}
	}
	if item.Note != "" {
		text += " | " + item.Note
	}
	return text
}

func lines(plan *Plan, kind string) string {
	var texts []string
	for _, item := range plan.Items {
		if item.Kind == kind {
			texts = append(texts, line(item))
		}
	}
	return strings.Join(texts, "\n")
}

// The plan migrates one address.
func TestAddress(t *testing.T) {
	const (
		podDeleted = galaxy.PolicyPodDeleted
		immutable  = galaxy.PolicyImmutable
		never      = galaxy.PolicyNever
		addr       = "10.0.70.5"
		args       = galaxy.AnnotationArgs
	)
	set := owned("apps/v1", "StatefulSet", "web")
	webSet := workload("apps/v1", "StatefulSet", "web", "")
	webDeployment := workload("apps/v1", "Deployment", "web", "")
	reserve := func(in *Input) { in.Options.ReserveOrphans = true }
	for _, test := range []struct {
		name  string
		given []func(*Input)
		want  string
	}{
		// A live pod has it.
		{"StatefulSet", list(record(addr, "sts_shop_web_web-0", podDeleted, of("uid-web-0", "node9")), pod("web-0", set)),
			"create 10.0.70.5 apps/v1 StatefulSet shop/web uid-web for web-0 PodDeleted pod=web-0/uid-web-0@node1"},
		{"StatefulSet, immutable", list(record(addr, "sts_shop_web_web-0", immutable, of("uid-web-0", "")), pod("web-0", set)),
			"create 10.0.70.5 apps/v1 StatefulSet shop/web uid-web for web-0 Retain pod=web-0/uid-web-0@node1"},
		{"StatefulSet of another group", list(record(addr, "sts_shop_web_web-0", never, of("uid-web-0", "")), pod("web-0", owned("apps.kruise.io/v1beta1", "StatefulSet", "web"))),
			"create 10.0.70.5 apps.kruise.io/v1beta1 StatefulSet shop/web uid-web for web-0 Never pod=web-0/uid-web-0@node1"},
		{"Deployment", list(record(addr, "dp_shop_web_web-1-x", immutable, of("uid-web-1-x", "")), pod("web-1-x", owned("apps/v1", "ReplicaSet", "web-1")), workload("apps/v1", "ReplicaSet", "web-1", "apps/v1 Deployment/web")),
			"create 10.0.70.5 apps/v1 Deployment shop/web uid-web Retain pod=web-1-x/uid-web-1-x@node1"},
		{"Rollout", list(record(addr, "dp_shop_web_web-1-x", podDeleted, of("uid-web-1-x", "")), pod("web-1-x", owned("apps/v1", "ReplicaSet", "web-1")), workload("apps/v1", "ReplicaSet", "web-1", "argoproj.io/v1alpha1 Rollout/web")),
			"create 10.0.70.5 argoproj.io/v1alpha1 Rollout shop/web uid-web PodDeleted pod=web-1-x/uid-web-1-x@node1"},
		{"ReplicaSet without a Deployment", list(record(addr, "dp_shop_web_web-1-x", podDeleted, of("uid-web-1-x", "")), pod("web-1-x", owned("apps/v1", "ReplicaSet", "web-1")), workload("apps/v1", "ReplicaSet", "web-1", "")),
			"create 10.0.70.5 apps/v1 ReplicaSet shop/web-1 uid-web-1 PodDeleted pod=web-1-x/uid-web-1-x@node1"},
		{"DaemonSet", list(record(addr, "daemonset_shop_log_log-x", podDeleted, of("uid-log-x", "")), pod("log-x", owned("apps/v1", "DaemonSet", "log"))),
			"create 10.0.70.5 apps/v1 DaemonSet shop/log uid-log on node1 PodDeleted pod=log-x/uid-log-x@node1"},
		{"Job", list(record(addr, "job_shop_sum_sum-1", podDeleted, of("uid-sum-1", "")), pod("sum-1", owned("batch/v1", "Job", "sum"))),
			"create 10.0.70.5 batch/v1 Job shop/sum uid-sum PodDeleted pod=sum-1/uid-sum-1@node1"},
		{"CronJob", list(record(addr, "job_shop_sum-9_sum-9-x", immutable, of("uid-sum-9-x", "")), pod("sum-9-x", owned("batch/v1", "Job", "sum-9")), workload("batch/v1", "Job", "sum-9", "batch/v1 CronJob/sum")),
			"create 10.0.70.5 batch/v1 CronJob shop/sum uid-sum Retain pod=sum-9-x/uid-sum-9-x@node1"},
		{"Job of another group's CronJob", list(record(addr, "job_shop_sum-9_sum-9-x", immutable, of("uid-sum-9-x", "")), pod("sum-9-x", owned("batch/v1", "Job", "sum-9")), workload("batch/v1", "Job", "sum-9", "example.com/v1 CronJob/sum")),
			"create 10.0.70.5 batch/v1 Job shop/sum-9 uid-sum-9 Retain pod=sum-9-x/uid-sum-9-x@node1"},
		{"Job of a JobSet", list(record(addr, "job_shop_sum-9_sum-9-x", immutable, of("uid-sum-9-x", "")), pod("sum-9-x", owned("batch/v1", "Job", "sum-9")), workload("batch/v1", "Job", "sum-9", "jobset.x-k8s.io/v1alpha2 JobSet/sum")),
			"create 10.0.70.5 batch/v1 Job shop/sum-9 uid-sum-9 Retain pod=sum-9-x/uid-sum-9-x@node1"},
		{"custom, with ordinals", list(record(addr, "tapp_shop_demo_demo-1", immutable, of("uid-demo-1", "")), pod("demo-1", owned("apps.tkestack.io/v1", "TApp", "demo"))),
			"create 10.0.70.5 apps.tkestack.io/v1 TApp shop/demo uid-demo for demo-1 Retain pod=demo-1/uid-demo-1@node1"},
		{"custom, with random names", list(record(addr, "thing_shop_demo_demo-x1", podDeleted, of("uid-demo-x1", "")), pod("demo-x1", owned("example.org/v1", "Thing", "demo"))),
			"create 10.0.70.5 example.org/v1 Thing shop/demo uid-demo PodDeleted pod=demo-x1/uid-demo-x1@node1"},
		{"without an owner", list(record(addr, "NULL_shop_NULL_one", podDeleted, of("uid-one", "")), pod("one")),
			"create 10.0.70.5 v1 Pod shop/one uid-one for one PodDeleted pod=one/uid-one@node1"},
		{"said to be an IPClaim's", list(record(addr, "sts_shop_web_web-0", never, of("uid-web-0", "")), pod("web-0", owned("berth.dev/v9", "IPClaim", "front"))),
			"create 10.0.70.5 v1 Pod shop/web-0 uid-web-0 for web-0 Never pod=web-0/uid-web-0@node1"},
		{"said to be an IPClaim's, by its ReplicaSet", list(record(addr, "dp_shop_web_web-1-x", never, of("uid-web-1-x", "")), pod("web-1-x", owned("apps/v1", "ReplicaSet", "web-1")), workload("apps/v1", "ReplicaSet", "web-1", "berth.dev/v1alpha1 IPClaim/front")),
			"create 10.0.70.5 v1 Pod shop/web-1-x uid-web-1-x for web-1-x Never pod=web-1-x/uid-web-1-x@node1"},
		{"of a pool", list(record(addr, "pool__front_dp_shop_web_web-1-x", never, of("uid-web-1-x", "")), pod("web-1-x", owned("apps/v1", "ReplicaSet", "web-1"))),
			"create 10.0.70.5 berth.dev/v1alpha1 IPClaim shop/front " + string(NilUID) + " Never pod=web-1-x/uid-web-1-x@node1"},
		{"of a pool that no claim can be named after", list(record(addr, "pool__Front_sts_shop_web_web-0", never, of("uid-web-0", "")), pod("web-0", set)),
			`create 10.0.70.5 apps/v1 StatefulSet shop/web uid-web for web-0 Never pod=web-0/uid-web-0@node1 | given to its workload: Galaxy's pool "Front" cannot be the name of an IPClaim: ` + rfc1123},
		{"UID not recorded, but the pod says so", list(record(addr, "sts_shop_web_web-0", immutable), pod("web-0", set, assigned("10.0.70.4", addr)), record("10.0.70.4", "x", 0, reserved)),
			"create 10.0.70.4 reserved | pod shop/web-0 says that it has the address too\ncreate 10.0.70.5 apps/v1 StatefulSet shop/web uid-web for web-0 Retain pod=web-0/uid-web-0@node1 index=1"},
		{"its index is the pod's, although the pod does not say that it has another", list(record("10.0.70.4", "sts_shop_web_web-0", immutable, of("uid-web-0", "")), record(addr, "sts_shop_web_web-0", immutable, of("uid-web-0", "")), pod("web-0", set, assigned(addr))),
			"create 10.0.70.4 apps/v1 StatefulSet shop/web uid-web for web-0 Retain pod=web-0/uid-web-0@node1\ncreate 10.0.70.5 apps/v1 StatefulSet shop/web uid-web for web-0 Retain pod=web-0/uid-web-0@node1"},
		{"recorded for a pod that is gone, said to be another's", list(record(addr, "sts_shop_web_web-0", never, of("old", "")), webSet, pod("one", assigned(addr), annotated(galaxy.AnnotationReleasePolicy, "immutable"))),
			`conflict 10.0.70.5 | Galaxy's record names "sts_shop_web_web-0", but by its annotation pod shop/one has the address: ` + decideYourself},
		{"retained, said to be of a pod of another namespace", list(record(addr, "dp_shop_web_", immutable), webDeployment, pod("web-1-x", in("evil"), assigned(addr))),
			`conflict 10.0.70.5 | Galaxy's record names "dp_shop_web_", but by its annotation pod evil/web-1-x has the address: ` + decideYourself},
		{"of a pool, said to be of a pod of another namespace", list(record(addr, "pool__front_", never), pod("one", in("evil"), assigned(addr), annotated(galaxy.AnnotationPool, "front"))),
			`conflict 10.0.70.5 | Galaxy's record names "pool__front_", but by its annotation pod evil/one has the address: ` + decideYourself},
		{"of a key that cannot be read, said to be a pod's", list(record(addr, "x", never), pod("one", assigned(addr))),
			`conflict 10.0.70.5 | Galaxy's record names "x", but by its annotation pod shop/one has the address: ` + decideYourself},
		{"said to be another's, reserved", list(record(addr, "sts_shop_web_web-0", never, of("old", "")), webSet, pod("one", assigned(addr)), reserve),
			`create 10.0.70.5 reserved | reserved: Galaxy's record names "sts_shop_web_web-0", but by its annotation pod shop/one has the address: ` + decideYourself},
		{"recorded for an earlier pod of the same Deployment", list(record(addr, "dp_shop_web_web-1-old", immutable, of("old", "")), webDeployment,
			workload("apps/v1", "ReplicaSet", "web-1", "apps/v1 Deployment/web"), pod("web-1-x", owned("apps/v1", "ReplicaSet", "web-1"), assigned(addr))),
			`create 10.0.70.5 apps/v1 Deployment shop/web uid-web Retain pod=web-1-x/uid-web-1-x@node1 | Galaxy's record names "dp_shop_web_web-1-old", of the same workload`},
		{"recorded for another pod of the same StatefulSet", list(record(addr, "sts_shop_web_web-1", immutable, of("old", "")), webSet, pod("web-0", set, assigned(addr))),
			`conflict 10.0.70.5 | Galaxy's record names "sts_shop_web_web-1", but by its annotation pod shop/web-0 has the address: ` + decideYourself},
		{"not recorded, said to be of two pods", list(pod("web-0", set, assigned(addr)), pod("one", assigned(addr))),
			"conflict 10.0.70.5 | Galaxy has no record of it, and the annotations of several pods name it (shop/one, shop/web-0): " + decideYourself},
		{"two pods with one address, one of which is recorded", list(record(addr, "sts_shop_web_web-0", podDeleted, of("uid-web-0", "")), pod("web-0", set, assigned(addr)), pod("one", assigned(addr))),
			"create 10.0.70.5 apps/v1 StatefulSet shop/web uid-web for web-0 PodDeleted pod=web-0/uid-web-0@node1 | pod shop/one says that it has the address too"},
		{"not recorded at all", list(pod("web-0", set, assigned(addr), annotated(galaxy.AnnotationPool, "front"))),
			"create 10.0.70.5 berth.dev/v1alpha1 IPClaim shop/front " + string(NilUID) + " Never pod=web-0/uid-web-0@node1 | Galaxy has no record of it, but a pod runs with it"},
		{"several addresses, in the pod's order", list(record(addr, "sts_shop_web_web-0", 0, of("uid-web-0", "")), record("10.0.70.6", "sts_shop_web_web-0", 0, of("uid-web-0", "")), pod("web-0", set, assigned("10.0.70.6", addr))),
			"create 10.0.70.5 apps/v1 StatefulSet shop/web uid-web for web-0 PodDeleted pod=web-0/uid-web-0@node1 index=1\n" +
				"create 10.0.70.6 apps/v1 StatefulSet shop/web uid-web for web-0 PodDeleted pod=web-0/uid-web-0@node1"},
		{"several addresses, retained", list(record(addr, "sts_shop_web_web-0", immutable), record("10.0.70.6", "sts_shop_web_web-0", immutable), webSet),
			"create 10.0.70.5 apps/v1 StatefulSet shop/web uid-web for web-0 Retain last=web-0\n" +
				"create 10.0.70.6 apps/v1 StatefulSet shop/web uid-web for web-0 Retain index=1 last=web-0"},
		{"a pod that asks Galaxy for nothing may say what it wants", list(pod("web-0", plain, assigned(addr))), ""},
		{"a key that cannot be read, with a pod", list(record(addr, "pool__a_b_sts_shop_web_web-0", never, of("uid-web-0", "")), pod("web-0", set)),
			`create 10.0.70.5 apps/v1 StatefulSet shop/web uid-web for web-0 Never pod=web-0/uid-web-0@node1 | key "pool__a_b_sts_shop_web_web-0" is not [pool__<pool>_]<type>_<namespace>_<app>_<pod>`},
		{"attributes that cannot be read", list(record(addr, "sts_shop_web_web-0", podDeleted, func(ip *galaxy.FloatingIP) { ip.Spec.Attribute = "{" }), pod("web-0", set, assigned(addr))),
			"create 10.0.70.5 apps/v1 StatefulSet shop/web uid-web for web-0 PodDeleted pod=web-0/uid-web-0@node1 | parse spec.attribute as JSON: unexpected end of JSON input"},
		{"terminating pods are live, annotations of others' are ignored", list(record(addr, "sts_shop_web_web-0", podDeleted, of("uid-web-0", "")), pod("web-0", set, annotated(args, "x"))),
			"create 10.0.70.5 apps/v1 StatefulSet shop/web uid-web for web-0 PodDeleted pod=web-0/uid-web-0@node1"},

		// No live pod has it.
		{"finished", list(record(addr, "sts_shop_web_web-0", podDeleted, of("uid-web-0", "")), pod("web-0", set, phase(v1.PodFailed))),
			"stale 10.0.70.5 | its pod is gone, Galaxy frees it"},
		{"not bound", list(record(addr, "sts_shop_web_web-0", podDeleted, of("uid-web-0", "")), pod("web-0", set, unbound)),
			"skip 10.0.70.5 | its pod is not bound to a node yet: run this again when it is"},
		{"not bound, and made again", list(record(addr, "sts_shop_web_web-0", podDeleted, of("old", "")), pod("web-0", set, unbound)),
			"skip 10.0.70.5 | its pod is not bound to a node yet: run this again when it is"},
		{"not bound, immutable", list(record(addr, "sts_shop_web_web-0", immutable, of("uid-web-0", "")), pod("web-0", set, unbound), webSet),
			"create 10.0.70.5 apps/v1 StatefulSet shop/web uid-web for web-0 Retain last=web-0"},
		{"replaced by another of its name", list(record(addr, "sts_shop_web_web-0", immutable, of("old", "")), pod("web-0", set), webSet),
			"create 10.0.70.5 apps/v1 StatefulSet shop/web uid-web for web-0 Retain last=web-0"},
		{"retained", list(record(addr, "sts_shop_web_web-0", immutable), webSet),
			"create 10.0.70.5 apps/v1 StatefulSet shop/web uid-web for web-0 Retain last=web-0"},
		{"retained, never", list(record(addr, "sts_shop_web_web-7", never), webSet),
			"create 10.0.70.5 apps/v1 StatefulSet shop/web uid-web for web-7 Never last=web-7"},
		{"parked", list(record(addr, "dp_shop_web_", immutable), webDeployment),
			"create 10.0.70.5 apps/v1 Deployment shop/web uid-web Retain"},
		{"retained, custom", list(record(addr, "tapp_shop_demo_demo-1", immutable), workload("apps.tkestack.io/v1", "TApp", "demo", "")),
			"create 10.0.70.5 apps.tkestack.io/v1 TApp shop/demo uid-demo for demo-1 Retain last=demo-1"},
		{"retained by a pod that may come back", list(record(addr, "NULL_shop_NULL_one-1", never)),
			"create 10.0.70.5 v1 Pod shop/one-1 " + string(NilUID) + " for one-1 Never last=one-1 | there is no Pod shop/one-1 now: kept for one of that name"},
		{"retained, on a node", list(record(addr, "daemonset_shop_log_log-1", never, of("", "node3")), workload("apps/v1", "DaemonSet", "log", "")),
			"create 10.0.70.5 apps/v1 DaemonSet shop/log uid-log on node3 Never last=log-1"},
		{"retained, on no node", list(record(addr, "daemonset_shop_log_log-1", never), workload("apps/v1", "DaemonSet", "log", "")),
			"skip 10.0.70.5 | the address belongs to a DaemonSet, but Galaxy's record no longer names the node"},
		{"workload gone, immutable", list(record(addr, "sts_shop_web_web-0", immutable)),
			"stale 10.0.70.5 | there is no StatefulSet shop/web any longer: Galaxy frees it, or failed to"},
		{"workload gone, immutable, reserve", list(record(addr, "dp_shop_web_", immutable), reserve),
			"create 10.0.70.5 reserved | reserved: there is no Deployment shop/web"},
		{"workload gone, never", list(record(addr, "sts_shop_web_web-0", never), reserve),
			"create 10.0.70.5 apps/v1 StatefulSet shop/web " + string(NilUID) + " for web-0 Never last=web-0 | there is no StatefulSet shop/web now: kept for one of that name"},
		{"workload gone, custom, never", list(record(addr, "tapp_shop_demo_demo-1", never)),
			"create 10.0.70.5 apps.tkestack.io/v1 TApp shop/demo " + string(NilUID) + " for demo-1 Never last=demo-1 | there is no TApp shop/demo now: kept for one of that name"},
		{"kind gone", list(record(addr, "thing_shop_demo_demo-1", never)),
			`skip 10.0.70.5 | the cluster has no kind "thing"`},
		{"kind gone, reserve", list(record(addr, "thing_shop_demo_demo-1", never), reserve),
			`create 10.0.70.5 reserved | reserved: the cluster has no kind "thing"`},
		{"kind in two groups, one object", list(record(addr, "job_shop_sum_sum-1", never), workload("batch.volcano.sh/v1alpha1", "Job", "sum", "")),
			"create 10.0.70.5 batch.volcano.sh/v1alpha1 Job shop/sum uid-sum Never last=sum-1"},
		{"kind in two groups, no object", list(record(addr, "job_shop_sum_sum-1", never)),
			`skip 10.0.70.5 | several API groups have a kind "job", and the key does not name the group`},
		{"kind in two groups, two objects", list(record(addr, "sts_shop_web_web-0", never), webSet, workload("apps.kruise.io/v1beta1", "StatefulSet", "web", "")),
			"skip 10.0.70.5 | there are StatefulSet shop/web of several API groups, and the key does not name the group"},
		{"a pool's, with a namespace", list(record(addr, "pool__front_sts_shop_web_web-0", never)),
			"create 10.0.70.5 berth.dev/v1alpha1 IPClaim shop/front " + string(NilUID) + " Never last=web-0"},
		{"a pool's, of one namespace", list(record(addr, "pool__front_", never), pod("web-1-x", annotated(galaxy.AnnotationPool, "front"))),
			"create 10.0.70.5 berth.dev/v1alpha1 IPClaim shop/front " + string(NilUID) + " Never"},
		{"a pool's, of no namespace", list(record(addr, "pool__front_", never)),
			"skip 10.0.70.5 | no namespace uses the pool front: name one with --claim-namespace front=NAMESPACE"},
		{"a pool's, of two namespaces", list(record(addr, "pool__front_", never), pod("a", annotated(galaxy.AnnotationPool, "front")), pod("b", in("other"), annotated(galaxy.AnnotationPool, "front"))),
			"skip 10.0.70.5 | namespaces other, shop use the pool front: choose one with --claim-namespace front=NAMESPACE"},
		{"a pool's, named", list(record(addr, "pool__front_", never), func(in *Input) { in.Options.ClaimNamespaces = map[string]string{"front": "here"} }),
			"create 10.0.70.5 berth.dev/v1alpha1 IPClaim here/front " + string(NilUID) + " Never"},
		{"a pool's, of a bad name", list(record(addr, "pool__Front_sts_shop_web_web-0", never)),
			`skip 10.0.70.5 | Galaxy's pool "Front" cannot be the name of an IPClaim: ` + rfc1123},
		{"reserved", list(record(addr, "pool__reserved-for-node_", never, reserved)), "create 10.0.70.5 reserved"},
		{"a key that cannot be read", list(record(addr, "web-0", never)), `skip 10.0.70.5 | key "web-0" is not [pool__<pool>_]<type>_<namespace>_<app>_<pod>`},
		{"a policy that is not known", list(record(addr, "sts_shop_web_web-0", 3), webSet), "skip 10.0.70.5 | policy 3 is not known"},
		{"a name that is no address", list(record("web", "sts_shop_web_web-0", never)), `skip web | the object's name "web" is not an IPv4 address`},
		{"outside", list(record("10.0.72.5", "sts_shop_web_web-0", immutable), webSet),
			"create 10.0.72.5 apps/v1 StatefulSet shop/web uid-web for web-0 Retain last=web-0 | outside of every pool"},
		{"the gateway is outside", list(record("10.0.70.1", "sts_shop_web_web-0", immutable), webSet),
			"create 10.0.70.1 apps/v1 StatefulSet shop/web uid-web for web-0 Retain last=web-0 | outside of every pool"},
		{"given twice", list(record(addr, "x", 0, reserved), record(addr, "x", 0, reserved)), "create 10.0.70.5 reserved"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, lines(make1(t, input(t, test.given...)), kindIP)); diff != "" {
				t.Errorf("wrong plan (-want +got):\n%s", diff)
			}
		})
	}
}

const rfc1123 = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"

func list(options ...func(*Input)) []func(*Input) { return options }

// All of an object, once.
func TestObject(t *testing.T) {
	plan := make1(t, input(t,
		record("10.0.71.5", "sts_shop_web_web-0", galaxy.PolicyImmutable, of("uid-web-0", "node1")),
		pod("web-0", owned("apps/v1", "StatefulSet", "web")),
	))
	since, _ := time.Parse(time.RFC3339, someTime)
	want := &v1alpha1.FloatingIP{
		TypeMeta: metav1.TypeMeta{APIVersion: "berth.dev/v1alpha1", Kind: "FloatingIP"},
		ObjectMeta: metav1.ObjectMeta{
			Name:        "10.0.71.5",
			Labels:      map[string]string{"berth.dev/imported-from": "galaxy"},
			Annotations: map[string]string{"berth.dev/galaxy-key": "sts_shop_web_web-0"},
		},
		Spec: v1alpha1.FloatingIPSpec{
			Address:       "10.0.71.5",
			Pool:          "galaxy-10.0.71.2",
			Network:       &v1alpha1.Network{Subnet: "10.0.71.0/24", Gateway: "10.0.71.1", VLAN: 7},
			Owner:         &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "shop", Name: "web", UID: "uid-web", PodName: "web-0"},
			Pod:           &v1alpha1.PodReference{Name: "web-0", UID: "uid-web-0"},
			Node:          "node1",
			ReleasePolicy: v1alpha1.ReleaseRetain,
			Since:         &metav1.Time{Time: since},
		},
	}
	if diff := cmp.Diff(want, plan.Items[len(plan.Items)-1].IP); diff != "" {
		t.Errorf("wrong object (-want +got):\n%s", diff)
	}
}

// The plan judges an address that Berth has already. Galaxy's is of pod web-0 of
// StatefulSet web, which is live or not.
func TestExistingAddress(t *testing.T) {
	const addr = "10.0.70.5"
	set := func(ip *v1alpha1.FloatingIP) {
		ip.Spec.Owner = &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "shop", Name: "web", UID: "uid-web", PodName: "web-0"}
		ip.Spec.ReleasePolicy = v1alpha1.ReleaseRetain
	}
	other := func(ip *v1alpha1.FloatingIP) {
		set(ip)
		ip.Spec.Owner.Name, ip.Spec.Owner.PodName = "db", "db-0"
	}
	held := func(uid types.UID) func(*v1alpha1.FloatingIP) {
		return func(ip *v1alpha1.FloatingIP) { ip.Spec.Pod = &v1alpha1.PodReference{Name: "some", UID: uid} }
	}
	imported := func(ip *v1alpha1.FloatingIP) {
		ip.Labels, ip.Generation = map[string]string{labelImportedFrom: importedFrom}, 1
	}
	cooling := func(ip *v1alpha1.FloatingIP) { ip.Spec.ReleasedAt = &metav1.Time{Time: time.Unix(1, 0)} }
	taken := func(ip *v1alpha1.FloatingIP) { ip.Spec.Reserved = true }
	newer := func(ip *v1alpha1.FloatingIP) { ip.Spec.Owner.APIVersion = "apps/v2" }
	never := func(ip *v1alpha1.FloatingIP) { ip.Spec.ReleasePolicy = v1alpha1.ReleaseNever }
	recreated := func(ip *v1alpha1.FloatingIP) { ip.Spec.Owner.UID = "another" }
	nothing := func(*v1alpha1.FloatingIP) {}
	for _, test := range []struct {
		name           string
		is             []func(*v1alpha1.FloatingIP)
		live, retained string
	}{
		{"the same, held", list2(set, held("uid-web-0")), "same", "differs: in pod"},
		{"the same, retained", list2(set), "update: a pod got it from Galaxy since", "same"},
		{"another API version", list2(set, newer, held("uid-web-0")), "same", "differs: in pod"},
		{"another policy", list2(set, never, held("uid-web-0")), "differs: in releasePolicy", "differs: in pod, releasePolicy"},
		{"the workload was recreated", list2(set, recreated, held("uid-web-0")), "differs: in owner.uid", "differs: in pod, owner.uid"},
		{"held by a pod that is gone", list2(set, held("gone")), "update: a pod got it from Galaxy since", "differs: in pod"},
		{"held by a live pod of Berth's", list2(set, held("uid-rival")), "conflict: in Berth, pod shop/rival has it", "differs: in pod"},
		{"somebody else's, held", list2(other, held("uid-rival")), "conflict: in Berth, pod shop/rival has it", "conflict: in Berth, it belongs to StatefulSet shop/db, pod db-0"},
		{"somebody else's, retained", list2(other), "conflict: in Berth, it belongs to StatefulSet shop/db, pod db-0", "conflict: in Berth, it belongs to StatefulSet shop/db, pod db-0"},
		{"somebody else's, as imported", list2(other, imported), "update: a pod got it from Galaxy since", "conflict: in Berth, it belongs to StatefulSet shop/db, pod db-0"},
		{"cooling down", list2(cooling), "update: a pod got it from Galaxy since", "conflict: in Berth, it belongs to nobody: it cools down"},
		{"reserved", list2(taken), "conflict: reserved is true in Berth, false in Galaxy", "conflict: reserved is true in Berth, false in Galaxy"},
		{"nobody's", list2(nothing), "conflict: in Berth, it belongs to nobody", "conflict: in Berth, it belongs to nobody"},
	} {
		existing := berth(addr, func(ip *v1alpha1.FloatingIP) {
			for _, change := range test.is {
				change(ip)
			}
		})
		rival := pod("rival", plain)
		galaxys := record(addr, "sts_shop_web_web-0", galaxy.PolicyImmutable, of("uid-web-0", "node1"))
		for name, c := range map[string]struct {
			given []func(*Input)
			want  string
		}{
			"live":     {list(galaxys, existing, rival, pod("web-0", owned("apps/v1", "StatefulSet", "web"))), test.live},
			"retained": {list(galaxys, existing, rival, workload("apps/v1", "StatefulSet", "web", "")), test.retained},
		} {
			t.Run(test.name+"/"+name, func(t *testing.T) {
				in := input(t, c.given...)
				items := make1(t, in).Items
				item := items[len(items)-1]
				got := string(item.Action)
				if item.Note != "" {
					got += ": " + item.Note
				}
				if got != c.want {
					t.Errorf("got %q, want %q", got, c.want)
				}
				if (item.Action == plan.Update) != (item.Seen == in.ExistingIPs[0]) {
					t.Errorf("%s with Seen = %v", item.Action, item.Seen)
				}
			})
		}
	}
}

// With a cloud provider, the addresses of live pods are assigned, and no others.
func TestExternalAssigner(t *testing.T) {
	plan := make1(t, input(t, func(in *Input) { in.Options.ExternalAssigner = true },
		record("10.0.70.5", "sts_shop_web_web-0", galaxy.PolicyImmutable, of("uid-web-0", "node1")),
		record("10.0.70.6", "sts_shop_web_web-1", galaxy.PolicyNever),
		pod("web-0", owned("apps/v1", "StatefulSet", "web")),
	))
	assigned := map[string]bool{}
	for _, item := range plan.Items {
		switch {
		case item.IP != nil:
			assigned[item.Name] = item.IP.Spec.ExternallyAssigned
		case item.Pool != nil:
			assigned[item.Name] = item.Pool.Spec.ExternalAssigner
		}
	}
	want := map[string]bool{"galaxy-10.0.70.2": true, "galaxy-10.0.71.2": true, "10.0.70.5": true, "10.0.70.6": false}
	if diff := cmp.Diff(want, assigned); diff != "" {
		t.Errorf("wrong (-want +got):\n%s", diff)
	}
}

func list2(changes ...func(*v1alpha1.FloatingIP)) []func(*v1alpha1.FloatingIP) { return changes }

func TestClaims(t *testing.T) {
	pool := func(name string, size int, preallocate bool) func(*Input) {
		return func(in *Input) {
			in.Pools = append(in.Pools, galaxy.Pool{ObjectMeta: metav1.ObjectMeta{Name: name}, Size: size, PreAllocateIP: preallocate})
		}
	}
	existing := func(size int32, policy v1alpha1.ReleasePolicy) func(*Input) {
		return func(in *Input) {
			in.ExistingClaims = append(in.ExistingClaims, &v1alpha1.IPClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "front", UID: "uid-front"},
				Spec:       v1alpha1.IPClaimSpec{Size: size, ReleasePolicy: policy},
			})
		}
	}
	two := list(
		record("10.0.70.5", "pool__front_dp_shop_web_web-1-x", galaxy.PolicyNever, of("uid-web-1-x", "node1")),
		record("10.0.70.6", "pool__front_", galaxy.PolicyNever),
		pod("web-1-x", owned("apps/v1", "ReplicaSet", "web-1")),
	)
	for _, test := range []struct {
		name        string
		given       []func(*Input)
		claims, ips string
	}{
		{"sized", append(list(pool("front", 5, true)), two...), "create shop/front size=5 preallocate=true Never",
			"create 10.0.70.5 berth.dev/v1alpha1 IPClaim shop/front " + string(NilUID) + " Never pod=web-1-x/uid-web-1-x@node1\n" +
				"create 10.0.70.6 berth.dev/v1alpha1 IPClaim shop/front " + string(NilUID) + " Never"},
		{"of just the size", append(list(pool("front", 2, true)), two...), "create shop/front size=2 preallocate=true Never", "-"},
		{"too many addresses", append(list(pool("front", 1, false)), two...), "create shop/front size=2 preallocate=false Never | Galaxy's size is 1, but it has 2 addresses", "-"},
		{"without a size", two, "create shop/front size=2 preallocate=false Never | Galaxy had no size for it: its size is the number of its addresses, raise it when workloads grow", "-"},
		{"of two namespaces", append(list(pool("front", 9, true), record("10.0.70.7", "pool__front_sts_other_db_db-0", galaxy.PolicyNever),
			func(in *Input) { in.Options.ClaimNamespaces = map[string]string{"front": "shop"} }), two...),
			"create other/front size=1 preallocate=false Never | Galaxy's size 9 was shared by namespaces other, shop: its size is the number of its addresses\n" +
				"create shop/front size=2 preallocate=false Never | Galaxy's size 9 was shared by namespaces other, shop: its size is the number of its addresses", "-"},
		{"without addresses", list(pool("front", 3, false), pod("a", unbound, annotated(galaxy.AnnotationPool, "front"))), "create shop/front size=3 preallocate=false Never", "-"},
		{"of nobody", list(pool("front", 3, false)), "skip front | no namespace uses the pool front: name one with --claim-namespace front=NAMESPACE", "-"},
		{"of a bad name", list(pool("Front", 3, false), pod("a", unbound, annotated(galaxy.AnnotationPool, "Front"))), `skip shop/Front | Galaxy's pool "Front" cannot be the name of an IPClaim: ` + rfc1123, "-"},
		{"without a namespace but its pod's", list(pool("front", 3, false), record("10.0.70.5", "pool__front_", galaxy.PolicyNever, of("uid-a", "")), pod("a", plain)), "create shop/front size=3 preallocate=false Never", "-"},
		{"as large as can be", list(pool("front", 10000, false), pod("a", unbound, annotated(galaxy.AnnotationPool, "front"))), "create shop/front size=10000 preallocate=false Never", "-"},
		{"too large", list(pool("front", 20000, false), pod("a", unbound, annotated(galaxy.AnnotationPool, "front"))), "create shop/front size=10000 preallocate=false Never | Galaxy's size is 20000, a claim's at most 10000", "-"},
		{"there already", append(list(existing(2, v1alpha1.ReleaseRetain)), two...), "same shop/front",
			"create 10.0.70.5 berth.dev/v1alpha1 IPClaim shop/front uid-front Retain pod=web-1-x/uid-web-1-x@node1\n" +
				"create 10.0.70.6 berth.dev/v1alpha1 IPClaim shop/front uid-front Retain"},
		{"there already, too small", append(list(existing(1, "")), two...),
			"conflict shop/front | its size is 1 and Galaxy has 2 addresses for it: raise it, or addresses without a pod would be freed",
			"create 10.0.70.5 berth.dev/v1alpha1 IPClaim shop/front uid-front Retain pod=web-1-x/uid-web-1-x@node1\n" +
				"skip 10.0.70.6 | IPClaim shop/front is too small"},
	} {
		t.Run(test.name, func(t *testing.T) {
			plan := make1(t, input(t, test.given...))
			if diff := cmp.Diff(test.claims, lines(plan, kindClaim)); diff != "" {
				t.Errorf("wrong claims (-want +got):\n%s", diff)
			}
			if test.ips == "-" {
				return
			}
			if diff := cmp.Diff(test.ips, lines(plan, kindIP)); diff != "" {
				t.Errorf("wrong addresses (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPools(t *testing.T) {
	existing := func(name, subnet, gateway string, ranges ...string) func(*Input) {
		return func(in *Input) {
			in.ExistingPools = append(in.ExistingPools, &v1alpha1.IPPool{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec:       v1alpha1.IPPoolSpec{Subnet: subnet, Gateway: gateway, Ranges: ranges, NodeSubnets: []string{"10.0.60.0/24"}},
			})
		}
	}
	const second = "create galaxy-10.0.71.2 10.0.71.0/24 [10.0.71.2-10.0.71.9] gw=10.0.71.1 vlan=7 nodes=[10.0.60.0/24] disabled=true"
	const first = " 10.0.70.0/24 [10.0.70.2-10.0.70.99] gw=10.0.70.1 vlan=0 nodes=[10.0.60.0/24] disabled=true"
	address, another := record("10.0.70.5", "x", 0, reserved), record("10.0.71.5", "x", 0, reserved)
	for _, test := range []struct {
		name, want, pool string
		given            []func(*Input)
	}{
		{"new", "create galaxy-10.0.70.2" + first + "\n" + second, "galaxy-10.0.70.2", nil},
		{"the same", "same galaxy-10.0.70.2" + first + "\n" + second, "galaxy-10.0.70.2",
			list(existing("galaxy-10.0.70.2", "10.0.70.0/24", "10.0.70.1", "10.0.70.2-10.0.70.99"))},
		{"changed", "differs galaxy-10.0.70.2" + first + " | in ranges, gateway\n" + second, "",
			list(existing("galaxy-10.0.70.2", "10.0.70.0/24", "10.0.70.3", "10.0.70.20-10.0.70.99"))},
		{"made by hand", "conflict galaxy-10.0.70.2" + first + " | IPPool web has 10.0.70.4-10.0.70.9 already\n" + second, "web",
			list(existing("web", "10.0.70.0/24", "10.0.70.1", "10.0.70.4-10.0.70.9"))},
		{"made by hand, of another subnet", "create galaxy-10.0.70.2" + first + "\n" + second, "galaxy-10.0.70.2",
			list(existing("web", "10.0.80.0/24", "10.0.80.1", "10.0.80.4-10.0.80.9"))},
		{"enabled", strings.ReplaceAll("create galaxy-10.0.70.2"+first+"\n"+second, "disabled=true", "disabled=false"), "galaxy-10.0.70.2",
			list(func(in *Input) { in.Options.EnablePools = true })},
	} {
		t.Run(test.name, func(t *testing.T) {
			plan := make1(t, input(t, append(test.given, address, another)...))
			if diff := cmp.Diff(test.want, lines(plan, kindPool)); diff != "" {
				t.Errorf("wrong pools (-want +got):\n%s", diff)
			}
			for i, want := range []string{test.pool, "galaxy-10.0.71.2"} {
				if got := plan.Items[len(plan.Items)-2+i].IP.Spec.Pool; got != want {
					t.Errorf("address %d is in pool %q, want %q", i, got, want)
				}
			}
		})
	}
}

// A pool with more ranges than an IPPool can have becomes several.
func TestManyRanges(t *testing.T) {
	var ips []string
	for i := range 100 {
		ips = append(ips, fmt.Sprintf("%q", fmt.Sprintf("10.0.70.%d", 2+2*i)))
	}
	subnets, err := galaxy.ParseConfig([]byte(`[{"nodeSubnets":["10.0.60.0/24"],"ips":[` + strings.Join(ips, ",") + `],"subnet":"10.0.70.0/24","gateway":"10.0.70.1"},
		{"nodeSubnets":["10.0.60.0/24"],"ips":[],"subnet":"10.0.72.0/24","gateway":"10.0.72.1"}]`))
	if err != nil {
		t.Fatal(err)
	}
	plan := make1(t, input(t, func(in *Input) { in.Subnets = subnets }))
	var got []string
	for _, item := range plan.Items {
		got = append(got, fmt.Sprintf("%s %d", item.Name, len(item.Pool.Spec.Ranges)))
	}
	if want := []string{"galaxy-10.0.70.130 36", "galaxy-10.0.70.2 64"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if want := []string{"pool 1 (10.0.72.0/24) has no addresses and is left out"}; !slices.Equal(plan.Notes, want) {
		t.Errorf("notes are %q, want %q", plan.Notes, want)
	}
}

// A pool of more node subnets than an IPPool can have is refused.
func TestManyNodeSubnets(t *testing.T) {
	for n, want := range map[int]string{
		64: "",
		65: "pool 0 (10.0.70.0/24): 65 nodeSubnets, but an IPPool can have 64: join some, or label the nodes and use spec.nodeSelector",
	} {
		in := input(t)
		in.Subnets = in.Subnets[:1]
		in.Subnets[0].NodeSubnets = slices.Repeat(in.Subnets[0].NodeSubnets, n)
		if _, err := Make(in); (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("%d: %v, want %q", n, err, want)
		}
	}
}

func TestKinds(t *testing.T) {
	in := input(t,
		record("10.0.70.5", "sts_shop_web_web-0", 0), record("10.0.70.6", "dp_shop_web_", 1), record("10.0.70.7", "tapp_shop_demo_demo-1", 2),
		record("10.0.70.8", "NULL_shop_NULL_one", 0), record("10.0.70.9", "pool__front_thing_shop_x_y", 2), record("10.0.70.10", "bad", 2),
	)
	if got, want := Kinds(in.IPs, in.Pods), []string{"deployment", "statefulset", "tapp"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	pod("web-1-x", owned("apps/v1", "ReplicaSet", "web-1"))(in)
	pod("sum-9-x", owned("batch/v1", "Job", "sum-9"))(in)
	if got, want := Kinds(nil, in.Pods), []string{"job", "replicaset"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
