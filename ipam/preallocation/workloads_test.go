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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/view"
)

// world is Workloads on real informers, and the API server, the book of addresses and
// the events it writes. Time is the test's own.
type world struct {
	t        *testing.T
	kube     *fake.Clientset
	ips      *fcache.FakeControllerSource
	pools    *fcache.FakeControllerSource
	registry metrics.KubeRegistry

	mu     sync.Mutex
	free   []string
	fails  error
	now    map[string]*v1alpha1.FloatingIP
	events []string
}

// simulate runs a test with Workloads, as long as the test lasts.
func simulate(t *testing.T, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			t: t, ips: fcache.NewFakeControllerSource(), pools: fcache.NewFakeControllerSource(), registry: metrics.NewKubeRegistry(),
			kube: fake.NewClientset(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}), now: map[string]*v1alpha1.FloatingIP{},
		}
		w.pools.Add(pool("web", "10.0.0.0/24", "10.0.0.0/24"))
		factory := informers.NewSharedInformerFactory(w.kube, 0)
		informer := func(source cache.ListerWatcher, example runtime.Object) cache.SharedIndexInformer {
			return cache.NewSharedIndexInformer(source, example, 0, cache.Indexers{})
		}
		claims := fcache.NewFakeControllerSource()
		seen, err := view.Of(informer(w.ips, &v1alpha1.FloatingIP{}), informer(w.pools, &v1alpha1.IPPool{}), informer(claims, &v1alpha1.IPClaim{}))
		if err != nil {
			t.Fatal(err)
		}
		parts := Parts{Kube: w.kube, Preallocator: w, Recorder: w, Metrics: NewMetrics(), View: seen, Factory: factory}
		w.registry.CustomMustRegister(parts.Metrics)
		workloads, err := newWorkloads(parts, clock.RealClock{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		factory.Start(ctx.Done())
		group.Go(func() { seen.Run(ctx) })
		group.Go(func() { workloads.Run(ctx) })
		test(w)
		cancel()
		w.ips.Shutdown()
		w.pools.Shutdown()
		claims.Shutdown()
		factory.Shutdown()
		group.Wait()
	})
}

// Preallocate is the book.
func (w *world) Preallocate(_ context.Context, request ipam.Request, count int) (made int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fails != nil {
		return 0, w.fails
	}
	for ; made < count; made++ {
		if len(w.free) == 0 {
			return made, &ipam.ShortageError{Reasons: []string{"none is free"}}
		}
		ip := newIP(w.free[0])
		ip.Spec.Owner.Name, ip.Spec.Owner.UID = request.Owner.Name, types.UID(request.Owner.UID)
		w.free = w.free[1:]
		w.now[ip.Name] = ip
		w.ips.Add(ip.DeepCopy())
	}
	return made, nil
}

func (w *world) Eventf(regarding, _ runtime.Object, _, reason, _, note string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, fmt.Sprintf("%s %s %s", regarding.(metav1.Object).GetName(), reason, fmt.Sprintf(note, args...)))
}

