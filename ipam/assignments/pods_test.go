// SPDX-License-Identifier: Apache-2.0

package assignments

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/ipam/preallocation"
	"github.com/berth-dev/berth/ipam/view"
)

// told is a controller that has seen these pods, what agents tell, and its writes.
type told struct {
	*Assignments
	kube *fake.Clientset
}

func telling(t *testing.T, agents map[string][]v1alpha1.PodResult, pods ...*v1.Pod) *told {
	t.Helper()
	api := ipamtest.NewServer().Client()
	seen := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	kube := fake.NewClientset()
	a := &Assignments{
		written: client.NewInformer[*v1alpha1.NodeAssignmentList](api.NodeAssignments, &v1alpha1.NodeAssignment{}, 0, cache.Indexers{}),
		pods:    corelisters.NewPodLister(seen), annotated: kube.CoreV1(),
	}
	for _, pod := range pods {
		if err := errors.Join(seen.Add(pod), kube.Tracker().Add(pod)); err != nil {
			t.Fatal(err)
		}
	}
	for node, all := range agents {
		if err := a.written.GetStore().Add(&v1alpha1.NodeAssignment{ObjectMeta: metav1.ObjectMeta{Name: node}, Status: v1alpha1.NodeAssignmentStatus{Pods: all}}); err != nil {
			t.Fatal(err)
		}
	}
	return &told{a, kube}
}

// patches returns the patches of pods, by name.
func (w *told) patches() map[string]string {
	all := map[string]string{}
	for _, action := range w.kube.Actions() {
		if patch, ok := action.(k8stesting.PatchAction); ok {
			all[strings.Join([]string{patch.GetNamespace(), patch.GetName(), patch.GetSubresource()}, "/")] += string(patch.GetPatch())
		}
	}
	return all
}

func podOn(node, name string, uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: uid}, Spec: v1.PodSpec{NodeName: node}}
}

func saying(name string, uid types.UID) v1alpha1.PodResult {
	return v1alpha1.PodResult{Namespace: "shop", Name: name, UID: uid, NetworkStatus: "[1]", HostPortsStatus: "[2]", PortMapping: "[3]"}
}

// What an agent tells of a pod of its node is written on that pod, through its status, and nothing
// else is written, whatever agents tell.
func TestAnnotate(t *testing.T) {
	written := `{"metadata":{"annotations":{"berth.dev/host-ports-status":"[2]","k8s.v1.cni.cncf.io/network-status":"[1]","tkestack.io/portmapping":"[3]"},"uid":"1"}}`
	for name, test := range map[string]struct {
		pod  *v1.Pod
		told v1alpha1.PodResult
		want map[string]string
	}{
		"a pod of its node":          {podOn("node1", "web-0", "1"), saying("web-0", "1"), map[string]string{"shop/web-0/status": written}},
		"some of it":                 {podOn("node1", "web-0", "1"), v1alpha1.PodResult{Namespace: "shop", Name: "web-0", UID: "1", NetworkStatus: "[1]"}, map[string]string{"shop/web-0/status": `{"metadata":{"annotations":{"k8s.v1.cni.cncf.io/network-status":"[1]"},"uid":"1"}}`}},
		"a pod of another node":      {podOn("node2", "web-0", "1"), saying("web-0", "1"), nil},
		"a pod of no node":           {podOn("", "web-0", "1"), saying("web-0", "1"), nil},
		"an earlier pod of the name": {podOn("node1", "web-0", "2"), saying("web-0", "1"), nil},
		"a pod that is gone":         {podOn("node1", "web-1", "1"), saying("web-0", "1"), nil},
		"a pod of another namespace": {podOn("node1", "web-0", "1"), v1alpha1.PodResult{Namespace: "other", Name: "web-0", UID: "1", NetworkStatus: "[1]"}, nil},
		"a pod of a node of no name": {podOn("", "web-0", ""), saying("web-0", ""), nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := telling(t, map[string][]v1alpha1.PodResult{"node1": {test.told}}, test.pod)
			if err := w.annotate(t.Context(), "node1"); err != nil {
				t.Fatal(err)
			}
			if err := w.annotate(t.Context(), "node2"); err != nil {
				t.Fatal(err)
			}
			if got := w.patches(); !maps.Equal(got, test.want) {
				t.Errorf("patches are %v, want %v", got, test.want)
			}
		})
	}
}

// There is no way to name another annotation.
func TestAnnotationsOfResults(t *testing.T) {
	var result v1alpha1.PodResult
	if err := json.Unmarshal([]byte(`{"namespace":"shop","name":"web-0","uid":"1","annotations":{"a":"b"},"berth.dev/floating-ips":"10.0.70.2","networkStatus":"[1]"}`), &result); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"k8s.v1.cni.cncf.io/network-status": "[1]"}, result.Annotations()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A pod that cannot be written keeps no other one from being written, and is written again later.
