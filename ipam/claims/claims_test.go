// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/store"
	"github.com/berth-dev/berth/ipam/view"
)

// world is a Controller on real informers, and the API server, the book of
// addresses and the events it writes. Time is the test's own.
type world struct {
	t          *testing.T
	controller *Controller
	registry   metrics.KubeRegistry

	mu     sync.Mutex
	claims *kind[*v1alpha1.IPClaim]
	ips    *kind[*v1alpha1.FloatingIP]
	pools  *kind[*v1alpha1.IPPool]
	// free addresses that Preallocate gives, and why it fails otherwise.
	free       []string
	bookFails  error
	events     []string
	statuses   []string // of claims that were written
	statusErrs map[string]error
	// behind: the watch does not bring statuses.
	behind bool
}

type object interface {
	comparable
	runtime.Object
	metav1.Object
}

// kind is the objects of one kind at the API server.
type kind[T object] struct {
	source *fcache.FakeControllerSource
	now    map[string]T
}

func newKind[T object]() *kind[T] {
	return &kind[T]{source: fcache.NewFakeControllerSource(), now: map[string]T{}}
}

func (k *kind[T]) informer(example T) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(k.source, example, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
}

func (k *kind[T]) put(o T) T {
	var none T
	key := o.GetNamespace() + "/" + o.GetName()
	o = o.DeepCopyObject().(T)
	if k.now[key] == none {
		k.source.Add(o)
	} else {
		k.source.Modify(o)
	}
	k.now[key] = o
	return o.DeepCopyObject().(T)
}

func (k *kind[T]) remove(namespace, name string) {
	key := namespace + "/" + name
	k.source.Delete(k.now[key].DeepCopyObject())
	delete(k.now, key)
}

// simulate runs a test with a Controller, as long as the test lasts.
func simulate(t *testing.T, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			t: t, registry: metrics.NewKubeRegistry(),
			claims: newKind[*v1alpha1.IPClaim](), ips: newKind[*v1alpha1.FloatingIP](), pools: newKind[*v1alpha1.IPPool](),
			statusErrs: map[string]error{},
		}
		namespaces := newKind[*v1.Namespace]()
		namespaces.put(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, UID: "now"}})
		w.pools.put(&v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "web"}, Spec: v1alpha1.IPPoolSpec{Subnet: "10.0.0.0/24", Ranges: []string{"10.0.0.0/24"}}})

		w.controller = &Controller{
			api: apiFake{w}, store: storeFake{w}, preallocator: w, recorder: w, metrics: NewMetrics(), clock: clock.RealClock{},
		}
		w.registry.CustomMustRegister(w.controller.metrics)
		seen, err := view.Of(w.ips.informer(&v1alpha1.FloatingIP{}), w.pools.informer(&v1alpha1.IPPool{}), w.claims.informer(&v1alpha1.IPClaim{}))
		if err != nil {
			t.Fatal(err)
		}
		parts := Parts{View: seen, Namespaces: namespaceInformer{namespaces.informer(&v1.Namespace{})}}
		if err := w.controller.watch(parts); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { seen.Run(ctx) })
		group.Go(func() { parts.Namespaces.Informer().RunWithContext(ctx) })
		group.Go(func() { w.controller.Run(ctx) })
		test(w)
		cancel()
		for _, source := range []*fcache.FakeControllerSource{w.claims.source, w.ips.source, w.pools.source, namespaces.source} {
			source.Shutdown()
		}
		group.Wait()
	})
}

type namespaceInformer struct{ informer cache.SharedIndexInformer }

func (n namespaceInformer) Informer() cache.SharedIndexInformer { return n.informer }
func (n namespaceInformer) Lister() corelisters.NamespaceLister {
	return corelisters.NewNamespaceLister(n.informer.GetIndexer())
}

// apiFake and storeFake are the API server.
type apiFake struct{ w *world }

func (a apiFake) get(_ context.Context, namespace, name string) (*v1alpha1.IPClaim, error) {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	claim := a.w.claims.now[namespace+"/"+name]
	if claim == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "ipclaims"}, name)
	}
	return claim.DeepCopy(), nil
}

