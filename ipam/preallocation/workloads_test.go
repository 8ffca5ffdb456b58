// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/ipam/preallocation/preallocationtest"
	"github.com/berth-dev/berth/ipam/view"
)

// fixture is a Loop of workloads and the book of addresses on API servers in memory. Time is the
// test's own.
type fixture struct {
	*ipamtest.Server
	t        *testing.T
	kube     *fake.Clientset
	registry metrics.KubeRegistry
	ipam     *ipam.IPAM

	book preallocationtest.Book

	mu     sync.Mutex
	events []string
}

// simulate runs a test with a Loop of workloads, as long as the test lasts. There is a pool with
// these addresses.
func simulate(t *testing.T, addresses string, test func(w *fixture)) {
	synctest.Test(t, func(t *testing.T) {
		w := &fixture{
			t: t, Server: ipamtest.NewServer(pool("web", "10.0.0.0/16", addresses)), registry: metrics.NewKubeRegistry(),
			kube: fake.NewClientset(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", UID: "shop"}}),
		}
		seen, err := view.New(w.Client(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if w.ipam, err = ipam.New(seen, w.Store(), nil); err != nil {
			t.Fatal(err)
		}
		factory := informers.NewSharedInformerFactory(w.kube, 0)
		w.book.IPAM = w.ipam
		loop, err := NewLoop(&w.book, seen, factory)
		if err != nil {
			t.Fatal(err)
		}
		parts := Parts{Kube: w.kube, Recorder: w, Metrics: NewMetrics(), Factory: factory}
		w.registry.CustomMustRegister(parts.Metrics)
		if err := AddWorkloads(loop, parts); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		factory.Start(ctx.Done())
		group.Go(func() { seen.Run(ctx) })
		group.Go(func() { w.ipam.Run(ctx) })
		group.Go(func() { loop.Run(ctx) })
		synctest.Wait()
		test(w)
		cancel()
		factory.Shutdown()
		group.Wait()
	})
}

func (w *fixture) Eventf(regarding, _ runtime.Object, _, reason, _, note string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, fmt.Sprintf("%s %s %s", regarding.(metav1.Object).GetName(), reason, fmt.Sprintf(note, args...)))
}

// create makes Deployments when the loop knows of all that was there before.
func (w *fixture) create(deployments ...*appsv1.Deployment) {
	w.t.Helper()
	synctest.Wait()
	for _, d := range deployments {
		if _, err := w.kube.AppsV1().Deployments("shop").Create(w.t.Context(), d, metav1.CreateOptions{}); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *fixture) update(d *appsv1.Deployment) {
	w.t.Helper()
	d.Generation++
	if _, err := w.kube.AppsV1().Deployments("shop").Update(w.t.Context(), d, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// pass lets time pass until nothing happens any more.
func (w *fixture) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// of returns the names of a workload's addresses, sorted.
func (w *fixture) of(name string) []string {
	var names []string
	for _, ip := range w.IPs() {
		if ip.Spec.Owner != nil && ip.Spec.Owner.Name == name {
			names = append(names, ip.Name)
		}
	}
	slices.Sort(names)
	return names
}

// want compares how many addresses a workload has, and the events since the last
// time, sorted, by their beginnings.
func (w *fixture) want(name string, n int, events ...string) {
	w.t.Helper()
	if has := len(w.of(name)); has != n {
		w.t.Errorf("%s has %d addresses, want %d", name, has, n)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.Sort(w.events)
	begin := cmp.Comparer(func(a, b string) bool { return strings.HasPrefix(a, b) || strings.HasPrefix(b, a) })
	if diff := cmp.Diff(events, w.events, begin, cmpopts.EquateEmpty()); diff != "" {
		w.t.Errorf("events: %s", diff)
	}
	w.events = nil
}

func TestTakesSet(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.99", func(w *fixture) {
		d := newDeployment("web", 4, 1)
		w.create(d)
		w.create(newDeployment("idle", 4, 1, v1alpha1.AnnotationPreallocate, "false"))
		w.pass(5 * time.Second)
		w.want("web", 4, "web Preallocated All 4 addresses of the replicas are there.")
		w.want("idle", 0)
		if err := testutil.GatherAndCompare(w.registry, strings.NewReader(`
# HELP berth_fixed_set_preallocated_missing [ALPHA] How many of the addresses that a workload preallocates are missing.
# TYPE berth_fixed_set_preallocated_missing gauge
berth_fixed_set_preallocated_missing{kind="Deployment",namespace="shop",workload="web"} 0
# HELP berth_fixed_set_preallocated_size [ALPHA] How many addresses a workload preallocates.
# TYPE berth_fixed_set_preallocated_size gauge
berth_fixed_set_preallocated_size{kind="Deployment",namespace="shop",workload="web"} 4
`)); err != nil {
			t.Error(err)
		}
		d.Spec.Replicas = new(int32)
		*d.Spec.Replicas = 10
		w.update(d)
		w.pass(5 * time.Second)
		w.want("web", 10, "web Preallocated All 10")

		// One that somebody deletes is taken again.
		w.Remove(w.IP(w.of("web")[0]))
		w.pass(5 * time.Second)
		w.want("web", 10, "web Preallocated All 10")

		d.Spec.Template.Annotations[v1alpha1.AnnotationPreallocate] = "false"
		w.update(d)
		w.pass(5 * time.Second)
		w.Remove(w.IP(w.of("web")[0]))
		w.pass(5 * time.Second)
		w.want("web", 9)
	})
}

// A set is taken in portions, and nothing twice while the watch is behind.
func TestTakesMany(t *testing.T) {
	simulate(t, "10.0.0.0/22", func(w *fixture) {
		w.create(newDeployment("web", 501, 1))
		w.create(newDeployment("small", 2, 1))
		w.pass(10 * time.Second)
		w.want("web", 501, "small Preallocated", "web Preallocated All 501")
		w.want("small", 2)
	})
}

func TestFallsShort(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.4", func(w *fixture) {
		for _, name := range []string{"10.0.0.3", "10.0.0.4"} {
			ip := newIP(name)
			ip.Spec.Owner.Name = "other"
			w.Put(ip)
		}
		w.create(newDeployment("web", 4, 1))
		w.pass(10 * time.Second)
		w.want("web", 2, "web PreallocationFailed PoolsExhausted: 2 of 4 IPv4 addresses: ")
		// By now it is tried once a minute, and told no more; an address that is freed
		// wakes it.
		w.pass(5 * time.Minute)
		w.want("web", 2)
		w.Remove(w.IP("10.0.0.3"))
		w.Remove(w.IP("10.0.0.4"))
		w.pass(3 * time.Second)
		w.want("web", 4, "web Preallocated All 4")
	})
}

func TestPoolsChange(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		w.create(newDeployment("web", 4, 1, v1alpha1.AnnotationPools, "later"))
		w.create(newDeployment("wrong", 4, 1, v1alpha1.AnnotationReleasePolicy, "PodDeleted"))
		w.pass(3 * time.Minute)
		w.want("web", 0, `web PreallocationFailed NoSuchPool: 0 of 4 IPv4 addresses: there is no IPPool "later"`, "wrong PreallocationFailed Invalid: annotation berth.dev/preallocate")
		w.Put(pool("later", "10.0.1.0/24", "10.0.1.0/24"))
		w.pass(3 * time.Second)
		w.want("web", 4, "web Preallocated")
	})
}