func TestAnnotateFails(t *testing.T) {
	w := telling(t, map[string][]v1alpha1.PodResult{"node1": {saying("web-0", "1"), saying("web-1", "2")}}, podOn("node1", "web-0", "1"), podOn("node1", "web-1", "2"))
	w.kube.PrependReactor("patch", "pods", func(action k8stesting.Action) (bool, runtime.Object, error) {
		return action.(k8stesting.PatchAction).GetName() == "web-0", nil, errors.New("too much")
	})
	if err := w.annotate(t.Context(), "node1"); err == nil || !strings.Contains(err.Error(), "shop/web-0") {
		t.Errorf("the error is %v, so nobody tries again", err)
	}
	if len(w.patches()) != 2 {
		t.Errorf("written are %v", w.patches())
	}
}

// An agent that tells of pods of other nodes is logged once for each.
func TestIgnoredOnce(t *testing.T) {
	w := telling(t, map[string][]v1alpha1.PodResult{"node1": {saying("web-0", "1")}}, podOn("node2", "web-0", "1"), podOn("node2", "web-1", "2"))
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	ctx := klog.NewContext(context.Background(), logger)
	lines := func() int {
		return strings.Count(logger.GetSink().(ktesting.Underlier).GetBuffer().String(), "Ignored what the agent")
	}
	for range 3 {
		if err := w.annotate(ctx, "node1"); err != nil {
			t.Fatal(err)
		}
	}
	if lines() != 1 {
		t.Errorf("%d lines after three looks, want 1", lines())
	}
	if err := w.written.GetStore().Update(&v1alpha1.NodeAssignment{ObjectMeta: metav1.ObjectMeta{Name: "node1"}, Status: v1alpha1.NodeAssignmentStatus{Pods: []v1alpha1.PodResult{saying("web-1", "2")}}}); err != nil {
		t.Fatal(err)
	}
	if err := w.annotate(ctx, "node1"); err != nil || lines() != 2 {
		t.Errorf("%d lines after another pod, %v, want 2", lines(), err)
	}
}

// Each node has a NodeAssignment, which goes with its Node. What its agent told before a pod was
// seen on the node is written when it is seen, and what it told while no controller led, when one
// does.
func TestToldBeforeSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, kube := ipamtest.NewServer(), fake.NewClientset(nodeOf("1", nil), podOn("node1", "before", "1"))
		seen, err := view.New(api.Client(), 0)
		if err != nil {
			t.Fatal(err)
		}
		book, err := ipam.New(seen, api.Store(), nil)
		if err != nil {
			t.Fatal(err)
		}
		factory := informers.NewSharedInformerFactory(kube, 0)
		loop, err := preallocation.NewLoop(book, seen, factory)
		if err != nil {
			t.Fatal(err)
		}
		a, err := New(loop, Parts{API: api.Client(), Nodes: kube.CoreV1().Nodes(), Pods: kube.CoreV1(), View: seen, Factory: factory})
		if err != nil {
			t.Fatal(err)
		}
		w := &told{a, kube}
		tell := func(names ...string) {
			t.Helper()
			var all []v1alpha1.PodResult
			for i, name := range names {
				all = append(all, saying(name, types.UID(fmt.Sprint(i+1))))
			}
			api.Put(&v1alpha1.NodeAssignment{ObjectMeta: metav1.ObjectMeta{Name: "node1"}, Status: v1alpha1.NodeAssignmentStatus{Pods: all}})
			synctest.Wait()
		}
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		factory.Start(ctx.Done())
		for _, run := range []func(context.Context){seen.Run, book.Run, a.Run} {
			group.Go(func() { run(ctx) })
		}
		tell("before")
		if len(w.patches()) > 0 {
			t.Errorf("before it leads, it writes %v", w.patches())
		}
		group.Go(func() { loop.Run(ctx) })
		synctest.Wait()
		if got := slices.Collect(maps.Keys(w.patches())); !slices.Equal(got, []string{"shop/before/status"}) {
			t.Errorf("when it leads, it writes %v", got)
		}
		tell()
		kube.ClearActions()
		tell("before")
		if len(w.patches()) != 1 {
			t.Errorf("when its agent tells again, it writes %v", w.patches())
		}

		tell("before", "unseen", "unbound")
		kube.ClearActions()
		unbound := podOn("", "unbound", "3")
		for _, pod := range []*v1.Pod{podOn("node1", "unseen", "2"), unbound} {
			if _, err := kube.CoreV1().Pods("shop").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if _, has := w.patches()["shop/unseen/status"]; !has || w.patches()["shop/unbound/status"] != "" {
			t.Errorf("with a pod that comes, it writes %v", w.patches())
		}
		unbound.Spec.NodeName = "node1"
		if _, err := kube.CoreV1().Pods("shop").Update(ctx, unbound, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, has := w.patches()["shop/unbound/status"]; !has {
			t.Errorf("with a pod that is bound, it writes %v", w.patches())
		}

		assignments := api.Client().NodeAssignments
		if err := assignments.Delete(ctx, "node1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if now, err := assignments.Get(ctx, "node1", metav1.GetOptions{}); err != nil || len(now.Spec.Addresses) > 0 || now.OwnerReferences[0].UID != "1" {
			t.Errorf("after somebody deleted it, the node has the NodeAssignment %+v, %v", now, err)
		}
		if err := kube.CoreV1().Nodes().Delete(ctx, "node1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if now, err := assignments.Get(ctx, "node1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("without a Node there is the NodeAssignment %+v, %v", now, err)
		}
		cancel()
		factory.Shutdown()
		group.Wait()
	})
}