func (a apiFake) writeStatus(_ context.Context, claim *v1alpha1.IPClaim, status *v1alpha1.IPClaimStatus) (*v1alpha1.IPClaim, error) {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	if err := a.w.statusErrs[claim.Name]; err != nil {
		return nil, err
	}
	now := a.w.claims.now[namespace+"/"+claim.Name]
	if now == nil || now.UID != claim.UID {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "ipclaims"}, claim.Name)
	}
	a.w.statuses = append(a.w.statuses, claim.Name)
	now = now.DeepCopy()
	now.Status = *status
	if a.w.behind {
		now.ResourceVersion += "0"
		return now, nil
	}
	return a.w.claims.put(now), nil
}

type storeFake struct{ w *world }

func (s storeFake) Update(_ context.Context, seen *v1alpha1.FloatingIP, spec v1alpha1.FloatingIPSpec) (*v1alpha1.FloatingIP, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	now := s.w.ips.now["/"+seen.Name]
	if now == nil || now.UID != seen.UID || now.ResourceVersion != seen.ResourceVersion {
		return nil, fmt.Errorf("update %s: %w", seen.Name, store.ErrChanged)
	}
	now = now.DeepCopy()
	now.Spec = spec
	return s.w.ips.put(now), nil
}

// Preallocate is the book.
func (w *world) Preallocate(_ context.Context, request ipam.Request, count int) (made int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bookFails != nil {
		return 0, w.bookFails
	}
	for ; made < count; made++ {
		family := request.Parts[0].Family
		i := slices.IndexFunc(w.free, func(name string) bool { return strings.Contains(name, "-") == (family == v1alpha1.IPv6) })
		if i < 0 {
			return made, &ipam.ShortageError{Reasons: []string{"none is free"}}
		}
		ip := newIP(w.free[i], request.Owner.Name, "", 1)
		ip.Spec.Owner.UID, ip.Spec.ReleasePolicy = types.UID(request.Owner.UID), request.Policy
		w.ips.put(ip)
		w.free = slices.Delete(w.free, i, i+1)
	}
	return made, nil
}

func (w *world) Eventf(regarding, _ runtime.Object, _, reason, _, _ string, _ ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, regarding.(metav1.Object).GetName()+" "+reason)
}

// change lets the test change the API server.
func (w *world) change(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
}

func (w *world) create(claims ...*v1alpha1.IPClaim) {
	w.change(func() {
		for _, claim := range claims {
			w.claims.put(claim)
		}
	})
}

func (w *world) respecify(name string, edit func(*v1alpha1.IPClaim)) {
	w.change(func() {
		claim := w.claims.now[namespace+"/"+name].DeepCopy()
		edit(claim)
		claim.Generation++
		w.claims.put(claim)
	})
}

// pass advances the time until nothing happens any more.
func (w *world) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// is returns a claim's status as "addresses=allocated+retained reason".
func (w *world) is(name string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.claims.now[namespace+"/"+name].Status
	text := fmt.Sprintf("%d=%d+%d", s.Addresses, s.Allocated, s.Retained)
	for _, c := range s.Conditions {
		if c.Type == v1alpha1.ClaimReady || c.Status == metav1.ConditionTrue {
			text += " " + c.Reason
		}
	}
	return text
}

func (w *world) want(name, status string) {
	w.t.Helper()
	if got := w.is(name); got != status {
		w.t.Errorf("%s is %q, want %q", name, got, status)
	}
}

func (w *world) wantEvents(events ...string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if diff := cmp.Diff(events, w.events, cmpopts.EquateEmpty()); diff != "" {
		w.t.Errorf("events: %s", diff)
	}
	w.events = nil
}

// owned lists the addresses of claims, "address claim", sorted.
func (w *world) owned() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, ip := range w.ips.now {
		all = append(all, ip.Name+" "+ip.Spec.Owner.Name)
	}
	slices.Sort(all)
	return all
}

func addresses(first, n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("10.0.%d.%d", (first+i)/250, (first+i)%250+1))
	}
	return names
}

func TestPreallocate(t *testing.T) {
	simulate(t, func(w *world) {
		w.free = addresses(0, 2)
		w.create(newClaim("a", 3, preallocating()), newClaim("idle", 3))
		w.pass(5 * time.Second)
		w.want("a", "2=0+2 PoolsExhausted")
		w.want("idle", "0=0+0 OnDemand")
		w.wantEvents("a PreallocationFailed")

		// By now it is tried once a minute; an address that is freed wakes it.
		w.pass(5 * time.Minute)
		w.free = addresses(2, 2)
		w.change(func() { w.ips.put(newIP("10.0.9.9", "nobody", "", 1)); w.ips.remove("", "10.0.9.9") })
		w.pass(3 * time.Second)
		w.want("a", "3=0+3 Preallocated")
		w.wantEvents("a Preallocated")

		w.respecify("a", func(c *v1alpha1.IPClaim) { c.Spec.Size = 2 })
		w.pass(3 * time.Second)
		w.want("a", "3=0+3 Preallocated MoreThanSize")
		w.wantEvents("a Oversized")
		if len(w.free) != 1 {
			t.Errorf("%d addresses are left, want 1", len(w.free))
		}
	})
}