func TestTakingFails(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		w.book.Fail(errors.New("the API server is tired"))
		w.create(newDeployment("web", 4, 1))
		w.pass(10 * time.Second)
		w.want("web", 0, "web PreallocationFailed PreallocationFailed: 0 of 4")
		w.book.Fail(nil)
		w.pass(time.Minute)
		w.want("web", 4, "web Preallocated")
	})
}

// Nothing is taken for a workload that the API server does not have any more, though
// the cache does.
func TestGone(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		d := newDeployment("web", 4, 1)
		other := d.DeepCopy()
		other.UID = "another"
		w.kube.PrependReactor("get", "deployments", reactWith(other))
		w.create(d)
		w.pass(5 * time.Second)
		w.want("web", 0)
	})
}

// While the watch is late nothing is taken twice, for some seconds.
func TestLateWatch(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		w.Late("floatingips")
		w.create(newDeployment("web", 2, 1))
		w.pass(4 * time.Second)
		w.want("web", 2)
	})
}

// At the cap of its namespace a workload waits for addresses that the namespace frees,
// with or without a cooldown.
func TestAtCap(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		capped := w.Pool("web")
		capped.Spec.MaxPerNamespace = 2
		w.Put(capped)
		for i, name := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
			ip := newIP(name)
			ip.Spec.Owner.Name, ip.Spec.Owner.Namespace = "x", []string{"shop", "shop", "other"}[i]
			w.Put(ip)
		}
		w.create(newDeployment("web", 2, 1))
		w.pass(100 * time.Second)
		w.want("web", 0, "web PreallocationFailed NamespaceAtCap")
		rest := func(name string) {
			ip := w.IP(name)
			ip.Spec.Owner, ip.Spec.ReleasedAt = nil, &metav1.Time{Time: time.Now()}
			w.Put(ip)
		}
		w.book.Tried()
		rest("10.0.0.3")
		w.pass(2 * Interval)
		if n := w.book.Tried(); n != 0 {
			t.Errorf("the address of another namespace woke it: %d attempts", n)
		}
		rest("10.0.0.1")
		rest("10.0.0.2")
		w.pass(2 * Interval)
		w.want("web", 2, "web Preallocated")
	})
}

