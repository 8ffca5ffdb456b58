// SPDX-License-Identifier: Apache-2.0

package wrongaddress

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// world has pods, the records of their addresses, and what the Finder does.
type world struct {
	t       *testing.T
	pods    cache.Indexer
	records map[types.UID][]*v1alpha1.FloatingIP
	finder  *Finder
	said    []string
	evicted []string
	refuse  error
}

func newWorld(t *testing.T, evicts bool) *world {
	w := &world{
		t: t, pods: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}),
		records: map[types.UID][]*v1alpha1.FloatingIP{},
	}
	count := NewCount()
	metrics.NewKubeRegistry().MustRegister(count)
	config := Config{
		Pods: corelisters.NewPodLister(w.pods), Recorded: func(uid types.UID) []*v1alpha1.FloatingIP { return w.records[uid] },
		Events: w, Count: count,
	}
	if evicts {
		config.Evict = func(_ context.Context, eviction *policyv1.Eviction) error {
			w.evicted = append(w.evicted, eviction.Name+" "+string(*eviction.DeleteOptions.Preconditions.UID))
			return w.refuse
		}
	}
	w.finder = New(config)
	return w
}

func (w *world) Eventf(regarding, _ runtime.Object, kind, reason, _, note string, args ...any) {
	w.said = append(w.said, strings.Join([]string{kind, reason, regarding.(*v1.Pod).Name, fmt.Sprintf(note, args...)}, " "))
}

// pod adds a running pod, and the records of the addresses that named has it hold, or of 10.0.70.2.
// A user has dropped the annotation.
func (w *world) pod(name, ip string, options ...func(*v1.Pod)) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name + "-uid"), Annotations: map[string]string{v1alpha1.AnnotationFloatingIPs: "10.0.70.2"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "StatefulSet", Name: "web", Controller: new(true)}}},
		Spec:   v1.PodSpec{NodeName: "node7"},
		Status: v1.PodStatus{Phase: v1.PodRunning, PodIPs: []v1.PodIP{{IP: ip}}},
	}
	for _, option := range options {
		option(pod)
	}
	for name := range strings.SplitSeq(pod.Annotations[v1alpha1.AnnotationFloatingIPs], ",") {
		w.records[pod.UID] = append(w.records[pod.UID], &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	delete(pod.Annotations, v1alpha1.AnnotationFloatingIPs)
	if err := w.pods.Add(pod); err != nil {
		w.t.Fatal(err)
	}
	return pod
}

func named(names string) func(*v1.Pod) {
	return func(pod *v1.Pod) { pod.Annotations[v1alpha1.AnnotationFloatingIPs] = names }
}

func withIPs(ips ...string) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		pod.Status.PodIPs = nil
		for _, ip := range ips {
			pod.Status.PodIPs = append(pod.Status.PodIPs, v1.PodIP{IP: ip})
		}
	}
}