// Nothing may be taken twice while the watch is behind, nor one claim keep others
// waiting.
func TestPreallocateMany(t *testing.T) {
	simulate(t, func(w *world) {
		w.free = addresses(0, 1000)
		w.create(newClaim("big", 600, preallocating()), newClaim("small", 1, preallocating()))
		w.pass(5 * time.Second)
		w.want("big", "600=0+600 Preallocated")
		w.want("small", "1=0+1 Preallocated")
		if len(w.free) != 399 {
			t.Errorf("%d addresses are left, want 399", len(w.free))
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if n := len(w.statuses); n > 10 {
			t.Errorf("%d statuses were written in 5 s for 2 claims", n)
		}
	})
}

func TestPreallocateFamilies(t *testing.T) {
	simulate(t, func(w *world) {
		w.pools.put(&v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "six", UID: "six"}, Spec: v1alpha1.IPPoolSpec{Subnet: "2001:db8::/64", Ranges: []string{"2001:db8::/64"}}})
		w.free = append(addresses(0, 9), "2001-0db8-0000-0000-0000-0000-0000-0001")
		w.create(newClaim("a", 2, preallocating(v1alpha1.IPv4, v1alpha1.IPv6)))
		w.pass(5 * time.Second)
		w.want("a", "3=0+3 PoolsExhausted")
		message := w.claims.now[namespace+"/a"].Status.Conditions[0].Message
		if want := "1 of 2 IPv6 addresses: none is free"; message != want {
			t.Errorf("it says %q, want %q", message, want)
		}
	})
}

// A failure that may be due to a book that is behind is not shown.
func TestPreallocateWithABookBehind(t *testing.T) {
	for _, err := range []error{ipam.ErrNotSynced, ipam.ErrConflict, &ipam.ShortageError{Reasons: []string{"there is no such claim"}}} {
		simulate(t, func(w *world) {
			w.free, w.bookFails = addresses(0, 9), err
			w.create(newClaim("a", 2, preallocating()))
			w.pass(500 * time.Millisecond)
			w.want("a", "0=0+0 Preallocating")
			w.change(func() { w.bookFails = nil })
			w.pass(3 * time.Second)
			w.want("a", "2=0+2 Preallocated")
			w.wantEvents("a Preallocated")
		})
	}
}

func TestPreallocateFails(t *testing.T) {
	simulate(t, func(w *world) {
		w.free, w.bookFails = addresses(0, 9), errors.New("the API server is tired")
		w.create(newClaim("a", 2, preallocating()))
		w.pass(10 * time.Second)
		w.want("a", "0=0+0 PreallocationFailed")
		w.change(func() { w.bookFails = nil })
		w.pass(time.Minute)
		w.want("a", "2=0+2 Preallocated")
		w.wantEvents("a PreallocationFailed", "a Preallocated")
	})
}

// A claim that the watch still has, as that of a new leader may, gets nothing when it is
// gone or smaller.
func TestPreallocateForWhatWas(t *testing.T) {
	const key = namespace + "/a"
	for name, change := range map[string]func(w *world){
		"gone": func(w *world) { delete(w.claims.now, key) },
		"made again": func(w *world) {
			w.claims.now[key] = w.claims.now[key].DeepCopy()
			w.claims.now[key].UID = "another"
		},
		"smaller": func(w *world) {
			w.claims.now[key] = w.claims.now[key].DeepCopy()
			w.claims.now[key].Generation++
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(w *world) {
				w.create(newClaim("a", 2, preallocating()))
				w.pass(5 * time.Second)
				w.change(func() { change(w); w.free = addresses(0, 9) })
				w.pass(5 * time.Minute)
				if got := w.owned(); got != nil {
					t.Errorf("it has %q", got)
				}
			})
		})
	}
}

