// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/customkind"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// record returns an address of an owner with UID "owner", made so many seconds
// after others, and held by a pod if one is named.
func record(name string, owner *v1alpha1.Owner, second int, pod string) *v1alpha1.FloatingIP {
	copied := *owner
	copied.UID = "owner"
	address, _ := v1alpha1.AddrOf(name)
	ip := &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(int64(second), 0))},
		Spec:       v1alpha1.FloatingIPSpec{Address: address.String(), Owner: &copied},
	}
	if pod != "" {
		ip.Spec.Pod, ip.Spec.Node = &v1alpha1.PodReference{Name: pod, UID: types.UID("uid of " + pod)}, "node1"
	}
	return ip
}

func TestStanding(t *testing.T) {
	deployment := shared("apps/v1", "Deployment")
	another := record("10.0.70.1", deployment, 0, "")
	another.Spec.Owner.UID = "another"
	const six = "2001-0db8-0000-0000-0000-0000-0000-0001"
	for _, test := range []struct {
		name     string
		siblings []*v1alpha1.FloatingIP
		want     []standing
	}{
		{"by age, then by name", []*v1alpha1.FloatingIP{
			record("10.0.70.3", deployment, 2, ""), record("10.0.70.4", deployment, 1, "a"), record("10.0.70.2", deployment, 2, "b"),
		}, []standing{{v1alpha1.IPv4, 2, 2, 1, 0}, {v1alpha1.IPv4, 0, 0, 1, 0}, {v1alpha1.IPv4, 1, 1, 1, 0}}},
		{"each family by itself", []*v1alpha1.FloatingIP{record("10.0.70.3", deployment, 1, ""), record(six, deployment, 2, "")},
			[]standing{{v1alpha1.IPv4, 0, 0, 2, 0}, {v1alpha1.IPv6, 0, 0, 2, 0}}},
		{"another workload of the name", []*v1alpha1.FloatingIP{record("10.0.70.3", deployment, 1, ""), another},
			[]standing{{v1alpha1.IPv4, 0, 0, 1, 0}, {v1alpha1.IPv4, 0, 0, 1, 0}}},
		{"each pod name by itself", []*v1alpha1.FloatingIP{record("10.0.70.3", set("web-0"), 1, ""), record("10.0.70.4", set("web-1"), 2, ""), record("10.0.70.5", set("web-0"), 3, "")},
			[]standing{{v1alpha1.IPv4, 0, 0, 1, 0}, {v1alpha1.IPv4, 0, 0, 1, 0}, {v1alpha1.IPv4, 1, 1, 1, 0}}},
		{"of a claim, addresses with pods first", []*v1alpha1.FloatingIP{record("10.0.70.3", claim, 1, ""), record("10.0.70.4", claim, 2, "a")},
			[]standing{{v1alpha1.IPv4, 1, 0, 1, 0}, {v1alpha1.IPv4, 0, 1, 1, 0}}},
		{"of a Deployment, addresses with pods first", []*v1alpha1.FloatingIP{record("10.0.70.3", deployment, 1, ""), record("10.0.70.4", deployment, 2, "a"), record("10.0.70.5", deployment, 3, "")},
			[]standing{{v1alpha1.IPv4, 1, 0, 1, 0}, {v1alpha1.IPv4, 0, 1, 1, 0}, {v1alpha1.IPv4, 2, 2, 1, 0}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRankings(func(*v1alpha1.FloatingIP) int64 { return 0 })
			for _, ip := range test.siblings {
				r.put(ip)
			}
			for i, ip := range test.siblings {
				if got, ok := r.standing(ip); !ok || got != test.want[i] {
					t.Errorf("%s: got %+v, want %+v", ip.Name, got, test.want[i])
				}
			}
		})
	}
}

// boundTo returns a pod that asks for so many addresses and is bound to node1, and whose kubelet
// has told these IPs. Its annotation says what its user wants.
func boundTo(name string, asks int64, told ...string) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid of " + name), Annotations: map[string]string{v1alpha1.AnnotationFloatingIPs: "10.0.70.4"}},
		Spec: v1.PodSpec{NodeName: "node1", Containers: []v1.Container{{
			Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1alpha1.ResourceIP: *resource.NewQuantity(asks, resource.DecimalSI)}},
		}}},
	}
	for _, ip := range told {
		pod.Status.PodIPs = append(pod.Status.PodIPs, v1.PodIP{IP: ip})
	}
	return pod
}