// At the quota of its namespace a workload waits for a larger one, or for addresses that
// the namespace frees.
func TestAtQuota(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		quota := &v1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "ips"}, Spec: v1.ResourceQuotaSpec{
			Hard: v1.ResourceList{"requests." + v1alpha1.ResourceIP: resource.MustParse("2")},
		}}
		wider := quota.DeepCopy()
		wider.Name, wider.Spec.Hard["requests."+v1alpha1.ResourceIP] = "wider", resource.MustParse("9")
		for _, one := range []*v1.ResourceQuota{quota, wider} {
			if _, err := w.kube.CoreV1().ResourceQuotas("shop").Create(t.Context(), one, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		for i, name := range []string{"10.0.0.1", "10.0.0.2"} {
			ip := newIP(name)
			ip.Spec.Owner.Name, ip.Spec.Owner.Namespace = "x", []string{"shop", "other"}[i]
			w.Put(ip)
		}
		w.create(newDeployment("web", 4, 1))
		w.pass(100 * time.Second)
		w.want("web", 1, `web PreallocationFailed NamespaceAtQuota: 1 of 4 IPv4 addresses: a ResourceQuota allows namespace "shop" 2 addresses, and it has 2 (raise requests.berth.dev/ip`)
		quota.Spec.Hard["requests."+v1alpha1.ResourceIP] = resource.MustParse("4")
		if _, err := w.kube.CoreV1().ResourceQuotas("shop").Update(t.Context(), quota, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.pass(2 * Interval)
		w.want("web", 3)
		w.Remove(w.IP("10.0.0.1"))
		w.pass(2 * Interval)
		w.want("web", 4, "web Preallocated")
	})
}