// At the cap of its namespace a claim waits for addresses that the namespace frees, with
// or without a cooldown.
func TestPreallocateAtCap(t *testing.T) {
	simulate(t, func(w *world) {
		w.free, w.bookFails = addresses(0, 9), &ipam.ShortageError{Reasons: []string{"no more for you"}, Cause: ipam.AtCap}
		mine, other := newIP("10.9.9.1", "x", "", 1), newIP("10.9.9.2", "x", "", 1)
		for _, ip := range []*v1alpha1.FloatingIP{mine, other} {
			ip.Spec.Owner.Kind = "Deployment"
		}
		other.Spec.Owner.Namespace = "other"
		w.ips.put(mine)
		w.ips.put(other)
		w.create(newClaim("a", 2, preallocating()))
		w.pass(100 * time.Second)
		w.want("a", "0=0+0 NamespaceAtCap")
		rest := func(ip *v1alpha1.FloatingIP) {
			ip = ip.DeepCopy()
			ip.Spec.Owner, ip.Spec.ReleasedAt = nil, &metav1.Time{}
			w.ips.put(ip)
		}
		w.change(func() { w.bookFails = nil; rest(other) })
		w.pass(2 * Interval)
		w.want("a", "0=0+0 NamespaceAtCap")
		w.change(func() { rest(mine) })
		w.pass(2 * Interval)
		w.want("a", "2=0+2 Preallocated")
		w.wantEvents("a PreallocationFailed", "a Preallocated")
	})
}

func TestNoPool(t *testing.T) {
	simulate(t, func(w *world) {
		from := func(c *v1alpha1.IPClaim) { c.Spec.Pools = []string{"later"} }
		w.free = addresses(0, 9)
		w.create(newClaim("a", 2, preallocating(), from), newClaim("b", 2, from))
		w.pass(3 * time.Second)
		w.want("a", "0=0+0 NoSuchPool")
		w.want("b", "0=0+0 NoSuchPool")
		w.change(func() {
			w.pools.put(&v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "later"}, Spec: v1alpha1.IPPoolSpec{Subnet: "10.0.1.0/24", Ranges: []string{"10.0.1.0/24"}}})
		})
		w.pass(3 * time.Second)
		w.want("a", "2=0+2 Preallocated")
		w.want("b", "0=0+0 OnDemand")
	})
}

func TestTakeOver(t *testing.T) {
	simulate(t, func(w *world) {
		w.free = addresses(100, 9)
		for i, name := range addresses(0, 5) {
			w.ips.put(newIP(name, "old", map[int]string{3: "p", 4: "q"}[i], int64(i)))
		}
		w.create(newClaim("old", 5, preallocating()), newClaim("new", 3, takingOver("old"), preallocating()))
		w.pass(5 * time.Second)
		want := []string{"10.0.0.1 new", "10.0.0.2 old", "10.0.0.3 old", "10.0.0.4 new", "10.0.0.5 new"}
		if diff := cmp.Diff(want, w.owned()); diff != "" {
			t.Error(diff)
		}
		w.want("new", "3=2+1 Preallocated")
		w.want("old", "2=0+2 TakenOver")
		if ip := w.ips.now["/10.0.0.4"]; ip.Spec.Owner.UID != "new" || ip.Spec.Pod.Name != "p" {
			t.Errorf("it is %+v", ip.Spec)
		}
		w.respecify("new", func(c *v1alpha1.IPClaim) { c.Spec.Size = 9 })
		w.pass(5 * time.Second)
		w.want("new", "9=2+7 Preallocated")
		w.want("old", "0=0+0 TakenOver")
		w.change(func() { w.claims.remove(namespace, "new") })
		w.pass(5 * time.Second)
		// The remaining free addresses.
		w.want("old", "5=0+5 Preallocated")
	})
}

func TestTakeOverMany(t *testing.T) {
	simulate(t, func(w *world) {
		for _, name := range addresses(0, 500) {
			w.ips.put(newIP(name, "old", "", 1))
		}
		w.create(newClaim("new", 400, takingOver("old")))
		w.pass(10 * time.Second)
		w.want("new", "400=0+400 OnDemand")

		// What pods that name the old claim draw from it follows.
		w.respecify("new", func(c *v1alpha1.IPClaim) { c.Spec.Size = 501 })
		w.pass(10 * time.Second)
		w.change(func() { w.ips.put(newIP("10.0.9.9", "old", "p", 1)) })
		w.pass(3 * time.Second)
		w.want("new", "501=1+500 OnDemand")
	})
}

