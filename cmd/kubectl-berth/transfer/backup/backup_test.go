// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/plan"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

var (
	now  = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	then = metav1.NewTime(now.Add(-time.Hour))
)

// address returns 10.0.70.2 of pool web, with Retain, since an hour ago.
func address(options ...func(*v1alpha1.FloatingIPSpec)) *v1alpha1.FloatingIP {
	ip := &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: "10.0.70.2", UID: "ip", ResourceVersion: "7", Labels: map[string]string{"a": "b"}},
		Spec:       v1alpha1.FloatingIPSpec{Address: "10.0.70.2", Pool: "web", ReleasePolicy: v1alpha1.ReleaseRetain, Since: &then},
	}
	for _, option := range options {
		option(&ip.Spec)
	}
	return ip
}

func owned(apiVersion, kind, name, uid string) func(*v1alpha1.FloatingIPSpec) {
	return func(spec *v1alpha1.FloatingIPSpec) {
		spec.Owner = &v1alpha1.Owner{APIVersion: apiVersion, Kind: kind, Namespace: "shop", Name: name, UID: types.UID(uid)}
		if kind == "StatefulSet" || kind == "Pod" {
			spec.Owner.PodName = strings.TrimSuffix(name, "-0") + "-0"
		}
	}
}

var (
	ofSet        = owned("apps/v1", "StatefulSet", "web", "old")
	ofDeployment = owned("apps/v1", "Deployment", "gate", "old")
	ofClaim      = owned("berth.dev/v1alpha1", "IPClaim", "front", "old")
	ofPod        = owned("v1", "Pod", "one-0", "old")
	ofCustom     = owned("apps.kruise.io/v1alpha1", "CloneSet", "web", "old")
)

func held(name, uid string) func(*v1alpha1.FloatingIPSpec) {
	return func(spec *v1alpha1.FloatingIPSpec) {
		spec.Pod, spec.Node = &v1alpha1.PodReference{Name: name, UID: types.UID(uid)}, "node1"
	}
}

func policy(p v1alpha1.ReleasePolicy) func(*v1alpha1.FloatingIPSpec) {
	return func(spec *v1alpha1.FloatingIPSpec) { spec.ReleasePolicy = p }
}

func reserved(spec *v1alpha1.FloatingIPSpec) { spec.Reserved = true }

func attached(spec *v1alpha1.FloatingIPSpec) { spec.ExternallyAssigned = true }

func resting(since time.Duration) func(*v1alpha1.FloatingIPSpec) {
	return func(spec *v1alpha1.FloatingIPSpec) {
		at := metav1.NewTime(now.Add(-since))
		spec.ReleasedAt, spec.Since, spec.LastPod, spec.ReleasePolicy = &at, nil, "web-0", v1alpha1.ReleasePodDeleted
	}
}

func pod(name, uid string, options ...func(*v1.Pod)) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(uid)}, Spec: v1.PodSpec{NodeName: "node2"}}
	for _, option := range options {
		option(pod)
	}
	return pod
}

func pending(pod *v1.Pod) { pod.Spec.NodeName = "" }
func ended(pod *v1.Pod)   { pod.Status.Phase = v1.PodSucceeded }
func ending(pod *v1.Pod)  { pod.DeletionTimestamp = &then }

func claim(preallocate bool, uid string) *v1alpha1.IPClaim {
	return &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "front", UID: types.UID(uid)}, Spec: v1alpha1.IPClaimSpec{Size: 3, Preallocate: preallocate}}
}

func workload(apiVersion, kind, name string) Workload {
	return Workload{GroupKind: schema.FromAPIVersionAndKind(apiVersion, kind).GroupKind(), Namespace: "shop", Name: name, UID: "new"}
}