// release frees an address.
func (w *world) release(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ips.Delete(w.now[name])
	delete(w.now, name)
	w.free = append(w.free, name)
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *world) create(d *appsv1.Deployment) {
	w.t.Helper()
	if _, err := w.kube.AppsV1().Deployments("shop").Create(w.t.Context(), d, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) update(d *appsv1.Deployment) {
	w.t.Helper()
	d.Generation++
	if _, err := w.kube.AppsV1().Deployments("shop").Update(w.t.Context(), d, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// pass lets time pass until nothing happens any more.
func (w *world) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// want compares how many addresses a Deployment has, and the events since the last
// time, by their beginnings.
func (w *world) want(name string, n int, events ...string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	has := 0
	for _, ip := range w.now {
		if ip.Spec.Owner.Name == name {
			has++
		}
	}
	if has != n {
		w.t.Errorf("%s has %d addresses, want %d", name, has, n)
	}
	begin := cmp.Comparer(func(a, b string) bool { return strings.HasPrefix(a, b) || strings.HasPrefix(b, a) })
	if diff := cmp.Diff(events, w.events, begin, cmpopts.EquateEmpty()); diff != "" {
		w.t.Errorf("events: %s", diff)
	}
	w.events = nil
}

func addresses(n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("10.0.%d.%d", i/250, i%250+1))
	}
	return names
}

func TestTakesSet(t *testing.T) {
	simulate(t, func(w *world) {
		w.free = addresses(100)
		d := newDeployment("web", 3, 1)
		w.create(d)
		w.create(newDeployment("idle", 3, 1, v1alpha1.AnnotationPreallocate, "false"))
		w.pass(5 * time.Second)
		w.want("web", 4, "web Preallocated All 4 addresses of the fixed set are there.")
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
		*d.Spec.Replicas = 9
		w.update(d)
		w.pass(5 * time.Second)
		w.want("web", 10, "web Preallocated All 10")

		// One that somebody deletes is taken again.
		w.release("10.0.0.1")
		w.pass(5 * time.Second)
		w.want("web", 10, "web Preallocated All 10")

		d.Spec.Template.Annotations[v1alpha1.AnnotationPreallocate] = "false"
		w.update(d)
		w.pass(5 * time.Second)
		w.release("10.0.0.2")
		w.pass(5 * time.Second)
		w.want("web", 9)
	})
}

// A set is taken in portions, and nothing twice while the watch is behind.
func TestTakesMany(t *testing.T) {
	simulate(t, func(w *world) {
		w.free = addresses(1000)
		w.create(newDeployment("web", 500, 1))
		w.create(newDeployment("small", 1, 1))
		w.pass(10 * time.Second)
		w.set(func() { slices.Sort(w.events) })
		w.want("web", 501, "small Preallocated", "web Preallocated All 501")
		w.want("small", 2)
	})
}

func TestFallsShort(t *testing.T) {
	simulate(t, func(w *world) {
		w.free = addresses(2)
		w.create(newDeployment("web", 3, 1))
		w.pass(10 * time.Second)
		w.want("web", 2, "web PreallocationFailed PoolsExhausted: 2 of 4 IPv4 addresses: none is free")
		// By now it is tried once a minute, and told no more; an address that is freed
		// wakes it.
		w.pass(5 * time.Minute)
		w.want("web", 2)
		w.set(func() {
			w.now["10.0.9.9"] = newIP("10.0.9.9")
			w.now["10.0.9.9"].Spec.Owner.Name = "other"
			w.ips.Add(w.now["10.0.9.9"].DeepCopy())
			w.free = []string{"10.0.9.8"}
		})
		w.pass(time.Millisecond)
		w.release("10.0.9.9")
		w.pass(3 * time.Second)
		w.want("web", 4, "web Preallocated All 4")
	})
}

func TestPoolsChange(t *testing.T) {
	simulate(t, func(w *world) {
		w.free = addresses(9)
		w.create(newDeployment("web", 3, 1, v1alpha1.AnnotationPools, "later"))
		w.create(newDeployment("wrong", 3, 1, v1alpha1.AnnotationReleasePolicy, "PodDeleted"))
		w.pass(3 * time.Minute)
		w.set(func() { slices.Sort(w.events) })
		w.want("web", 0, `web PreallocationFailed NoSuchPool: 0 of 4 IPv4 addresses: there is no IPPool "later"`, "wrong PreallocationFailed Invalid: annotation berth.dev/preallocate")
		later := pool("later", "10.0.1.0/24", "10.0.1.0/24")
		w.pools.Add(later)
		w.pass(3 * time.Second)
		w.want("web", 4, "web Preallocated")
	})
}

func TestTakingFails(t *testing.T) {
	simulate(t, func(w *world) {
		w.free, w.fails = addresses(9), errors.New("the API server is tired")
		w.create(newDeployment("web", 3, 1))
		w.pass(10 * time.Second)
		w.want("web", 0, "web PreallocationFailed PreallocationFailed: 0 of 4")
		w.set(func() { w.fails = nil })
		w.pass(time.Minute)
		w.want("web", 4, "web Preallocated")
	})
}

// Nothing is taken for a workload that the API server does not have any more, though
// the cache does.
func TestGone(t *testing.T) {
	simulate(t, func(w *world) {
		w.free = addresses(9)
		d := newDeployment("web", 3, 1)
		other := d.DeepCopy()
		other.UID = "another"
		w.kube.PrependReactor("get", "deployments", reactWith(other))
		w.create(d)
		w.pass(5 * time.Second)
		w.want("web", 0)
	})
}

func reactWith(object runtime.Object) clienttesting.ReactionFunc {
	return func(clienttesting.Action) (bool, runtime.Object, error) { return true, object, nil }
}