// Claims that take over each other neither loop nor lose anything.
func TestTakeOverCircle(t *testing.T) {
	simulate(t, func(w *world) {
		w.ips.put(newIP("10.0.0.1", "a", "p", 1))
		w.ips.put(newIP("10.0.0.2", "b", "", 1))
		before := w.owned()
		w.create(newClaim("a", 5, takingOver("b")), newClaim("b", 5, takingOver("c")), newClaim("c", 5, takingOver("a")))
		w.pass(time.Minute)
		for _, name := range []string{"a", "b", "c"} {
			if got := w.is(name); !strings.HasSuffix(got, "TakeOverConflict") {
				t.Errorf("%s is %q", name, got)
			}
		}
		if diff := cmp.Diff(before, w.owned()); diff != "" {
			t.Error(diff)
		}
		w.mu.Lock()
		if n := len(w.statuses); n > 6 {
			t.Errorf("%d statuses were written in a minute", n)
		}
		w.mu.Unlock()
		w.respecify("b", func(c *v1alpha1.IPClaim) { c.Spec.TakeOver = "" })
		w.pass(5 * time.Second)
		// It is a chain now: a takes over b, and c takes over a.
		w.want("a", "0=0+0 OnDemand")
		w.want("b", "0=0+0 OnDemand")
		w.want("c", "2=1+1 OnDemand")
	})
}

// The watch may still have an earlier claim of the name: addresses recorded for that
// claim would be freed.
func TestTakeOverByAClaimThatIsGone(t *testing.T) {
	simulate(t, func(w *world) {
		w.ips.put(newIP("10.0.0.1", "old", "", 1))
		stale := newClaim("new", 5, takingOver("old"))
		w.change(func() {
			w.claims.now[namespace+"/new"] = newClaim("new", 5, takingOver("old"), func(c *v1alpha1.IPClaim) { c.UID = "another" })
			w.claims.source.Add(stale.DeepCopy())
		})
		w.pass(5 * time.Second)
		if owner := w.ips.now["/10.0.0.1"].Spec.Owner; owner.Name != "old" {
			t.Errorf("it went to %+v", owner)
		}
	})
}

// A claim that is created again adopts the addresses of its predecessor, also restored
// ones, with its own release policy.
func TestClaimMadeAgain(t *testing.T) {
	simulate(t, func(w *world) {
		keepUntil := metav1.NewTime(time.Now().Add(48 * time.Hour))
		for i, name := range addresses(0, 3) {
			ip := newIP(name, "a", "", int64(i))
			ip.Spec.Owner.UID, ip.Spec.ReleasePolicy, ip.Spec.KeepUntil = "the one before", v1alpha1.ReleaseNever, &keepUntil
			w.ips.put(ip)
		}
		w.create(newClaim("a", 2, func(c *v1alpha1.IPClaim) { c.Spec.RetainFor = &metav1.Duration{Duration: time.Hour} }))
		w.pass(5 * time.Second)
		got := map[string]string{}
		for _, ip := range w.ips.now {
			got[ip.Name] = fmt.Sprint(ip.Spec.Owner.UID, ", ", ip.Spec.ReleasePolicy)
			if !keepUntil.Equal(ip.Spec.KeepUntil) { // What was restored stays so long, whatever retainFor says.
				t.Errorf("%s is kept until %v, want %v", ip.Name, ip.Spec.KeepUntil, keepUntil)
			}
			if ip.Spec.RetainFor != nil {
				got[ip.Name] += " for " + ip.Spec.RetainFor.Duration.String()
			}
		}
		if diff := cmp.Diff(map[string]string{
			"10.0.0.1": "a, Retain for 1h0m0s", "10.0.0.2": "a, Retain for 1h0m0s", "10.0.0.3": "the one before, Never",
		}, got); diff != "" {
			t.Error(diff)
		}
		w.want("a", "3=0+3 OnDemand MoreThanSize")
		w.respecify("a", func(c *v1alpha1.IPClaim) { c.Spec.ReleasePolicy, c.Spec.RetainFor = v1alpha1.ReleaseNever, nil })
		w.pass(5 * time.Second)
		for _, ip := range w.ips.now {
			// Also the one that it has no room for, as it was before.
			if ip.Spec.ReleasePolicy != v1alpha1.ReleaseNever || ip.Spec.RetainFor != nil {
				t.Errorf("%s is %+v", ip.Name, ip.Spec)
			}
		}
	})
}