// Of the addresses recorded for a live pod, none that it may have is a leftover.
func TestClassify(t *testing.T) {
	at := func(name, node string) *v1alpha1.FloatingIP {
		ip := record(name, bare, 1, "web")
		ip.Spec.Node = node
		return ip
	}
	a, b, c := at("10.0.70.2", "node1"), at("10.0.70.3", "node1"), at("10.0.70.4", "node2")
	unbound := boundTo("web", 1)
	unbound.Spec.NodeName = ""
	for _, test := range []struct {
		name     string
		pod      *v1.Pod
		recorded []*v1alpha1.FloatingIP
		want     []bindingOf
	}{
		{"not bound yet", unbound, []*v1alpha1.FloatingIP{a, c}, []bindingOf{itsOwn, itsOwn}},
		{"its only one", boundTo("web", 1, a.Name), []*v1alpha1.FloatingIP{a}, []bindingOf{itsOwn}},
		{"one claimed for another node", boundTo("web", 1, a.Name), []*v1alpha1.FloatingIP{a, c}, []bindingOf{itsOwn, leftover}},
		{"the same, before it runs", boundTo("web", 1), []*v1alpha1.FloatingIP{a, c}, []bindingOf{itsOwn, itsOwn}},
		{"the same, and a slow scheduler wrote the one that it runs with", boundTo("web", 1, c.Name), []*v1alpha1.FloatingIP{a, c}, []bindingOf{itsOwn, misplaced}},
		{"the same, on another network", boundTo("web", 1, "10.244.0.9"), []*v1alpha1.FloatingIP{a, c}, []bindingOf{itsOwn, leftover}},
		{"several, all on its node", boundTo("web", 2, a.Name), []*v1alpha1.FloatingIP{a, b}, []bindingOf{itsOwn, itsOwn}},
		{"several, and one claimed for another node", boundTo("web", 2, a.Name), []*v1alpha1.FloatingIP{a, b, c}, []bindingOf{itsOwn, itsOwn, leftover}},
		{"more than it asks for on its node: two schedulers chose the same", boundTo("web", 1, a.Name), []*v1alpha1.FloatingIP{a, b}, []bindingOf{itsOwn, leftover}},
		{"the same, before it runs", boundTo("web", 1), []*v1alpha1.FloatingIP{a, b}, []bindingOf{itsOwn, itsOwn}},
		{"the same, on another network", boundTo("web", 1, "10.244.0.9"), []*v1alpha1.FloatingIP{a, b}, []bindingOf{itsOwn, itsOwn}},
		{"one of two recorded for another node, as a slow scheduler wrote", boundTo("web", 2), []*v1alpha1.FloatingIP{a, c}, []bindingOf{itsOwn, misplaced}},
		{"all recorded for another node", boundTo("web", 1), []*v1alpha1.FloatingIP{c}, []bindingOf{misplaced}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for i, ip := range test.recorded {
				if got := classify(ip, test.pod, test.recorded); got != test.want[i] {
					t.Errorf("%s: got %v, want %v", ip.Name, got, test.want[i])
				}
			}
		})
	}
}

func TestSuperseded(t *testing.T) {
	retained, other, second := record("10.0.70.2", set("web-0"), 1, ""), record("10.0.70.3", set("web-0"), 2, "web-0"), record("10.0.70.4", set("web-0"), 3, "web-0")
	stranger := record("10.0.70.9", bare, 3, "web-0")
	all := []*v1alpha1.FloatingIP{retained, other, second}
	for _, ip := range []*v1alpha1.FloatingIP{other, second, stranger} {
		ip.Spec.Node = "node1"
	}
	unbound := boundTo("web-0", 1)
	unbound.Spec.NodeName = ""
	for _, test := range []struct {
		name string
		ip   *v1alpha1.FloatingIP
		pod  *v1.Pod // nil: gone or finished
		want bool
	}{
		{"the pod has another", retained, boundTo("web-0", 1), true},
		{"the pod has two others", retained, boundTo("web-0", 2), true},
		{"the pod has two of three", retained, boundTo("web-0", 3), false},
		{"the pod has it and another", second, boundTo("web-0", 2), false},
		{"the pod is not bound", retained, unbound, false},
		{"the pod is gone", retained, nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			find := func(ip *v1alpha1.FloatingIP) (*v1.Pod, []*v1alpha1.FloatingIP) {
				return test.pod, []*v1alpha1.FloatingIP{other, second, stranger}
			}
			if got := superseded(test.ip, all, find); got != test.want {
				t.Errorf("got %v", got)
			}
		})
	}
	ofDeployment := record("10.0.70.2", shared("apps/v1", "Deployment"), 1, "")
	if superseded(ofDeployment, []*v1alpha1.FloatingIP{ofDeployment}, nil) {
		t.Error("the pods of a Deployment have no names that last")
	}
}