// A change of a workload's status or of a namespace's metadata does not make a waiting
// workload try again; others do.
func TestChangesThatMatter(t *testing.T) {
	label := func(w *fixture, namespace, name string) {
		shop := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, UID: types.UID(namespace), Labels: map[string]string{name: ""}}}
		if _, err := w.kube.CoreV1().Namespaces().Update(w.t.Context(), shop, metav1.UpdateOptions{}); err != nil {
			w.t.Fatal(err)
		}
	}
	write := func(w *fixture, d *appsv1.Deployment) {
		if _, err := w.kube.AppsV1().Deployments("shop").Update(w.t.Context(), d, metav1.UpdateOptions{}); err != nil {
			w.t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name   string
		change func(w *fixture, d *appsv1.Deployment)
		tries  bool
	}{
		{"nothing", func(*fixture, *appsv1.Deployment) {}, false},
		{"the status", func(w *fixture, d *appsv1.Deployment) { d.Status.Replicas = 3; write(w, d) }, false},
		{"the replicas", func(w *fixture, d *appsv1.Deployment) { *d.Spec.Replicas = 5; w.update(d) }, true},
		{"a replacement", func(w *fixture, d *appsv1.Deployment) { d.UID = "another"; write(w, d) }, true},
		{"a label of the namespace", func(w *fixture, _ *appsv1.Deployment) { label(w, "shop", "new") }, true},
		{"the same labels of the namespace", func(w *fixture, _ *appsv1.Deployment) { label(w, "shop", "old") }, false},
		{"a label of another namespace", func(w *fixture, _ *appsv1.Deployment) { label(w, "other", "new") }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			simulate(t, "10.0.0.1", func(w *fixture) {
				if err := w.kube.Tracker().Add(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other", UID: "other"}}); err != nil {
					t.Fatal(err)
				}
				label(w, "shop", "old")
				other := newIP("10.0.0.1")
				other.Spec.Owner.Name = "other"
				w.Put(other)
				d := newDeployment("web", 4, 1)
				w.create(d)
				w.pass(130 * time.Second) // It is tried after 127 s, and then a minute later.
				w.book.Tried()
				test.change(w, d)
				w.pass(5 * time.Second)
				if tries := w.book.Tried() > 0; tries != test.tries {
					t.Errorf("it was tried again: %v, want %v", tries, test.tries)
				}
			})
		})
	}
}

// A workload that is being deleted, or that a controller adopts, is followed no longer.
func TestFollowedNoLonger(t *testing.T) {
	missing := func(w *fixture) int {
		families, err := w.registry.Gather()
		if err != nil {
			w.t.Fatal(err)
		}
		for _, family := range families {
			if family.GetName() == "berth_fixed_set_preallocated_missing" {
				return len(family.GetMetric())
			}
		}
		return 0
	}
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		d := newDeployment("web", 2, 1)
		r := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "rs", UID: "rs"}}
		r.Spec = appsv1.ReplicaSetSpec{Replicas: d.Spec.Replicas, Template: d.Spec.Template}
		w.create(d)
		if _, err := w.kube.AppsV1().ReplicaSets("shop").Create(t.Context(), r, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.pass(5 * time.Second)
		w.want("rs", 2, "rs Preallocated", "web Preallocated")
		if n := missing(w); n != 2 {
			t.Errorf("%d workloads are followed, want 2", n)
		}
		r.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))}
		if _, err := w.kube.AppsV1().ReplicaSets("shop").Update(t.Context(), r, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Second)
		if n := missing(w); n != 1 {
			t.Errorf("%d workloads are followed after one was adopted, want 1", n)
		}
		now := metav1.Now()
		d.DeletionTimestamp, d.Finalizers = &now, []string{"example.com/hold"}
		if _, err := w.kube.AppsV1().Deployments("shop").Update(t.Context(), d, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Second)
		if n := missing(w); n != 0 {
			t.Errorf("%d workloads are followed after the other is being deleted, want 0", n)
		}
	})
}

func reactWith(object runtime.Object) clienttesting.ReactionFunc {
	return func(clienttesting.Action) (bool, runtime.Object, error) { return true, object, nil }
}

// The API server is asked about a workload once for an attempt that takes addresses, and not for
// one that finds none, nor at each look at one that waits for its next attempt.
func TestAsksOnlyToTake(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.2", func(w *fixture) {
		w.create(newDeployment("web", 4, 1))
		w.pass(2 * time.Minute)
		for i := range 100 {
			ip := w.IP("10.0.0.1")
			ip.Spec.Since = &metav1.Time{Time: time.Unix(int64(i), 0)}
			w.Put(ip)
			w.pass(2 * Gather)
		}
		tried, asked := w.book.Tried(), 0
		for _, action := range w.kube.Actions() {
			if action.Matches("get", "deployments") {
				asked++
			}
		}
		if tried < 10 || asked != 1 {
			t.Errorf("%d attempts in which its addresses changed all the time; the API server was asked %d times for the two that it took", tried, asked)
		}
	})
}