// However often the numbers change, the status is written once a second.
// A claim of a namespace that was created again inherits nothing from its predecessor.
func TestClaimInANamespaceMadeAgain(t *testing.T) {
	simulate(t, func(w *world) {
		for i, name := range addresses(0, 3) {
			ip := newIP(name, "a", "", int64(i))
			ip.Spec.Owner.UID, ip.Spec.ReleasePolicy = "the one before", v1alpha1.ReleaseNever
			ip.Spec.Owner.NamespaceUID = []types.UID{"", "before", "now"}[i]
			w.ips.put(ip)
		}
		w.create(newClaim("a", 5))
		w.pass(10 * time.Second)
		got := map[string]string{}
		for _, ip := range w.ips.now {
			got[ip.Name] = fmt.Sprint(ip.Spec.Owner.UID, " of ", ip.Spec.Owner.NamespaceUID)
		}
		want := map[string]string{}
		for i, name := range addresses(0, 3) {
			want[name] = []string{"a of now", "the one before of before", "a of now"}[i]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		w.want("a", "2=0+2 OnDemand")
	})
}

func TestStatusWrites(t *testing.T) {
	simulate(t, func(w *world) {
		w.create(newClaim("a", 500))
		w.pass(10 * time.Second)
		w.statuses = nil
		for _, name := range addresses(0, 400) {
			w.change(func() { w.ips.put(newIP(name, "a", "", 1)) })
			w.pass(10 * time.Millisecond)
		}
		w.pass(2 * time.Second)
		w.want("a", "400=0+400 OnDemand")
		if n := len(w.statuses); n < 3 || n > 6 {
			t.Errorf("%d statuses were written in 4 s", n)
		}
		w.statuses = nil
		w.pass(time.Hour)
		if n := len(w.statuses); n != 0 {
			t.Errorf("%d statuses were written in an hour without news", n)
		}
	})
}

// A watch that is behind does not make it write, or tell, the same again.
func TestStatusWithAWatchBehind(t *testing.T) {
	simulate(t, func(w *world) {
		w.behind = true
		w.ips.put(newIP("10.0.0.1", "a", "p", 1))
		w.ips.put(newIP("10.0.0.2", "a", "q", 1))
		w.create(newClaim("a", 1))
		w.pass(5 * time.Second)
		w.wantEvents("a Oversized")
		w.change(func() {
			ip := w.ips.now["/10.0.0.1"].DeepCopy()
			ip.Spec.Since = &metav1.Time{Time: time.Unix(9, 0)}
			w.ips.put(ip)
		})
		w.pass(5 * time.Second)
		w.wantEvents()
		if n := len(w.statuses); n != 1 {
			t.Errorf("%d statuses were written", n)
		}
	})
}

// A claim whose status cannot be written keeps no other waiting.
func TestStatusFails(t *testing.T) {
	simulate(t, func(w *world) {
		w.statusErrs["a"] = errors.New("no")
		w.create(newClaim("a", 1), newClaim("b", 1))
		w.pass(5 * time.Second)
		w.want("b", "0=0+0 OnDemand")
		w.change(func() { delete(w.statusErrs, "a") })
		w.pass(time.Minute)
		w.want("a", "0=0+0 OnDemand")
	})
}

func TestMetrics(t *testing.T) {
	simulate(t, func(w *world) {
		w.create(newClaim("a", 2), newClaim("b", 2, takingOver("b")))
		w.ips.put(newIP("10.0.0.1", "a", "p", 1))
		w.ips.put(newIP("10.0.0.2", "a", "", 1))
		w.pass(3 * time.Second)
		check := func(want ...string) {
			t.Helper()
			families, err := w.registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, family := range families {
				for _, m := range family.GetMetric() {
					var values []string
					for _, l := range m.GetLabel() {
						values = append(values, l.GetValue())
					}
					got = append(got, family.GetName()+" "+strings.Join(values, ",")+" "+strconv.Itoa(int(m.GetGauge().GetValue())))
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		}
		ofB := []string{"berth_claim_addresses b,shop,allocated 0", "berth_claim_addresses b,shop,retained 0"}
		check("berth_claim_addresses a,shop,allocated 1", "berth_claim_addresses a,shop,retained 1", ofB[0], ofB[1],
			"berth_claim_ready a,shop 1", "berth_claim_ready b,shop 0", "berth_claim_size a,shop 2", "berth_claim_size b,shop 2")
		w.change(func() { w.claims.remove(namespace, "a") })
		w.pass(3 * time.Second)
		check(ofB[0], ofB[1], "berth_claim_ready b,shop 0", "berth_claim_size b,shop 2")
	})
}