// text is an item about an address, short.
func text(item *plan.Item) string {
	if item.Action == plan.Stale || item.Action == plan.Same || item.Action == plan.Conflict {
		return plan.Join(string(item.Action), item.Note)
	}
	spec := &item.IP.Spec
	words := []string{string(item.Action)}
	if spec.Owner != nil {
		uid := string(spec.Owner.UID)
		if spec.Owner.IsAwaited() {
			uid = "by name"
		}
		words = append(words, spec.Owner.Kind, spec.Owner.Name, "("+uid+")")
	}
	if spec.Pod != nil {
		words = append(words, fmt.Sprintf("pod %s", spec.Pod.Name))
	}
	if spec.Node != "" {
		words = append(words, "on "+spec.Node)
	}
	if spec.LastPod != "" {
		words = append(words, "last "+spec.LastPod)
	}
	if spec.Since != nil && !spec.Since.Equal(&then) {
		words = append(words, "since now")
	}
	if spec.Reserved && spec.Owner != nil && spec.Pod != nil {
		words = append(words, "reserved")
	}
	if spec.KeepUntil != nil {
		words = append(words, "kept for "+spec.KeepUntil.Sub(now).String())
	}
	return plan.Join(strings.Join(words, " "), item.Note)
}

// Each kind of record is restored, in each kind of cluster, or left out.
func TestRestoreAddress(t *testing.T) {
	kruise := workload("apps.kruise.io/v1beta1", "CloneSet", "web")
	for _, test := range []struct {
		name  string
		saved *v1alpha1.FloatingIP
		// the cluster's objects
		pods      []*v1.Pod
		workloads []Workload
		claims    []*v1alpha1.IPClaim // existing
		inBackup  []*v1alpha1.IPClaim
		existing  *v1alpha1.FloatingIP
		want      string
	}{
		{name: "its pod runs", saved: address(ofSet, held("web-0", "a")), pods: []*v1.Pod{pod("web-0", "a")},
			want: "create StatefulSet web (old) pod web-0 on node2"},
		{name: "its pod runs, whatever the policy", saved: address(ofDeployment, held("gate-x", "a"), policy(v1alpha1.ReleasePodDeleted)), pods: []*v1.Pod{pod("gate-x", "a")},
			want: "create Deployment gate (old) pod gate-x on node2"},
		{name: "its pod is terminating", saved: address(ofSet, held("web-0", "a")), pods: []*v1.Pod{pod("web-0", "a", ending)},
			want: "create StatefulSet web (old) pod web-0 on node2"},
		{name: "its pod is not bound", saved: address(ofSet, held("web-0", "a")), pods: []*v1.Pod{pod("web-0", "a", pending)},
			want: "create StatefulSet web (by name) last web-0 since now kept for 24h0m0s; there is no StatefulSet shop/web now: kept for one of that name"},
		{name: "its pod has ended", saved: address(ofSet, held("web-0", "a"), policy(v1alpha1.ReleasePodDeleted)), pods: []*v1.Pod{pod("web-0", "a", ended)},
			want: "stale; freed with its pod, which is gone"},
		{name: "another pod has the name", saved: address(ofSet, held("web-0", "a")), pods: []*v1.Pod{pod("web-0", "b")}, workloads: []Workload{workload("apps/v1", "StatefulSet", "web")},
			want: "create StatefulSet web (new) last web-0 since now kept for 24h0m0s"},
		{name: "retained, the workload is there", saved: address(ofDeployment), workloads: []Workload{workload("apps/v1", "Deployment", "gate")},
			want: "create Deployment gate (new) kept for 24h0m0s"},
		{name: "the workload of another group", saved: address(ofDeployment), workloads: []Workload{workload("example.org/v1", "Deployment", "gate")},
			want: "create Deployment gate (by name) kept for 24h0m0s; there is no Deployment shop/gate now: kept for one of that name"},
		{name: "the workload of another kind", saved: address(ofDeployment), workloads: []Workload{workload("apps/v1", "StatefulSet", "gate")},
			want: "create Deployment gate (by name) kept for 24h0m0s; there is no Deployment shop/gate now: kept for one of that name"},
		{name: "the workload of another namespace", saved: address(ofDeployment), workloads: []Workload{{GroupKind: schema.GroupKind{Group: "apps", Kind: "Deployment"}, Namespace: "elsewhere", Name: "gate", UID: "new"}},
			want: "create Deployment gate (by name) kept for 24h0m0s; there is no Deployment shop/gate now: kept for one of that name"},
		{name: "custom kind, in another version", saved: address(ofCustom), workloads: []Workload{kruise},
			want: "create CloneSet web (new) kept for 24h0m0s"},
		{name: "Never", saved: address(ofDeployment, policy(v1alpha1.ReleaseNever)),
			want: "create Deployment gate (by name) kept for 24h0m0s; there is no Deployment shop/gate now: kept for one of that name"},
		{name: "bare pod", saved: address(ofPod, held("one-0", "old")), pods: []*v1.Pod{pod("one-0", "new")},
			want: "create Pod one-0 (new) last one-0 since now kept for 24h0m0s"},
		{name: "bare pod, not there", saved: address(ofPod, held("one-0", "old")),
			want: "create Pod one-0 (by name) last one-0 since now kept for 24h0m0s; there is no Pod shop/one-0 now: kept for one of that name"},
		{name: "of a claim in the backup", saved: address(ofClaim), inBackup: []*v1alpha1.IPClaim{claim(false, "old")},
			want: "create IPClaim front (by name) kept for 24h0m0s"},
		{name: "of a claim that is there", saved: address(ofClaim), claims: []*v1alpha1.IPClaim{claim(false, "new")},
			want: "create IPClaim front (new) kept for 24h0m0s"},
		{name: "of a claim that is nowhere", saved: address(ofClaim),
			want: "create IPClaim front (by name) kept for 24h0m0s; there is no IPClaim shop/front now: kept for one of that name"},
		{name: "PodDeleted of a claim", saved: address(ofClaim, held("x", "a"), policy(v1alpha1.ReleasePodDeleted)), inBackup: []*v1alpha1.IPClaim{claim(false, "old")},
			want: "stale; freed with its pod, which is gone"},
		{name: "PodDeleted of a claim that preallocates", saved: address(ofClaim, held("x", "a"), policy(v1alpha1.ReleasePodDeleted)), inBackup: []*v1alpha1.IPClaim{claim(true, "old")},
			want: "create IPClaim front (by name) last x since now kept for 24h0m0s"},
		{name: "attached to a node", saved: address(ofSet, held("web-0", "a"), attached), workloads: []Workload{workload("apps/v1", "StatefulSet", "web")},
			want: "create StatefulSet web (new) on node1 last web-0 since now kept for 24h0m0s"},
		{name: "in no pool", saved: address(ofDeployment, func(spec *v1alpha1.FloatingIPSpec) { spec.Pool = "lost" }), workloads: []Workload{workload("apps/v1", "Deployment", "gate")},
			want: `create Deployment gate (new) kept for 24h0m0s; there is no IPPool "lost": its owner cannot use it before a pool has it`},
		{name: "reserved", saved: address(reserved), want: "create"},
		{name: "reserved with a pod", saved: address(reserved, ofSet, held("web-0", "a")), want: "create StatefulSet web (old) last web-0 since now"},
		{name: "somebody else's", saved: address(), want: "create"},
		{name: "at rest", saved: address(resting(time.Minute)), want: "create last web-0 kept for 4m0s; at rest"},
		{name: "at rest long enough", saved: address(resting(5 * time.Minute)), want: "stale; its cooldown is over"},

		{name: "there already", saved: address(ofSet, held("web-0", "a")), existing: address(owned("apps/v1", "StatefulSet", "web", "new"), held("web-0", "b")), want: "same"},
		{name: "there already, and its pod runs", saved: address(ofSet, held("web-0", "a")), pods: []*v1.Pod{pod("web-0", "a")}, existing: address(ofSet, held("web-0", "a")), want: "same"},
		{name: "there without the pod that runs", saved: address(ofSet, held("web-0", "a")), pods: []*v1.Pod{pod("web-0", "a")}, existing: address(ofSet),
			want: "update StatefulSet web (old) pod web-0 on node2; pod web-0 runs with it"},
		{name: "there with a pod that is gone instead of the one that runs", saved: address(ofDeployment, held("gate-x", "a")), pods: []*v1.Pod{pod("gate-x", "a")}, existing: address(ofDeployment, held("gate-y", "b")),
			want: "update Deployment gate (old) pod gate-x on node2; pod gate-x runs with it"},
		{name: "two pods run", saved: address(ofDeployment, held("gate-x", "a")), pods: []*v1.Pod{pod("gate-x", "a"), pod("gate-y", "b")}, existing: address(ofDeployment, held("gate-y", "b")),
			want: "conflict; pod gate-y runs with it, too"},
		{name: "held by another", saved: address(ofSet), workloads: []Workload{workload("apps/v1", "StatefulSet", "web")}, existing: address(ofDeployment, held("gate-y", "b")),
			want: "conflict; now it is held by pod gate-y of Deployment shop/gate"},
		{name: "retained for another, while its pod runs", saved: address(ofSet, held("web-0", "a")), pods: []*v1.Pod{pod("web-0", "a")}, existing: address(ofDeployment),
			want: "conflict; now it is retained for Deployment shop/gate"},
		{name: "held by another, and nobody wants it", saved: address(ofSet, held("web-0", "a"), policy(v1alpha1.ReleasePodDeleted)), existing: address(ofDeployment),
			want: "stale; freed with its pod, which is gone"},
		{name: "reserved meanwhile", saved: address(ofSet), workloads: []Workload{workload("apps/v1", "StatefulSet", "web")}, existing: address(reserved), want: "conflict; now it is reserved"},
		{name: "not reserved any more", saved: address(reserved), existing: address(ofDeployment), want: "conflict; now it is retained for Deployment shop/gate"},
		{name: "still reserved", saved: address(reserved), existing: address(reserved), want: "same"},
		{name: "freed meanwhile, and at rest", saved: address(ofSet), workloads: []Workload{workload("apps/v1", "StatefulSet", "web")}, existing: address(resting(0)),
			want: "update StatefulSet web (new) kept for 24h0m0s; now it is at rest"},
		{name: "somebody made it by hand", saved: address(ofSet), workloads: []Workload{workload("apps/v1", "StatefulSet", "web")}, existing: address(), want: "conflict; now it is without an owner"},
		{name: "at rest, used again", saved: address(resting(0)), existing: address(ofSet), want: "stale; in use again: now it is retained for StatefulSet shop/web"},
		{name: "still at rest", saved: address(resting(0)), existing: address(resting(0)), want: "same; at rest"},
	} {
		t.Run(test.name, func(t *testing.T) {
			pool := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1alpha1.IPPoolSpec{Cooldown: &metav1.Duration{Duration: 5 * time.Minute}}}
			input := &Input{
				Saved:    &Objects{Pools: []*v1alpha1.IPPool{pool}, IPs: []*v1alpha1.FloatingIP{test.saved}, Claims: test.inBackup},
				Existing: &Objects{Claims: test.claims}, Namespaces: []string{"shop"},
				Pods: test.pods, Workloads: test.workloads, Now: now, KeepUntil: now.Add(24 * time.Hour),
			}
			if test.existing != nil {
				input.Existing.IPs = append(input.Existing.IPs, test.existing)
			}
			before := test.saved.DeepCopy()
			items := Restore(input).Items
			item := &items[len(items)-1]
			if got := text(item); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if item.Action == plan.Update != (item.Seen == test.existing && item.Seen != nil) {
				t.Errorf("%s of %v", item.Action, item.Seen)
			}
			if item.IP.UID != "" || item.IP.ResourceVersion != "" || item.IP.Labels["a"] != "b" {
				t.Errorf("it is written with %+v", item.IP.ObjectMeta)
			}
			if diff := cmp.Diff(before, test.saved); diff != "" {
				t.Errorf("the input was modified:\n%s", diff)
			}
		})
	}
}