// An operator that has three instances replaced db-2 by db-4. Names with pods come first, then
// older ones.
func TestNamesBefore(t *testing.T) {
	r := &Reclaimer{index: cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexers())}
	names := map[string]*v1alpha1.FloatingIP{}
	add := func(address, uid, name string, made int, pod string) *v1alpha1.FloatingIP {
		ip := record(address, database(name), made, pod)
		ip.Spec.Owner.UID = types.UID(uid)
		if err := r.index.(cache.Indexer).Add(ip); err != nil {
			t.Fatal(err)
		}
		return ip
	}
	for i, pod := range []string{"db-1", "", "", "db-4"} {
		name := fmt.Sprintf("db-%d", i+1)
		names[name] = add(fmt.Sprintf("10.0.70.%d", 2+i), "owner", name, i, pod)
	}
	add("10.0.70.1", "owner", "db-3", 9, "") // the name has an older one
	add("10.0.70.9", "another", "db-0", 0, "")
	for name, want := range map[string]int64{"db-2": 2, "db-3": 3} {
		if got := r.namesBefore(names[name]); got != want {
			t.Errorf("%d names come before %s, want %d", got, name, want)
		}
	}
	if names["db-3"].Spec.Owner.Kind = "StatefulSet"; r.namesBefore(names["db-3"]) != 0 {
		t.Error("a StatefulSet's names are ranked, but its ordinals count")
	}
}

// hasOrdinal against counting one by one.
func TestHasOrdinal(t *testing.T) {
	w := workload{start: 2, replicas: 4, reserved: []customkind.Span{{First: 5, Last: 6}, {First: 0, Last: 3}, {First: 6, Last: 8}, {First: 11, Last: 11}}}
	var want, got []int64
	for ordinal, n := w.start, int64(0); n < w.replicas; ordinal++ {
		if !slices.ContainsFunc(w.reserved, func(s customkind.Span) bool { return s.First <= ordinal && ordinal <= s.Last }) {
			want, n = append(want, ordinal), n+1
		}
	}
	for ordinal := range int64(50) {
		if w.hasOrdinal(ordinal) {
			got = append(got, ordinal)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A worker's address is wanted while its leader's StatefulSet wants the leader, whatever the
// leader's template asks for.
func TestWantsWorkers(t *testing.T) {
	for _, test := range []struct {
		owner, pod string
		w          workload
		rank       int64
		keep       bool
		want       bool
	}{
		{owner: "web", pod: "web-1-3", w: workload{exists: true, replicas: 2}, want: true},
		{owner: "web", pod: "web-1-3", w: workload{exists: true, replicas: 2}, rank: 1, want: true},
		{owner: "web", pod: "web-1-3", w: workload{exists: true, replicas: 2, addressless: true}, want: true},
		{owner: "web", pod: "web-2-1", w: workload{exists: true, replicas: 2}},
		{owner: "web", pod: "web-2-1", w: workload{exists: true, replicas: 2}, keep: true, want: true},
		{owner: "web", pod: "web-1-3", w: workload{replicas: 2}},
		{owner: "web-1", pod: "web-1-3", w: workload{exists: true, replicas: 2}},
	} {
		owner := set(test.pod)
		owner.Name = test.owner
		w := test.w
		if !w.addressless {
			w.each.Total = 1
		}
		spec := &v1alpha1.FloatingIPSpec{Owner: owner, ReleasePolicy: v1alpha1.ReleaseRetain, KeepOnScaleDown: test.keep}
		if got := w.wants(spec, standing{family: v1alpha1.IPv4, rank: test.rank, age: test.rank, families: 1}); got != test.want {
			t.Errorf("%+v: wants the address: %v", test, got)
		}
	}
}

// Of a workload whose scale counts only some of its pods, no shared address is too many.
func TestWantsPartial(t *testing.T) {
	for partial, want := range map[bool]bool{true: true, false: false} {
		w := workload{exists: true, replicas: 2, partial: partial, each: podrequest.Demand{Total: 1}}
		spec := &v1alpha1.FloatingIPSpec{Owner: shared("kubeflow.org/v1", "PyTorchJob"), ReleasePolicy: v1alpha1.ReleaseRetain, LastPod: "train-master-0"}
		if got := w.wants(spec, standing{family: v1alpha1.IPv4, rank: 5, age: 5, families: 1}); got != want {
			t.Errorf("partial: %v: wants the address: %v", partial, got)
		}
	}
}