// A pod counts only if none of its recorded addresses is among its IPs.
func TestOf(t *testing.T) {
	const six = "2001-0db8-0000-0000-0000-0000-0000-0002"
	wrong := []netip.Addr{netip.MustParseAddr("10.0.70.2")}
	for name, test := range map[string]struct {
		option func(*v1.Pod)
		want   []netip.Addr
	}{
		"its own":            {withIPs("10.0.70.2"), nil},
		"another":            {withIPs("10.244.0.9"), wrong},
		"two others":         {withIPs("10.244.0.9", "fd00::9"), wrong},
		"one of several":     {func(pod *v1.Pod) { named("10.0.70.2,10.0.70.3")(pod); withIPs("10.0.70.2")(pod) }, nil},
		"none of several":    {named("10.0.70.2," + six), append(slices.Clone(wrong), netip.MustParseAddr("2001:db8::2"))},
		"IPv6 in short":      {func(pod *v1.Pod) { named(six)(pod); withIPs("2001:db8::2")(pod) }, nil},
		"not started":        {withIPs(), nil},
		"pending":            {func(pod *v1.Pod) { pod.Status.Phase = v1.PodPending }, nil},
		"finished":           {func(pod *v1.Pod) { pod.Status.Phase = v1.PodSucceeded }, nil},
		"being deleted":      {func(pod *v1.Pod) { pod.DeletionTimestamp = &metav1.Time{} }, nil},
		"the node's network": {func(pod *v1.Pod) { pod.Spec.HostNetwork = true }, nil},
		"several networks":   {func(pod *v1.Pod) { pod.Annotations[v1alpha1.AnnotationNetworks] = "vlan7" }, nil},
		"networks, dropped":  {func(pod *v1.Pod) { pod.Annotations[v1alpha1.AnnotationNetworkStatus] = "[]" }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, false)
			if got := Of(w.pod("web-0", "10.244.0.9", test.option), w.finder.Recorded); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
	if got := Of(&v1.Pod{Status: v1.PodStatus{Phase: v1.PodRunning, PodIPs: []v1.PodIP{{IP: "10.244.0.9"}}}}, newWorld(t, false).finder.Recorded); got != nil {
		t.Errorf("a pod without a record: %v", got)
	}
}

// A pod is told once, and counted as long as it runs so.
func TestFinderTells(t *testing.T) {
	w := newWorld(t, false)
	w.pod("good", "10.0.70.3", named("10.0.70.3"))
	bad := w.pod("bad", "10.244.0.9")
	for range 3 {
		w.finder.round(t.Context())
	}
	want := []string{"Warning WrongAddress bad The pod runs with 10.244.0.9 on node node7 instead of its own 10.0.70.2, for which no node answers: another CNI plugin made the pod's network. Delete the pod, so that it gets its address on a node with a ready agent"}
	if !slices.Equal(w.said, want) {
		t.Errorf("said %q, want %q", w.said, want)
	}
	w.counts(1)
	if err := w.pods.Delete(bad); err != nil {
		t.Fatal(err)
	}
	w.finder.round(t.Context())
	w.counts(0)
	if len(w.evicted) > 0 {
		t.Errorf("evicted %v without being told to", w.evicted)
	}
}

func (w *world) counts(want float64) {
	w.t.Helper()
	if got, err := testutil.GetGaugeMetricValue(w.finder.Count); err != nil || got != want {
		w.t.Errorf("counted %v, %v; want %v", got, err, want)
	}
}

// Pods that were found twice are evicted, a few in each round, and not again and again.
func TestFinderEvicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, true)
		w.pod("bare", "10.244.0.8", named("10.0.70.3"), func(pod *v1.Pod) { pod.OwnerReferences = nil })
		w.pod("bad", "10.244.0.9")
		w.finder.round(t.Context())
		if len(w.evicted) > 0 {
			t.Fatalf("evicted %v at first sight", w.evicted)
		}
		w.refuse = errors.New("the disruption budget needs 3 healthy pods")
		w.finder.round(t.Context())
		w.refuse = nil
		w.finder.round(t.Context())
		w.finder.round(t.Context())
		if want := []string{"bad bad-uid", "bad bad-uid"}; !slices.Equal(w.evicted, want) {
			t.Fatalf("evicted %v, want %v: once refused, and once", w.evicted, want)
		}
		// Its next pod has a wrong address, too.
		w.evicted = nil
		w.pod("bad", "10.244.0.10", func(pod *v1.Pod) { pod.UID = "next-uid" })
		w.finder.round(t.Context())
		w.finder.round(t.Context())
		if len(w.evicted) > 0 {
			t.Fatalf("evicted %v, which had been evicted a moment before", w.evicted)
		}
		<-time.After(rest)
		w.finder.round(t.Context())
		if want := []string{"bad next-uid"}; !slices.Equal(w.evicted, want) {
			t.Fatalf("evicted %v, want %v", w.evicted, want)
		}

		w = newWorld(t, true)
		for i := range 2 * mostEvictions {
			w.pod(fmt.Sprintf("web-%d", i), "10.244.0.9", named(fmt.Sprintf("10.0.70.%d", 2+i)))
		}
		w.finder.round(t.Context())
		for _, want := range []int{mostEvictions, 2 * mostEvictions, 2 * mostEvictions} {
			w.finder.round(t.Context())
			if len(w.evicted) != want {
				t.Errorf("evicted %d pods, want %d", len(w.evicted), want)
			}
		}
	})
}