func TestRestorePoolsAndClaims(t *testing.T) {
	pool := func(name string, disabled bool) *v1alpha1.IPPool {
		return &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IPPoolSpec{Subnet: "10.0.70.0/24", Disabled: disabled}}
	}
	there, elsewhere := claim(true, "x"), claim(true, "x")
	elsewhere.Namespace = "elsewhere"
	larger := claim(true, "x")
	larger.Name = "larger"
	smaller := larger.DeepCopy()
	smaller.Spec.Size--
	made := Restore(&Input{
		Saved: &Objects{
			Pools:  []*v1alpha1.IPPool{pool("c", false), pool("b", false), pool("a", false)},
			Claims: []*v1alpha1.IPClaim{larger, there, elsewhere},
		},
		Existing:   &Objects{Pools: []*v1alpha1.IPPool{pool("b", false), pool("c", true)}, Claims: []*v1alpha1.IPClaim{smaller}},
		Namespaces: []string{"shop"},
	})
	var got []string
	for _, item := range made.Items {
		got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s/%s %s", item.Action, item.Kind, item.Namespace, item.Name, item.Note)))
	}
	want := []string{
		"create IPPool /a", "same IPPool /b", "differs IPPool /c it exists with another spec and is not changed",
		"skip IPClaim elsewhere/front there is no namespace elsewhere: create it and run this again; the addresses wait for the claim",
		"create IPClaim shop/front", "differs IPClaim shop/larger it exists with another spec and is not changed",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if made.Undecided() != 1 {
		t.Errorf("%d are undecided", made.Undecided())
	}
}

func TestKinds(t *testing.T) {
	got := OwnerKinds(&Objects{IPs: []*v1alpha1.FloatingIP{address(ofSet), address(ofCustom), address(ofClaim), address(ofPod), address(), address(ofSet)}})
	want := []schema.GroupKind{{Group: "apps", Kind: "StatefulSet"}, {Group: "apps.kruise.io", Kind: "CloneSet"}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The output of kubectl can be read, too, and objects are read as they were
// written.
func TestAdd(t *testing.T) {
	deleted := claim(false, "x")
	deleted.Name, deleted.DeletionTimestamp = "ending", &then
	owned := claim(true, "x")
	owned.OwnerReferences, owned.Finalizers = []metav1.OwnerReference{{Kind: "Tenant", UID: "t"}}, []string{"example.org/x"}
	six := address(ofSet)
	six.Name, six.Spec.Address = "2001-0db8-0000-0000-0000-0000-0000-0002", "2001:db8::2"
	ten := address(ofSet)
	ten.Name, ten.Spec.Address = "10.0.70.10", "10.0.70.10"
	ten.Labels, ten.Annotations = map[string]string{"rack": "1"}, map[string]string{"note": "of the firewall"}
	clean := Clean(&Objects{Claims: []*v1alpha1.IPClaim{owned, deleted}, IPs: []*v1alpha1.FloatingIP{six, ten, address(ofSet, held("web-0", "a"))}})
	if len(clean.Claims) != 1 || clean.Claims[0].OwnerReferences != nil || clean.Claims[0].Finalizers != nil {
		t.Errorf("the claims are %+v", clean.Claims)
	}
	if saved := clean.IPs[1]; !maps.Equal(saved.Labels, ten.Labels) || !maps.Equal(saved.Annotations, ten.Annotations) {
		t.Errorf("%s has the labels %v and annotations %v", saved.Name, saved.Labels, saved.Annotations)
	}
	read := &Objects{}
	var names []string
	for _, ip := range clean.IPs {
		names = append(names, ip.Name)
		document, err := json.Marshal(ip)
		if err != nil {
			t.Fatal(err)
		}
		if err := read.Add(fmt.Appendf(nil, `{"kind":"FloatingIPList","items":[%s]}`, document)); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"10.0.70.2", "10.0.70.10", six.Name}; !slices.Equal(names, want) {
		t.Errorf("the order is %q", names)
	}
	if diff := cmp.Diff(clean.IPs, read.IPs); diff != "" {
		t.Error(diff)
	}
	if err := read.CheckNames(); err != nil {
		t.Error(err)
	}
	twice := &Objects{IPs: append(read.IPs, ten), Claims: []*v1alpha1.IPClaim{owned, owned}, Pools: []*v1alpha1.IPPool{{}}}
	if n := twice.Len(); n != 7 {
		t.Errorf("there are %d objects", n)
	}
	if err := twice.CheckNames(); err == nil || err.Error() != "IPClaim shop/front occurs twice: remove the older one\nFloatingIP 10.0.70.10 occurs twice: remove the older one" {
		t.Errorf("two of a name: %v", err)
	}
	for document, want := range map[string]string{
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}`:                                  "v1 Pod a: a backup has berth.dev/v1alpha1 BGPPeers, FloatingIPs, IPClaims, IPPools, NetworkProfiles",
		`{"apiVersion":"berth.dev/v1alpha1","kind":"NodeAssignment","metadata":{"name":"a"}}`:       "berth.dev/v1alpha1 NodeAssignment a: a backup has",
		`{"apiVersion":"berth.dev/v1alpha1","kind":"Pod","metadata":{"name":"a"}}`:                  "berth.dev/v1alpha1 Pod a: a backup has",
		`{"apiVersion":"berth.dev/v1alpha1","kind":"IPPool"}`:                                       "IPPool without metadata.name",
		`{"apiVersion":"berth.dev/v1alpha1","kind":"FloatingIP","metadata":{"name":"web"}}`:         "berth.dev/v1alpha1 FloatingIP web: parse",
		`{"kind":"List","items":[{"kind":"ConfigMap","apiVersion":"v1"}]}`:                          "items[0]: v1 ConfigMap",
		`{"apiVersion":"berth.dev/v1alpha1","kind":"IPPool","metadata":{"name":"a"},"spec":"none"}`: "berth.dev/v1alpha1 IPPool a: cannot restore struct",
		`[]`: "not a Kubernetes object",
	} {
		if err := read.Add([]byte(document)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: error %v, want one that begins with %q", document, err, want)
		}
	}
}

// A backup has all kinds of Berth's objects but the ones that berth-controller makes of others, and
// a restore creates what is missing.
func TestEachKind(t *testing.T) {
	saved := &Objects{}
	for _, kind := range v1alpha1.Kinds() {
		document := fmt.Appendf(nil, `{"apiVersion":"berth.dev/v1alpha1","kind":%q,"metadata":{"name":"10.0.70.2","uid":"a","finalizers":["a/b"]},"spec":{"address":"10.0.70.2"},"status":{}}`, kind)
		if err := saved.Add(document); (err != nil) != (kind == "NodeAssignment") {
			t.Errorf("%s: %v", kind, err)
		}
	}
	clean := Clean(saved)
	if n := clean.Len(); n != len(Kinds()) || n != len(v1alpha1.Kinds())-1 {
		t.Errorf("%d objects of the kinds %q", n, Kinds())
	}
	if other := clean.Others[0]; other.GetUID() != "" || other.GetFinalizers() != nil || other.Object["status"] != nil || other.Object["spec"] == nil {
		t.Errorf("an object in a backup is %v", other)
	}
	if err := saved.CheckNames(); err != nil {
		t.Error(err)
	}
	if err := (&Objects{Others: append(saved.Others, saved.Others...)}).CheckNames(); err == nil || !strings.Contains(err.Error(), "BGPPeer 10.0.70.2 occurs twice") {
		t.Errorf("two of a name: %v", err)
	}
	existing := &Objects{Others: []*unstructured.Unstructured{clean.Others[0].DeepCopy(), clean.Others[1].DeepCopy()}}
	existing.Others[1].Object["spec"] = map[string]any{}
	for name, want := range map[string]struct {
		existing *Objects
		actions  []plan.Action
	}{
		"an empty cluster":  {&Objects{}, []plan.Action{plan.Create, plan.Create}},
		"one that has them": {existing, []plan.Action{plan.Same, plan.Differs}},
	} {
		var actions []plan.Action
		for _, item := range Restore(&Input{Saved: saved, Existing: want.existing, Now: now}).Items {
			if item.Other != nil {
				actions = append(actions, item.Action)
			}
		}
		if !slices.Equal(actions, want.actions) {
			t.Errorf("%s: the actions are %v, want %v", name, actions, want.actions)
		}
	}
}
